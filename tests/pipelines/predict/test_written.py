"""Outputs of trinat predict: label maps, tables, masks and probabilities."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.lesions import save_lesion_network
from helpers.overfitted import (
    miniature,
    overfitted_model,
    random_model,
    with_parcels,
)
from helpers.serial import QUICK, run_serially, table, write_heads, write_scans
from helpers.small_model import edit, set_key
from scipy import ndimage

from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.run import predict
from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.study.files import find_files
from trinat.pipelines.study.ledger import read_entries
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.models import zoo


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a scan to `in` and its results with mask, statistics and probabilities to `out`."""
    folder = tmp_path_factory.mktemp("made")
    scans = write_heads(folder / "in", "a.nii.gz")
    output = replace(QUICK, brain_mask=True, stats=True, probabilities=True)
    run_serially(scans, folder / "out", output=output, model=str(overfitted_model()))
    return folder


def test_freesurfer_numbers_by_default_and_indices_on_request(
    made: Path, tmp_path: Path
) -> None:
    output = replace(QUICK, format="index")
    run_serially(made / "in", tmp_path, output=output, model=str(overfitted_model()))
    numbers = np.asarray(nib.load(made / "out/a_dseg.nii.gz").dataobj)
    indices = np.asarray(nib.load(tmp_path / "a_dseg.nii.gz").dataobj)
    truth = miniature()[1].data
    both = (numbers == 41) & (truth == 41)
    assert 2 * both.sum() / ((numbers == 41).sum() + (truth == 41).sum()) > 0.9
    # Right white matter is class 19 of the scheme.
    assert ((indices == 19) == (numbers == 41)).all()


def test_volumes_are_voxels_times_their_size_and_shares_of_the_brain(
    made: Path,
) -> None:
    (row,) = table(made / "out/volumes.tsv")
    labels = np.asarray(nib.load(made / "out/a_dseg.nii.gz").dataobj)
    white = float(row["Left-Cerebral-White-Matter_mm3"])
    assert white == (labels == 2).sum()
    assert float(row["Left-Cerebral-White-Matter_share"]) == pytest.approx(
        white / float(row["total_brain_mm3"]), abs=1e-6
    )


