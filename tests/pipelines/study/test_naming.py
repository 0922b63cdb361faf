"""Names of outputs by the BIDS schema, and FreeSurfer's table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trinat.pipelines.predict.case_files import format_aseg_stats
from trinat.pipelines.study.naming import Product, bids_name
from trinat.segmentation.data.sources.bids import entities, kind_of_labels
from trinat.segmentation.labels.measures import BrainVolumes
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme


def test_all_entities_are_kept_and_ours_stand_where_the_schema_wants_them() -> None:
    own = entities("sub-01_ses-x_acq-hi+lo_run-1_chunk-2")
    name = bids_name(own, space="orig", desc="trinat")
    assert name == "sub-01_ses-x_acq-hi+lo_run-1_space-orig_chunk-2_desc-trinat"


def test_a_product_is_found_among_files_by_bids_names_and_plain_ones() -> None:
    names = [
        "a_dseg.json",
        "a_dseg.mgz",
        "a_aseg.stats",
        "sub-1_space-orig_desc-brain_mask.nii.gz",
    ]
    assert Product.LABELS.among(names) == "a_dseg.mgz"
    assert Product.STATS.among(names) == "a_aseg.stats"
    assert Product.BRAIN_MASK.among(names) == "sub-1_space-orig_desc-brain_mask.nii.gz"
    assert Product.DICOM_SEG.among(names) is None


def test_what_is_there_for_fmriprep_is_no_other_product() -> None:
    names = [
        "sub-1_desc-brain_mask.nii.gz",
        "sub-1_dseg.nii.gz",
        "sub-1_space-orig_seg-tissues_dseg.nii.gz",
        "sub-1_space-orig_desc-trinat_dseg.nii.gz",
    ]
    assert Product.LABELS.among(names) == names[3]
    assert Product.TISSUES.among(names) == names[2]
    assert Product.BRAIN_MASK.among(names) is None


def test_only_label_maps_of_structures_have_their_kind() -> None:
    for product in Product:
        if product.suffix == "dseg":
            name = bids_name(entities("sub-1"), **product.own_entities)
            is_structures = kind_of_labels(Path(f"{name}_dseg.nii.gz")) == ""
            assert is_structures == (product is Product.LABELS)


def test_aseg_stats_has_freesurfers_columns_and_numbers() -> None:
    voxels = {"Left-Thalamus": 100, "Brain-Stem": 7, "Right-Hippocampus": 0}
    volumes = BrainVolumes({}, "no intracranial volume: the scan shows no skull")
    text = format_aseg_stats("s", load_scheme("quicknat33"), voxels, 0.5, volumes)
    assert text.splitlines()[3] == f"# {volumes.note}"
    header, *rows = text.splitlines()[5:]
    assert header == "# ColHeaders Index SegId NVoxels Volume_mm3 StructName"
    assert [row.split() for row in rows] == [
        ["1", "10", "100", "50.000", "Left-Thalamus"],
        ["2", "16", "7", "3.500", "Brain-Stem"],
        ["3", "53", "0", "0.000", "Right-Hippocampus"],
    ]
    assert "TIV" not in text


def test_names_of_an_own_scheme_are_one_column() -> None:
    scheme = load_scheme("quicknat33")
    labels = [
        replace(label, name=label.name.replace("-", " ")) for label in scheme.labels
    ]
    own = LabelScheme("own", tuple(labels))
    volumes = BrainVolumes({}, "")
    text = format_aseg_stats("s", own, {"Left Hippocampus": 3}, 1.0, volumes)
    row = text.splitlines()[-1].split()
    assert row == ["1", "17", "3", "3.000", "Left_Hippocampus"]


def test_aseg_stats_has_the_lines_of_what_was_measured() -> None:
    volumes = BrainVolumes({"EstimatedTotalIntraCranialVol": 1.5e6, "CortexVol": 2.5})
    text = format_aseg_stats("s", load_scheme("quicknat33"), {}, 1.0, volumes)
    lines = [line for line in text.splitlines() if line.startswith("# Measure")]
    first, second = (line.split(", ") for line in lines)
    assert first[:2] == ["# Measure EstimatedTotalIntraCranialVol", "eTIV"]
    assert "by segmentation" in first[2]
    assert first[3:] == ["1500000.000000", "mm^3"]
    assert second[:2] == ["# Measure Cortex", "CortexVol"]
    assert second[3:] == ["2.500000", "mm^3"]
