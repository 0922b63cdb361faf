"""A study as the page shows it: volumes of structures, label tables, voxels and surfaces."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.refusals import refusal
from helpers.studies import add_callosum, add_lesions, correct_voxel, write_study

from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.study import Study
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import InputError
from trinat.segmentation.io.volume import Volume


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a", "b", "c", "d"])


def test_the_overview_has_each_structures_volumes_in_order(out: Path) -> None:
    structures = {
        x["name"]: x for x in ViewedStudy(out, rater="anna").overview()["structures"]
    }
    # 64, 65, 66 and 67 voxels of 64 mm³; the third scan is rejected, so it is not a reference.
    assert structures["Left-Thalamus"]["volumes"] == [4096, 4160, 4288]
    assert structures["Left-Thalamus"]["count"] == 3
    assert structures["Left-Caudate"]["volumes"] == []


def test_output_folders_in_a_folder_are_listed_with_their_own_tables(
    tmp_path: Path,
) -> None:
    site = write_study(tmp_path / "out/site", ["a"], with_parcels=["a"])
    alone = ViewedStudy(site, rater="anna")
    study = ViewedStudy(site.parent, rater="anna")
    assert [scan.case for scan in study.scans] == ["site/a"]
    assert study.structures == alone.structures
    assert study.layers == alone.layers
    assert list(study.layers) == ["parcels"]


def test_labels_come_as_places_in_the_table_on_axes_that_run_as_ras(out: Path) -> None:
    study = ViewedStudy(out, rater="anna")
    number = [scan.case for scan in study.scans].index("a")
    place = [x.name for x in study.structures].index("Left-Thalamus") + 1
    data = np.frombuffer(Voxels(study).content(number, "labels", 1), np.uint8)
    data = data.reshape((20, 24, 18), order="F")
    assert data[4, 9, 7] == place
    assert (data == place).sum() == 64
    assert (
        np.frombuffer(Voxels(study).content(number, "labels", 2), np.uint8) == place
    ).sum() == 8


def test_another_label_map_comes_on_the_grid_of_the_scan(
    out: Path, tmp_path: Path
) -> None:
    truth = np.zeros((24, 20, 18), np.int16)
    truth[9, 4, 7] = 10  # at (16, 36, 28) mm, as the scan's voxel 4, 9, 7
    axes = np.array([[0.0, 4, 0, 0], [4, 0, 0, 0], [0, 0, 4, 0], [0, 0, 0, 1]])
    (tmp_path / "truth").mkdir()
    Volume(truth, axes).write(tmp_path / "truth" / "a_dseg.nii.gz", labels=True)
    study = ViewedStudy(out, rater="anna", against=tmp_path / "truth")
    number = [scan.case for scan in study.scans].index("a")
    data = np.frombuffer(Voxels(study).content(number, "against", 1), np.uint8)
    data = data.reshape((20, 24, 18), order="F")
    assert (
        data[4, 9, 7] == [x.name for x in study.structures].index("Left-Thalamus") + 1
    )
    assert np.count_nonzero(data) == 1
    others = [scan for scan in study.scans if study.other(scan)]
    assert [scan.case for scan in others] == ["a"]


def test_surfaces_lie_around_their_structures(out: Path) -> None:
    study = ViewedStudy(out, rater="anna")
    number = [scan.case for scan in study.scans].index("a")
    content = Voxels(study).content(number, "surfaces", 1)
    place, points, _ = np.frombuffer(content, "<u4", 3)
    assert study.structures[place - 1].name == "Left-Thalamus"
    vertices = np.frombuffer(content, "<f4", 3 * points, 12).reshape(-1, 3)
    # Voxels 3 to 6 of 4 mm: their faces are at 10 and 26 mm.
    assert vertices[:, 0].min() == pytest.approx(10, abs=1)
    assert vertices[:, 0].max() == pytest.approx(26, abs=1)


def test_of_the_brain_mask_there_is_the_outline(out: Path) -> None:
    study = ViewedStudy(out, rater="anna")
    assert study.detail(study[0])["mask"]
    content = Voxels(study).content(0, "mask", 1)
    outline = np.asarray(nib.Nifti1Image.from_bytes(content).dataobj)
    # The shell of 16 x 20 x 14 voxels.
    assert (outline == 255).sum() == 16 * 20 * 14 - 14 * 18 * 12
    assert outline[2, 10, 8] == 255
    assert outline[10, 10, 8] == 0


def test_a_scan_without_entropy_says_so(out: Path) -> None:
    study = ViewedStudy(out, rater="anna")
    for entry in Study(out).entries:
        kept = {k: v for k, v in entry.outputs.items() if "entropy" not in k}
        with Ledger(out / "run.jsonl") as ledger:
            ledger.add(replace(entry, outputs=kept))
    with refusal(InputError, "c"):
        Voxels(study).content(0, "entropy", 1)


def test_a_thousand_scans_are_listed_without_reading_one(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"])
    (line,) = (out / "run.jsonl").read_text().splitlines()
    entry = json.loads(line)
    lines = [json.dumps({**entry, "case": f"s{n}", "outputs": {}}) for n in range(1000)]
    (out / "run.jsonl").write_text("\n".join(lines) + "\n")
    overview = ViewedStudy(out, rater="anna").overview()
    assert len(overview["scans"]) == 1000
    assert len(overview["structures"][0]["volumes"]) <= 101
    assert len(json.dumps(overview)) < 400_000


def test_parcels_of_scans_that_have_a_map_of_them_are_listed(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b", "d"], with_parcels=["a", "b"])
    overview = ViewedStudy(out, rater="anna").overview()
    assert {scan["name"]: scan["layers"] for scan in overview["scans"]} == {
        "a": ["parcels"],
        "b": ["parcels"],
        "d": [],
    }
    parcels = {row["name"]: row for row in overview["layers"]["parcels"]}
    assert parcels["ctx-lh-insula"]["number"] == 1035
    # The volumes of both scans; structures besides the cortex are in the same map.
    assert parcels["ctx-lh-insula"]["volumes"] == [32 * 64.0] * 2
    assert parcels["Right-Thalamus"]["count"] == 2
    assert "Left-Cerebral-Cortex" not in parcels
    assert "ctx-lh-insula" not in {row["name"] for row in overview["structures"]}


def test_without_maps_of_parcels_none_are_listed(out: Path) -> None:
    assert ViewedStudy(out, rater="anna").overview()["layers"] == {}


def test_a_map_of_parcels_is_shown_by_the_places_of_its_own_table(
    tmp_path: Path,
) -> None:
    out = write_study(tmp_path / "out", ["a"], with_parcels=["a"])
    study = ViewedStudy(out, rater="anna")
    voxels = Voxels(study)
    content = voxels.content(0, "parcels", 1)
    places = np.frombuffer(content, np.uint8).reshape((20, 24, 18), order="F")
    names = [parcel.name for parcel in study.layers["parcels"]]
    assert (places == names.index("ctx-lh-insula") + 1).sum() == 32
    assert (places == names.index("ctx-lh-cuneus") + 1).sum() == 16
    assert (places == names.index("Right-Thalamus") + 1).sum() == 27
    # The map of structures has cortex there, and no parcels.
    own = np.frombuffer(voxels.content(0, "labels", 1), np.uint8)
    cortex = [structure.name for structure in study.structures].index(
        "Left-Cerebral-Cortex"
    )
    assert (own == cortex + 1).sum() == 48
    assert voxels.content(0, "parcels-surfaces", 1) != voxels.content(0, "surfaces", 1)


def test_the_corpus_callosum_is_a_layer_with_its_own_table(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a"])
    add_callosum(out, "a")
    study = ViewedStudy(out, rater="anna")
    assert study.overview()["scans"][0]["layers"] == ["callosum"]
    content = Voxels(study).content(0, "callosum", 1)
    places = np.frombuffer(content, np.uint8)
    names = [structure.name for structure in study.layers["callosum"]]
    assert (places == names.index("CC_Posterior") + 1).sum() == 8
    assert (places == names.index("CC_Anterior") + 1).sum() == 4
    assert Voxels(study).content(0, "callosum-surfaces", 1)


def test_lesions_are_a_layer_of_one_structure(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b"])
    add_lesions(out, "a")
    study = ViewedStudy(out, rater="anna")
    scans = {row["name"]: row for row in study.overview()["scans"]}
    assert (scans["a"]["layers"], scans["b"]["layers"]) == (["lesions"], [])
    (row,) = study.overview()["layers"]["lesions"]
    assert (row["name"], row["volumes"]) == ("White-matter-lesions", [320])
    content = Voxels(study).content(int(scans["a"]["number"]), "lesions", 1)
    assert np.bincount(np.frombuffer(content, np.uint8))[1:].tolist() == [5]


def test_a_scan_without_a_map_of_parcels_has_none_to_show(out: Path) -> None:
    with refusal(InputError, "c"):
        Voxels(ViewedStudy(out, rater="anna")).content(0, "parcels", 1)


def test_a_rating_is_changed_and_withdrawn_whatever_the_names(tmp_path: Path) -> None:
    name = "sub\u00a01"
    labels = np.zeros((4, 4, 4), np.int16)
    labels[1:3, 1:3, 1:3] = 10
    (tmp_path / "maps").mkdir()
    Volume(labels, np.eye(4)).write(tmp_path / "maps" / f"{name}.nii.gz", labels=True)
    study = ViewedStudy(tmp_path / "maps", rater="anna\tB.")
    (scan,) = study.scans
    sha256 = study.detail(scan)["sha256"]
    for verdict in ("pass", "look"):
        study.rate(scan, "", verdict, "", sha256)
        (row,) = study.scan_rows(study.ratings())
        assert row["rating"]["rating"] == verdict
        (rating,) = study.detail(scan)["ratings"]
        assert (rating["mine"], rating["stale"]) == (True, False)
    study.rate(scan, "", "", "", sha256)
    assert study.ratings() == []


def test_raters_agree_on_maps_as_they_are_now(out: Path) -> None:
    studies = [ViewedStudy(out, rater=rater) for rater in ("anna", "bert")]
    for study in studies:
        for scan in study.scans:
            sha256 = str(study.detail(scan)["sha256"])
            study.rate(scan, "", "pass", "", sha256)
    (row,) = studies[0].raters()
    rated = len(studies[0].scans)
    assert row["rated_by_both"] == rated
    result = studies[0].scans[0].labels
    assert result is not None
    correct_voxel(result, (0, 0, 0), 10, "Left-Thalamus")
    (row,) = studies[0].raters()
    assert row["rated_by_both"] == rated - 1
