"""A results folder as the page lists it: uncertain scans first, only files of the folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.files import touch
from helpers.refusals import refusal
from helpers.studies import add_callosum, write_study

from trinat.pipelines.predict.tables import write_tables
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult, TimePoint
from trinat.pipelines.study.results import Results
from trinat.pipelines.study.study import Study
from trinat.pipelines.view.voxels import Voxels
from trinat.segmentation.errors import ConfigError, InputError, IntegrityError
from trinat.segmentation.io.volume import Volume


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_study(tmp_path / "out", ["a", "b", "c", "d"])


def test_the_doubtful_come_first_and_among_equals_those_whose_views_agree_least(
    out: Path,
) -> None:
    # Grades go pass, look, reject, pass; agreement falls from a to d.
    assert [scan.case for scan in Study(out, "anna").scans] == ["c", "b", "d", "a"]


def participants_in(folder: Path, entries: Sequence[Entry]) -> list[str]:
    with Ledger(folder / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)
    return [scan.participant for scan in Study(folder, "anna").scans]


def test_sessions_are_of_one_participant_and_folders_tell_participants_apart(
    tmp_path: Path,
) -> None:
    names = ("OAS1_0001_MR1", "OAS1_0001_MR2", "a/sub-01_T1w", "b/sub-01_T1w", "other")
    participants = ["OAS1_0001", "OAS1_0001", "a/sub-01", "b/sub-01", "other"]
    assert (
        participants_in(tmp_path, [Entry(name, "done") for name in names])
        == participants
    )


def test_sessions_that_were_segmented_together_are_of_one_participant(
    tmp_path: Path,
) -> None:
    together = ScanResult(longitudinal=TimePoint(participant="anna", volumes_mm3={}))
    entries = [
        Entry("other", "done"),
        Entry("visit-a", "done", result=together),
        Entry("visit-b", "done", result=together),
    ]
    assert participants_in(tmp_path, entries) == ["other", "anna", "anna"]


def test_the_page_of_a_batch_and_the_viewer_have_one_order_of_doubt(
    tmp_path: Path,
) -> None:
    entries = [
        Entry("passes", "done", result=ScanResult(grade="pass", mean_agreement=0.1)),
        Entry("without-grade", "done"),
        Entry("look-10", "done", result=ScanResult(grade="look")),
        Entry("look-9", "done", result=ScanResult(grade="look")),
        Entry(
            "look-apart", "done", result=ScanResult(grade="look", mean_agreement=0.7)
        ),
        Entry("rejected", "done", result=ScanResult(grade="reject")),
        Entry("failed", "failed", reason="no head"),
    ]
    names = [
        "failed",
        "rejected",
        "look-apart",
        "look-9",
        "look-10",
        "without-grade",
        "passes",
    ]
    with Ledger(tmp_path / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)
    assert [scan.case for scan in Study(tmp_path, "anna").scans] == names
    write_tables(tmp_path, entries)
    page = (tmp_path / "report.html").read_text()
    rows = page[page.index('id="scan-table"') :]
    assert sorted(names, key=rows.index) == names


def test_the_overview_has_each_structures_volumes_in_order(out: Path) -> None:
    structures = {x["name"]: x for x in Study(out, "anna").overview()["structures"]}
    # 64, 65, 66 and 67 voxels of 64 mm³; the third scan is rejected, so it is not a reference.
    assert structures["Left-Thalamus"]["volumes"] == [4096, 4160, 4288]
    assert structures["Left-Thalamus"]["count"] == 3
    assert structures["Left-Caudate"]["volumes"] == []


def test_the_scan_is_found_where_predict_read_it_or_among_the_images_named(
    out: Path, tmp_path: Path
) -> None:
    study = Study(out, "anna")
    (scan,) = [scan for scan in study.scans if scan.case == "c"]
    there = study.image(scan)
    assert there is not None
    assert there.resolve() == tmp_path / "scans" / "scan2.nii.gz"
    (tmp_path / "scans").rename(tmp_path / "moved")
    assert study.image(scan) is None
    moved = Study(out, "anna", images=tmp_path / "moved")
    assert moved.image(scan) == tmp_path / "moved" / "scan2.nii.gz"


def test_other_label_maps_of_scans_of_one_name_are_found_by_their_folders(
    tmp_path: Path,
) -> None:
    maps = ["anna/T1_dseg.nii.gz", "bob/T1_dseg.nii.gz"]
    out = touch(tmp_path / "out", *maps)
    manual = touch(tmp_path / "manual", *maps)
    with Ledger(out / "run.jsonl") as ledger:
        for name in maps:
            case = name.removesuffix("_dseg.nii.gz")
            ledger.add(Entry(case, "done", f"{case}.nii.gz", outputs={name: "0"}))
    study = Study(out, "anna", against=manual)
    assert [study.other(scan) for scan in study.scans] == [
        manual / name for name in maps
    ]


def test_a_ledger_that_names_a_file_outside_the_folder_is_refused(out: Path) -> None:
    (out.parent / "secret_dseg.nii.gz").write_bytes(b"secret")
    ledger = out / "run.jsonl"
    line = json.loads(ledger.read_text().splitlines()[-1])
    line["outputs"] = {"../secret_dseg.nii.gz": "0"}
    ledger.write_text(ledger.read_text() + json.dumps(line) + "\n")
    with refusal(IntegrityError, ledger):
        _ = Study(out, "anna").scans


def test_label_maps_without_a_ledger_are_listed_too(out: Path) -> None:
    (out / "run.jsonl").unlink()
    study = Study(out, "anna")
    assert sorted(scan.case for scan in study.scans) == ["a", "b", "c", "d"]


def test_output_folders_in_a_folder_are_listed_with_their_own_tables(
    tmp_path: Path,
) -> None:
    site = write_study(tmp_path / "out/site", ["a"], with_parcels=["a"])
    alone = Study(site, "anna")
    study = Study(site.parent, "anna")
    assert [scan.case for scan in study.scans] == ["site/a"]
    assert study.structures == alone.structures
    assert study.layers == alone.layers
    assert list(study.layers) == ["parcels"]


def test_a_folder_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with refusal(ConfigError, tmp_path / "nowhere", remedy="--out"):
        _ = Study(tmp_path / "nowhere", "anna").scans


def test_labels_come_as_places_in_the_table_on_axes_that_run_as_ras(out: Path) -> None:
    study = Study(out, "anna")
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
    study = Study(out, "anna", against=tmp_path / "truth")
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
    study = Study(out, "anna")
    number = [scan.case for scan in study.scans].index("a")
    content = Voxels(study).content(number, "surfaces", 1)
    place, points, _ = np.frombuffer(content, "<u4", 3)
    assert study.structures[place - 1].name == "Left-Thalamus"
    vertices = np.frombuffer(content, "<f4", 3 * points, 12).reshape(-1, 3)
    # Voxels 3 to 6 of 4 mm: their faces are at 10 and 26 mm.
    assert vertices[:, 0].min() == pytest.approx(10, abs=1)
    assert vertices[:, 0].max() == pytest.approx(26, abs=1)


def test_of_the_brain_mask_there_is_the_outline(out: Path) -> None:
    study = Study(out, "anna")
    assert study.detail(study[0])["mask"]
    content = Voxels(study).content(0, "mask", 1)
    outline = np.asarray(nib.Nifti1Image.from_bytes(content).dataobj)
    # The shell of 16 x 20 x 14 voxels.
    assert (outline == 255).sum() == 16 * 20 * 14 - 14 * 18 * 12
    assert outline[2, 10, 8] == 255
    assert outline[10, 10, 8] == 0


def test_a_scan_without_entropy_says_so(out: Path) -> None:
    study = Study(out, "anna")
    for entry in Results(out).entries:
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
    overview = Study(out, "anna").overview()
    assert len(overview["scans"]) == 1000
    assert len(overview["structures"][0]["volumes"]) <= 101
    assert len(json.dumps(overview)) < 400_000


def test_parcels_of_scans_that_have_a_map_of_them_are_listed(tmp_path: Path) -> None:
    out = write_study(tmp_path / "out", ["a", "b", "d"], with_parcels=["a", "b"])
    overview = Study(out, "anna").overview()
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
    assert Study(out, "anna").overview()["layers"] == {}


def test_a_map_of_parcels_is_shown_by_the_places_of_its_own_table(
    tmp_path: Path,
) -> None:
    out = write_study(tmp_path / "out", ["a"], with_parcels=["a"])
    study = Study(out, "anna")
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
    study = Study(out, "anna")
    assert study.overview()["scans"][0]["layers"] == ["callosum"]
    content = Voxels(study).content(0, "callosum", 1)
    places = np.frombuffer(content, np.uint8)
    names = [structure.name for structure in study.layers["callosum"]]
    assert (places == names.index("CC_Posterior") + 1).sum() == 8
    assert (places == names.index("CC_Anterior") + 1).sum() == 4
    assert Voxels(study).content(0, "callosum-surfaces", 1)


def test_a_scan_without_a_map_of_parcels_has_none_to_show(out: Path) -> None:
    with refusal(InputError, "c"):
        Voxels(Study(out, "anna")).content(0, "parcels", 1)