def test_mgz_stays_mgz_on_request_and_stats_are_freesurfers(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.mgz")
    run_serially(scans, tmp_path / "out", output=replace(QUICK, mgz=True, stats=True))
    scan = nib.load(scans / "a.mgz")
    labels = nib.load(tmp_path / "out/a_dseg.mgz")
    assert isinstance(labels, nib.MGHImage)
    assert labels.shape == scan.shape == (16, 18, 17)
    np.testing.assert_allclose(labels.affine, scan.affine, atol=1e-5)
    assert not (tmp_path / "out/a_dseg.nii.gz").exists()
    counts = Counter(np.asarray(labels.dataobj).ravel().tolist())
    lines = (tmp_path / "out/a_aseg.stats").read_text().splitlines()
    assert "# ColHeaders Index SegId NVoxels Volume_mm3 StructName" in lines
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    voxels = {int(row[1]): int(row[2]) for row in rows}
    assert {number: n for number, n in voxels.items() if n} == {
        number: n for number, n in counts.items() if number
    }
    # Voxels of 1 mm.
    assert [float(row[3]) for row in rows] == [float(row[2]) for row in rows]


def test_clean_up_uncertainty_entropy_and_probabilities_are_written(
    tmp_path: Path,
) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    output = replace(
        QUICK, samples=2, entropy=True, probabilities=True, clean=True, picture=True
    )
    run_serially(scans, tmp_path / "out", output=output, model=str(overfitted_model()))
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert 0 <= entry.result.iou["Left-Cerebral-Cortex"] <= 1
    names = set(entry.outputs)
    assert {
        "a_dseg.nii.gz",
        "a_entropy.nii.gz",
        "a_qc.png",
        "a_probseg.nii.gz",
    } <= names


def test_the_brain_mask_holds_the_structures_and_has_their_grid(made: Path) -> None:
    mask = nib.load(made / "out/a_brainmask.nii.gz")
    labels = nib.load(made / "out/a_dseg.nii.gz")
    np.testing.assert_allclose(mask.affine, labels.affine)
    inside = np.asarray(mask.dataobj)
    assert np.unique(inside).tolist() == [0, 1]
    cortex = np.isin(np.asarray(labels.dataobj), (3, 42))
    assert inside[cortex].mean() > 0.99
    # Measures of the whole brain are in tables; an unknown value has a note instead.
    (row,) = table(made / "out/volumes.tsv")
    assert row["EstimatedTotalIntraCranialVol_mm3"] == "n/a"
    assert float(row["CortexVol_mm3"]) == cortex.sum()
    note = "no intracranial volume: the model does not find the fluid around the brain"
    assert note in table(made / "out/qc.tsv")[0]["notes"]
    stats = (made / "out/a_aseg.stats").read_text()
    assert f"# {note}\n" in stats
    assert "# Measure Cortex, CortexVol, " in stats
    assert "eTIV" not in stats
    assert find_files(made / "out")[0].path.name == "a_dseg.nii.gz"
    assert len(find_files(made / "out")) == 1


def test_probabilities_are_one_file_whose_maps_are_named_and_sum_to_one(
    made: Path,
) -> None:
    image = nib.load(made / "out/a_probseg.nii.gz")
    names = json.loads((made / "out/a_probseg.json").read_text())["LabelMap"]
    assert names[:2] == ["BG", "L-CWM"]
    assert "CSF" not in names  # which that model was never taught
    scan = nib.load(made / "in/a.nii.gz")
    assert image.shape == (*scan.shape, len(names))
    np.testing.assert_allclose(image.affine, scan.affine)
    values = image.get_fdata()
    np.testing.assert_allclose(values.sum(-1), 1, atol=5e-3)
    labels = np.asarray(nib.load(made / "out/a_dseg.nii.gz").dataobj)
    assert values[labels == 2][:, 1].min() > 1 / len(names)
    assert values[..., 1].max() > 0.9


def test_tissues_are_a_map_of_each_and_one_of_the_most_probable(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    output = replace(QUICK, tissues=True)
    run_serially(scans, tmp_path / "out", output=output, model=str(overfitted_model()))
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    maps = {tissue: f"a_{tissue}_probseg.nii.gz" for tissue in ("GM", "WM", "CSF")}
    assert set(entry.outputs) == {"a_dseg.nii.gz", "a_tissues.nii.gz", *maps.values()}
    scan = nib.load(scans / "a.nii.gz")
    tissues = nib.load(tmp_path / "out/a_tissues.nii.gz")
    np.testing.assert_allclose(tissues.affine, scan.affine)
    numbers = np.asarray(tissues.dataobj)
    assert np.unique(numbers).tolist() == [0, 1, 2, 3]
    for number, name in enumerate(maps.values(), start=1):
        of_tissue = nib.load(tmp_path / "out" / name)
        assert of_tissue.shape == scan.shape
        assert of_tissue.get_data_dtype() == np.int16
        assert of_tissue.get_fdata()[numbers == number].min() > 0.25
    # Cortex of either side is grey matter.
    labels = np.asarray(nib.load(tmp_path / "out/a_dseg.nii.gz").dataobj)
    assert (numbers[np.isin(labels, (3, 42))] == 1).mean() > 0.99
    # None of these files is a scan, or a label map of structures.
    assert [file.path.name for file in find_files(tmp_path / "out")] == [
        "a_dseg.nii.gz"
    ]


def test_what_fmriprep_takes_has_its_names_and_the_order_of_axes_of_its_scans(
    tmp_path: Path,
) -> None:
    raw = write_heads(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz")
    scan = miniature("PIR")[0]
    scan.write(raw / "sub-01/anat/sub-01_T1w.nii.gz")
    output = replace(QUICK, brain_mask=True, tissues=True, fmriprep=True)
    run_serially(raw, tmp_path / "out", output=output, model=str(overfitted_model()))
    anat = tmp_path / "out/sub-01/anat"
    names = {
        "desc-brain_mask": "space-orig_desc-brain_mask",
        "dseg": "space-orig_seg-tissues_dseg",
        **{
            f"label-{tissue}_probseg": f"space-orig_seg-tissues_label-{tissue}_probseg"
            for tissue in ("GM", "WM", "CSF")
        },
    }
    for name, in_own_axes in names.items():
        theirs = nib.load(anat / f"sub-01_{name}.nii.gz")
        assert nib.aff2axcodes(theirs.affine) == ("R", "A", "S")
        own = nib.load(anat / f"sub-01_{in_own_axes}.nii.gz")
        np.testing.assert_allclose(own.affine, scan.affine)
        same = nib.as_closest_canonical(own)
        np.testing.assert_allclose(theirs.affine, same.affine)
        assert (theirs.get_fdata() == same.get_fdata()).all()
        assert (anat / f"sub-01_{name}.json").is_file()
    (labels,) = find_files(tmp_path / "out")
    assert labels.path.name == "sub-01_space-orig_desc-trinat_dseg.nii.gz"


def test_what_fmriprep_takes_is_of_t1w_scans_of_a_bids_dataset_alone(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    with pytest.raises(ConfigError, match="no T1w scans of a BIDS dataset"):
        run_serially(scans, tmp_path / "out", output=replace(QUICK, fmriprep=True))
    assert not (tmp_path / "out").exists()


def test_participants_with_more_scans_than_fmriprep_takes_are_named(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    names = [f"sub-02/anat/sub-02_run-{run}_T1w.nii.gz" for run in (1, 2)]
    raw = write_scans(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz", *names)
    request = PredictRequest(
        [str(raw)],
        tmp_path / "out",
        str(random_model()),
        engine=SerialEngine,
        threads=1,
        output=replace(QUICK, fmriprep=True),
    )
    predict(request)
    (remark,) = logged.messages
    assert "one T1w scan a participant: sub-02 have several" in remark


def test_results_of_another_session_are_scans_that_fmriprep_takes(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    names = [f"sub-01/ses-{n}/anat/sub-01_ses-{n}_T1w.nii.gz" for n in (1, 2)]
    raw, out = write_scans(tmp_path / "raw", *names), tmp_path / "out"
    output = replace(QUICK, brain_mask=True, fmriprep=True)
    run_serially(raw, out, sessions=["1"], output=output)
    run_serially(raw, out, sessions=["1"], output=output)
    assert not logged.messages
    run_serially(raw, out, sessions=["2"], participants=["01"], output=output)
    assert len(logged.messages) == 1


def test_bids_in_gives_bids_out_that_the_validator_takes(tmp_path: Path) -> None:
    raw = write_scans(
        tmp_path / "raw",
        "sub-01/anat/sub-01_T1w.nii.gz",
        "sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_T1w.nii.gz",
    )
    (raw / "dataset_description.json").write_text(
        '{"Name": "x", "BIDSVersion": "1.10.0"}'
    )
    out = tmp_path / "out"
    output = replace(
        QUICK,
        picture=True,
        entropy=True,
        stats=True,
        probabilities=True,
        tissues=True,
        callosum=True,
        fmriprep=True,
    )
    run_serially(raw, out, output=output)
    labels = (
        out
        / "sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_space-orig_desc-trinat_dseg.nii.gz"
    )
    assert labels.exists()
    sidecar = json.loads(
        labels.with_name(labels.name.replace(".nii.gz", ".json")).read_text()
    )
    source = "bids:raw:sub-02/ses-a/anat/sub-02_ses-a_acq-x_run-1_T1w.nii.gz"
    assert sidecar["Sources"] == [source]
    # The page shows all scans, since there are fewer than its limit.
    page = (out / "report.html").read_text()
    assert page.count('class="viewer"') == len(list(out.rglob("*_qc.png"))) == 2
    made = {"Model": "random", "ModelSHA256": sha256_of(random_model() / "model.yaml")}
    assert sidecar | made | {"TrinatVersion": version("trinat")} == sidecar
    description = json.loads((out / "dataset_description.json").read_text())
    assert description["BIDSVersion"] == "1.11.0"
    assert description["DatasetLinks"] == {"raw": "../raw/"}
    rows = table(out / "desc-trinat_dseg.tsv")
    assert rows[1] == {
        "index": "2",
        "name": "Left-Cerebral-White-Matter",
        "abbreviation": "L-CWM",
        "color": "#F5F5F5",
        "mapping": "2",
    }
    validator = Path(sys.executable).with_name("bids-validator-deno")
    checked = subprocess.run(
        [validator, "--format", "json", out],
        capture_output=True,
        text=True,
        check=False,
    )
    issues = json.loads(checked.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []
    assert checked.returncode == 0


def test_sagittal_slices_alone_give_a_table_of_structures_without_sides(
    tmp_path: Path,
) -> None:
    raw = write_scans(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz")
    out = tmp_path / "out"
    run_serially(raw, out, output=replace(QUICK, views=("sagittal",), format="index"))
    rows = table(out / "desc-trinat_dseg.tsv")
    labels = np.asarray(nib.load(next(out.rglob("*_dseg.nii.gz"))).dataobj)
    assert labels.max() < len(rows) == 19
    assert rows[1]["name"] == "Cerebral-White-Matter"


def test_parcels_are_a_label_map_of_their_own_and_a_table(
    made: Path, tmp_path: Path
) -> None:
    model = with_parcels(tmp_path / "model")
    output = replace(QUICK, parcels=True, stats=True)
    run_serially(made / "in", tmp_path / "out", output=output, model=str(model))
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert set(entry.outputs) == {
        *("a_dseg.nii.gz", "a_parcels.nii.gz"),
        *("a_aseg.stats", "a_parcels.stats"),
    }
    # The map of structures is the same to the byte.
    structures = tmp_path / "out/a_dseg.nii.gz"
    assert structures.read_bytes() == (made / "out/a_dseg.nii.gz").read_bytes()
    labels = np.asarray(nib.load(structures).dataobj)
    parcels = np.asarray(nib.load(tmp_path / "out/a_parcels.nii.gz").dataobj)
    assert parcels.dtype == np.int16
    is_parcel = parcels >= 1000
    np.testing.assert_array_equal(is_parcel, np.isin(labels, (3, 42)))
    np.testing.assert_array_equal(parcels[~is_parcel], labels[~is_parcel])
    assert (parcels[labels == 3] < 2000).all()
    assert (parcels[labels == 42] > 2000).all()
    rows = table(tmp_path / "out/parcels.tsv")
    assert len(rows) == 68
    volumes = {int(row["freesurfer"]): float(row["mm3"]) for row in rows}
    for number, voxels in Counter(parcels[is_parcel].tolist()).items():
        assert volumes[number] == voxels
    left = [float(row["share"]) for row in rows if row["side"] == "left"]
    assert sum(left) == pytest.approx(1, abs=0.01)
    numbers = {row["index"] for row in table(tmp_path / "out/parcel_labels.tsv")}
    assert {"1001", "2035", "17"} <= numbers
    assert "3" not in numbers
    lines = (tmp_path / "out/a_parcels.stats").read_text().splitlines()
    of_stats = {
        int(line.split()[1]): int(line.split()[2])
        for line in lines
        if not line.startswith("#")
    }
    assert of_stats[17] == (parcels == 17).sum()
    assert of_stats[1035] == (parcels == 1035).sum()


def test_thickness_is_a_map_a_table_and_freesurfers_text(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    model = with_parcels(tmp_path / "model")
    output = replace(QUICK, parcels=True, thickness=True, stats=True)
    run_serially(scans, tmp_path / "out", output=output, model=str(model))
    entry = read_entries([tmp_path / "out/run.jsonl"])["a"]
    assert set(entry.outputs) == {
        *("a_dseg.nii.gz", "a_parcels.nii.gz", "a_thickness.nii.gz"),
        *("a_aseg.stats", "a_parcels.stats", "a_lh.aparc.stats", "a_rh.aparc.stats"),
    }
    labels = np.asarray(nib.load(tmp_path / "out/a_dseg.nii.gz").dataobj)
    image = nib.load(tmp_path / "out/a_thickness.nii.gz")
    thickness = np.asarray(image.dataobj)
    assert thickness.dtype == np.float32
    assert not thickness[~np.isin(labels, (3, 42))].any()
    (row,) = table(tmp_path / "out/thickness.tsv")
    assert row["case"] == "a"
    columns = [name for name in row if name != "case"]
    assert len(columns) == 72
    assert columns[:3] == ["grade", "reasons", "lh_bankssts_thickness"]
    assert columns[36:38] == ["lh_MeanThickness_thickness", "rh_bankssts_thickness"]
    # The columns of FreeSurfer's text are found by their positions.
    of_stats = {}
    lines = (tmp_path / "out/a_lh.aparc.stats").read_text().splitlines()
    for line in lines:
        if not line.startswith("#"):
            name, _, area, volume, mean, _ = line.split()
            of_stats[name] = float(mean)
            if float(area) > 100:
                assert float(volume) / float(area) == pytest.approx(
                    float(mean), rel=0.02
                )
    measured = {name: row[f"lh_{name}_thickness"] for name in of_stats}
    for name, mean in of_stats.items():
        assert float(measured[name]) == pytest.approx(mean, abs=0.001)
    assert len(of_stats) > 0
    (mean,) = [line for line in lines if "MeanThickness" in line]
    of_hemisphere = float(mean.split(", ")[3])
    assert of_hemisphere == pytest.approx(
        float(row["lh_MeanThickness_thickness"]), abs=0.001
    )


def test_thickness_without_parcels_is_refused(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    with pytest.raises(ConfigError):
        run_serially(
            scans, tmp_path / "out", output=replace(QUICK, thickness=True, stats=True)
        )


def test_the_callosum_is_a_map_of_its_own_and_a_table(
    made: Path, tmp_path: Path
) -> None:
    output = replace(QUICK, callosum=True, stats=True)
    model = str(overfitted_model())
    run_serially(made / "in", tmp_path / "out", output=output, model=model)
    structures = tmp_path / "out/a_dseg.nii.gz"
    assert structures.read_bytes() == (made / "out/a_dseg.nii.gz").read_bytes()
    labels = np.asarray(nib.load(structures).dataobj)
    callosum = np.asarray(nib.load(tmp_path / "out/a_callosum.nii.gz").dataobj)
    is_callosum = callosum > 0
    assert set(np.unique(callosum)) <= {0, 251, 252, 253, 254, 255}
    assert np.isin(labels[is_callosum], (2, 41)).all()
    [row] = table(tmp_path / "out/callosum.tsv")
    # The map has whole voxels of 1 mm³; in the volume, those at the border count in part.
    volume_mm3 = float(row["CorpusCallosum_mm3"])
    assert volume_mm3 == pytest.approx(is_callosum.sum(), rel=0.05)
    assert row["grade"] in ("pass", "look", "reject")
    [volumes] = table(tmp_path / "out/volumes.tsv")
    assert float(volumes["CorpusCallosum_mm3"]) == volume_mm3
    numbers = {row["index"] for row in table(tmp_path / "out/callosum_labels.tsv")}
    assert numbers == {"0", "251", "252", "253", "254", "255"}
    lines = (tmp_path / "out/a_aseg.stats").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    of_stats = {int(fields[1]): float(fields[3]) for fields in rows}
    assert of_stats[255] == float(row["CC_Anterior_mm3"])


def test_lesions_are_a_map_a_list_and_columns_of_tables(
    made: Path, tmp_path: Path
) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    model = tmp_path / "model"
    shutil.copytree(overfitted_model(), model)
    structures = nib.load(made / "out/a_dseg.nii.gz")
    # A dark ball of 123 voxels in the middle of the white matter.
    white = np.isin(np.asarray(structures.dataobj), (2, 41))
    from_border = ndimage.distance_transform_edt(white)
    middle = np.unravel_index(from_border.argmax(), white.shape)
    offsets = np.indices(white.shape) - np.reshape(middle, (3, 1, 1, 1))
    ball = (offsets**2).sum(0) <= 9
    scan = nib.load(scans / "a.nii.gz")
    image = scan.get_fdata()
    image[ball] *= 0.5
    nib.save(nib.Nifti1Image(image, scan.affine), scans / "a.nii.gz")
    save_lesion_network(model, brighter=0.25, thinnest_mm=9)
    output = replace(QUICK, lesions=True, smallest_lesion_mm3=50.0)
    run_serially(scans, tmp_path / "out", output=output, model=str(model))
    lesions = np.asarray(nib.load(tmp_path / "out/a_lesions.nii.gz").dataobj)
    assert set(np.unique(lesions)) == {0, 1}
    assert lesions[ball].mean() > 0.9
    rows = table(tmp_path / "out/a_lesions.tsv")
    assert all(float(row["mm3"]) >= 50 for row in rows)
    assert sum(float(row["mm3"]) for row in rows) == lesions.sum()
    place = scan.affine @ [*middle, 1]
    centres = [[float(row[f"{axis}_mm"]) for axis in "xyz"] for row in rows]
    apart_mm = np.linalg.norm(np.array(centres) - place[:3], axis=1)
    assert apart_mm.min() < 1
    [of_scan] = table(tmp_path / "out/lesions.tsv")
    assert int(of_scan["lesions"]) == len(rows)
    assert float(of_scan["lesions_mm3"]) == lesions.sum()
    # In this small head they fill more than a quarter of the white matter.
    assert of_scan["grade"] == "reject"
    assert "found without FLAIR" in of_scan["reasons"]
    assert "slices as thin as these" in of_scan["reasons"]
    [volumes] = table(tmp_path / "out/volumes.tsv")
    assert float(volumes["White-matter-lesions_mm3"]) == lesions.sum()


def test_a_model_without_a_network_for_lesions_is_refused(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    with pytest.raises(ModelError) as raised:
        run_serially(scans, tmp_path / "out", output=replace(QUICK, lesions=True))
    assert raised.value.where == str(random_model())


def test_parcels_of_the_raters_have_their_own_numbers_and_names(tmp_path: Path) -> None:
    scans = write_heads(tmp_path / "in", "a.nii.gz")
    model = with_parcels(tmp_path / "model", "neuromorphometrics49")
    output = replace(QUICK, parcels=True, stats=True)
    run_serially(scans, tmp_path / "out", output=output, model=str(model))
    labels = np.asarray(nib.load(tmp_path / "out/a_dseg.nii.gz").dataobj)
    parcels = np.asarray(nib.load(tmp_path / "out/a_parcels.nii.gz").dataobj)
    assert parcels.dtype == np.int16
    is_parcel = parcels >= 30100
    np.testing.assert_array_equal(is_parcel, np.isin(labels, (3, 42)))
    np.testing.assert_array_equal(parcels[~is_parcel], labels[~is_parcel])
    # As in the raters' numbering: odd left and even right.
    assert (parcels[labels == 3] % 2 == 1).all()
    assert (parcels[labels == 42] % 2 == 0).all()
    rows = table(tmp_path / "out/parcels.tsv")
    assert len(rows) == 98
    left = rows[0]
    assert (left["parcel"], left["freesurfer"], left["side"], left["lobe"]) == (
        *("ctx-lh-anterior-cingulate-gyrus", "30101", "left", "cingulate"),
    )
    volumes = {int(row["freesurfer"]): float(row["mm3"]) for row in rows}
    for number, voxels in Counter(parcels[is_parcel].tolist()).items():
        assert volumes[number] == voxels
    names = {
        row["index"]: row["name"] for row in table(tmp_path / "out/parcel_labels.tsv")
    }
    assert names["30102"] == "ctx-rh-anterior-insula"
    assert "3" not in names
    lines = (tmp_path / "out/a_parcels.stats").read_text().splitlines()
    last = lines[-1].split()
    assert last[1:3] == ["30207", str((parcels == 30207).sum())]
    assert last[4] == "ctx-lh-transverse-temporal-gyrus"


def test_a_later_run_without_parcels_leaves_no_table_of_them(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    model = str(with_parcels(tmp_path / "model"))
    out = tmp_path / "out"
    run_serially(scans, out, output=replace(QUICK, parcels=True), model=model)
    assert (out / "parcels.tsv").is_file()
    run_serially(scans, out, model=model)
    assert not (out / "parcels.tsv").exists()
    # The map belongs to the same label map, so it is still valid.
    assert (out / "a_parcels.nii.gz").is_file()


def test_parcels_of_a_bids_dataset_have_names_of_bids(tmp_path: Path) -> None:
    raw = write_scans(tmp_path / "raw", "sub-01/anat/sub-01_T1w.nii.gz")
    output = replace(QUICK, parcels=True)
    model = with_parcels(tmp_path / "model")
    run_serially(raw, tmp_path / "out", output=output, model=str(model))
    anat = tmp_path / "out/sub-01/anat"
    name = "sub-01_space-orig_seg-parcels_dseg"
    assert (anat / f"{name}.nii.gz").is_file()
    sidecar = json.loads((anat / f"{name}.json").read_text())
    assert sidecar["ParcelsModelSHA256"] == sha256_of(model / "parcels/model.yaml")
    assert (tmp_path / "out/seg-parcels_dseg.tsv").is_file()
    (structures,) = find_files(tmp_path / "out")
    assert structures.path.name == "sub-01_space-orig_desc-trinat_dseg.nii.gz"
    (parcels,) = find_files(tmp_path / "out", kind="parcels")
    assert parcels.path.name == f"{name}.nii.gz"
    assert parcels.parsed.entities == structures.parsed.entities


def test_a_model_without_parcels_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    with pytest.raises(ModelError, match="no networks for parcels"):
        run_serially(scans, tmp_path / "out", output=replace(QUICK, parcels=True))
    assert not (tmp_path / "out").exists()


def test_results_with_other_parcels_are_done_again(tmp_path: Path) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    model = with_parcels(tmp_path / "model")
    output = replace(QUICK, parcels=True)
    for done in (1, 0):
        outcome = run_serially(scans, tmp_path / "out", output=output, model=str(model))
        assert (outcome.done, outcome.skipped) == (done, 1 - done)
    edit(model / "parcels", set_key("training", "data", to="other scans"))
    outcome = run_serially(scans, tmp_path / "out", output=output, model=str(model))
    assert outcome.done == 1


def test_results_of_a_head_that_another_model_strips_are_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans = write_scans(tmp_path / "in", "a.nii.gz")
    stripper, model = tmp_path / "stripper", tmp_path / "model"
    for folder in (stripper, model):
        shutil.copytree(overfitted_model(), folder)
    edit(model, set_key("stripped_by", to="fast"))
    monkeypatch.setattr(zoo, "shipped_models", lambda: {"fast": stripper})
    for done in (1, 0):
        outcome = run_serially(scans, tmp_path / "out", model=str(model))
        assert (outcome.done, outcome.skipped) == (done, 1 - done)
    edit(stripper, set_key("training", "data", to="other scans"))
    assert run_serially(scans, tmp_path / "out", model=str(model)).done == 1
