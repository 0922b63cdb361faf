"""trinat predict --longitudinal: participants, their scans, and the outcome of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.lesions import save_lesion_network
from helpers.overfitted import miniature, overfitted_model, with_parcels
from helpers.serial import QUICK, run_serially, table, write_scans
from helpers.sessions import head_of, pose_of, session_of
from scipy import ndimage

from trinat.pipelines.predict.case_in_progress import failed_entries
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Work
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger, read_entries
from trinat.pipelines.study.record import ScanResult, TimePoint
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.volume import Volume

TOGETHER = replace(QUICK, longitudinal=True)
POSES = {"MR1": np.eye(4), "MR2": pose_of(5, 2), "MR3": pose_of(-4, 1)}


def write(folder: Path, *sessions: str, participant: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    for number, session in enumerate(sessions):
        scan = session_of(head_of(participant), POSES[session], seed=number)
        scan.write(folder / f"P{participant}_{session}.nii.gz")


def entries(out: Path) -> dict[str, Entry]:
    return read_entries([out / "run.jsonl"])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Segment a participant with two good scans and a broken one, and one with a single scan."""
    root = tmp_path_factory.mktemp("study")
    scans = root / "in"
    write(scans, "MR1", "MR2")
    write(scans, "MR1", participant=1)
    (scans / "P0_MR3.nii.gz").write_bytes(b"no scan")
    # A model with random weights is rejected as a whole.
    run_serially(scans, root / "out", output=TOGETHER, excluded=())
    return scans, root / "out"


@pytest.mark.slow
@pytest.mark.important
def test_a_broken_time_point_does_not_take_the_others(study) -> None:
    found = entries(study[1])
    assert found["P0_MR3"].status == "failed"
    assert found["P0_MR3"].reason.startswith("not gzip")
    for case in ("P0_MR1", "P0_MR2"):
        assert found[case].status == "done"
        assert list(found[case].result.longitudinal.scans) == ["P0_MR1", "P0_MR2"]


@pytest.mark.slow
@pytest.mark.important
def test_a_broken_time_point_does_not_make_the_others_again(study) -> None:
    scans, out = study
    outcome = run_serially(scans, out, output=TOGETHER, excluded=())
    assert (outcome.done, outcome.skipped, outcome.failed) == (0, 3, 1)


def test_a_scan_beside_a_broken_one_is_made_again_if_that_has_changed(
    tmp_path: Path,
) -> None:
    scans, out = write_scans(tmp_path / "in", "P0_MR1.nii.gz"), tmp_path / "out"
    broken = scans / "P0_MR2.nii.gz"
    broken.write_bytes(b"no scan")
    for done, skipped in ((1, 0), (0, 1)):
        outcome = run_serially(scans, out, output=TOGETHER)
        assert (outcome.done, outcome.skipped, outcome.failed) == (done, skipped, 1)
    broken.write_bytes(b"no scan either")
    assert run_serially(scans, out, output=TOGETHER).done == 1


@pytest.mark.slow
@pytest.mark.important
def test_a_single_scan_is_segmented_by_itself_and_says_so(study) -> None:
    result = entries(study[1])["P1_MR1"].result
    assert result.longitudinal is None
    assert result.notes[-1].startswith("segmented alone")


@pytest.mark.slow
@pytest.mark.important
def test_changes_have_a_row_for_each_structure_of_each_participant(study) -> None:
    changes = table(study[1] / "changes.tsv")
    assert {row["participant"] for row in changes} == {"P0"}
    assert len({row["structure"] for row in changes}) == len(changes) > 1
    points = table(study[1] / "timepoints.tsv")
    assert [row["case"] for row in points] == ["P0_MR1", "P0_MR2"]
    assert "Changes between scans" in (study[1] / "changes.html").read_text()


@pytest.mark.slow
def test_the_cortex_of_all_scans_has_parcels(tmp_path: Path) -> None:
    write(tmp_path / "in", "MR1", "MR2")
    model = with_parcels(tmp_path / "model", "neuromorphometrics49")
    output = replace(TOGETHER, parcels=True)
    out = tmp_path / "out"
    run_serially(tmp_path / "in", out, output=output, model=str(model), excluded=())
    for case in ("P0_MR1", "P0_MR2"):
        labels = np.asarray(nib.load(out / f"{case}_dseg.nii.gz").dataobj)
        parcels = np.asarray(nib.load(out / f"{case}_parcels.nii.gz").dataobj)
        np.testing.assert_array_equal(parcels >= 30100, np.isin(labels, (3, 42)))
    rows = table(out / "parcels.tsv")
    assert [row["case"] for row in rows] == ["P0_MR1"] * 98 + ["P0_MR2"] * 98


@pytest.mark.slow
@pytest.mark.important
def test_a_lesion_of_the_second_scan_is_new(tmp_path: Path) -> None:
    head, truth = miniature()
    # A dark ball in the middle of the white matter.
    white = ndimage.distance_transform_edt(np.isin(truth.data, (2, 41)))
    middle = np.unravel_index(white.argmax(), white.shape)
    offsets = np.indices(white.shape) - np.reshape(middle, (3, 1, 1, 1))
    dark = np.where((offsets**2).sum(0) <= 9, 0.5 * head.data, head.data)
    later = Volume(dark.astype(np.float32), head.affine)
    scans = tmp_path / "in"
    scans.mkdir()
    session_of(head, POSES["MR1"]).write(scans / "P0_MR1.nii.gz")
    session_of(later, POSES["MR2"], seed=1).write(scans / "P0_MR2.nii.gz")
    model = tmp_path / "model"
    shutil.copytree(overfitted_model(), model)
    save_lesion_network(model, brighter=0.25)
    out = tmp_path / "out"
    output = replace(TOGETHER, lesions=True)
    run_serially(scans, out, output=output, model=str(model), excluded=())
    rows = table(out / "lesions_over_time.tsv")
    place = POSES["MR2"] @ head.affine @ [*middle, 1]
    new = [row for row in rows if row["change"] == "new"]
    centres = [[float(row[f"{axis}_mm"]) for axis in "xyz"] for row in new]
    apart_mm = np.linalg.norm(np.array(centres) - place[:3], axis=1)
    assert apart_mm.min() < 2
    found = new[int(apart_mm.argmin())]
    assert found["beyond_noise"] == "yes"
    # Each lesion of a scan is in one row.
    for case, column in (("P0_MR1", "previous_mm3"), ("P0_MR2", "mm3")):
        listed = sum(float(row["mm3"]) for row in table(out / f"{case}_lesions.tsv"))
        assert sum(float(row[column]) for row in rows) == pytest.approx(listed, abs=1)


@pytest.mark.slow
@pytest.mark.important
def test_the_order_of_the_scans_changes_no_byte(tmp_path: Path) -> None:
    write(tmp_path / "in", "MR1", "MR2")
    (tmp_path / "other").mkdir()
    # The order of the names is different.
    for old, new in (("MR1", "MR2"), ("MR2", "MR1")):
        source = tmp_path / "in" / f"P0_{old}.nii.gz"
        shutil.copy(source, tmp_path / "other" / f"P0_{new}.nii.gz")
    for name in ("in", "other"):
        run_serially(tmp_path / name, tmp_path / f"out-{name}", output=TOGETHER)
    for old, new in (("MR1", "MR2"), ("MR2", "MR1")):
        one = tmp_path / "out-in" / f"P0_{old}_dseg.nii.gz"
        other = tmp_path / "out-other" / f"P0_{new}_dseg.nii.gz"
        assert sha256_of(one) == sha256_of(other)


@pytest.mark.slow
@pytest.mark.important
def test_nothing_is_done_twice_and_a_new_time_point_does_all(tmp_path: Path) -> None:
    scans, out = tmp_path / "in", tmp_path / "out"
    write(scans, "MR1", "MR2")
    assert run_serially(scans, out, output=TOGETHER).done == 2
    assert run_serially(scans, out, output=TOGETHER).skipped == 2
    (dropped,) = scans.glob("*MR1*")
    dropped.unlink()
    dropped.symlink_to("nowhere")
    assert run_serially(scans, out, output=TOGETHER).skipped == 2
    dropped.unlink()
    write(scans, "MR1", "MR2", "MR3")
    outcome = run_serially(scans, out, output=TOGETHER)
    assert (outcome.done, outcome.skipped) == (3, 0)
    assert len(table(out / "timepoints.tsv")) == 3


def test_earlier_scans_that_are_not_given_are_named(tmp_path: Path, logged) -> None:
    old, new = write_scans(tmp_path / "old", "P0_MR1.nii.gz"), tmp_path / "new"
    write_scans(new, "P0_MR2.nii.gz", "P1_MR2.nii.gz")
    out = tmp_path / "out"
    out.mkdir()
    with Ledger(out / "run.jsonl") as ledger:
        point = TimePoint(participant="P0", volumes_mm3={})
        ledger.add(
            Entry(
                "P0_MR1",
                "done",
                scan="../old/P0_MR1.nii.gz",
                model="m",
                result=ScanResult(longitudinal=point),
            )
        )
    run_serially(new, out, output=TOGETHER)
    (warning,) = [text for text in logged.messages if "not given" in text]
    assert "P0_MR1" in warning
    logged.clear()
    (old / "P0_MR1.nii.gz").unlink()
    run_serially(new, out, output=TOGETHER)
    assert not any("not given" in text for text in logged.messages)


def test_scans_of_different_heads_are_refused_in_one_line(tmp_path: Path) -> None:
    scans = tmp_path / "in"
    write(scans, "MR1")
    session_of(head_of(1), pose_of(5, 2)).write(scans / "P0_MR2.nii.gz")
    outcome = run_serially(scans, tmp_path / "out", output=TOGETHER)
    assert (outcome.done, outcome.failed) == (0, 2)
    reason = entries(tmp_path / "out")["P0_MR2"].reason
    assert reason.startswith("does not show the same head as P0_MR1")


def test_a_refused_scan_names_one_that_shows_another_head(tmp_path: Path) -> None:
    scans = tmp_path / "in"
    scans.mkdir()
    for number, participant in enumerate((0, 0, 1, 1), start=1):
        session = session_of(head_of(participant), pose_of(2 * number, 1), seed=number)
        session.write(scans / f"P0_MR{number}.nii.gz")
    outcome = run_serially(scans, tmp_path / "out", output=TOGETHER)
    assert outcome.failed == 4
    for case, other in (("P0_MR1", "P0_MR3"), ("P0_MR4", "P0_MR1")):
        reason = entries(tmp_path / "out")[case].reason
        assert reason.startswith(f"does not show the same head as {other}")


@pytest.mark.slow
@pytest.mark.important
def test_tables_of_changes_go_with_the_results_that_they_are_of(tmp_path: Path) -> None:
    write(tmp_path / "in", "MR1", "MR2")
    out = tmp_path / "out"
    run_serially(tmp_path / "in", out, output=TOGETHER)
    run_serially(tmp_path / "in", out, output=QUICK)
    assert not (out / "changes.tsv").exists()
    assert not (out / "changes.html").exists()


@pytest.mark.slow
def test_label_maps_name_all_scans_that_they_were_made_of(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    (raw / "sub-1").mkdir(parents=True)
    (raw / "dataset_description.json").write_text("{}")
    sources = []
    for number, pose in enumerate((POSES["MR1"], POSES["MR2"]), start=1):
        name = f"sub-1/ses-{number}/anat/sub-1_ses-{number}_T1w.nii.gz"
        (raw / name).parent.mkdir(parents=True)
        session_of(head_of(0), pose, seed=number).write(raw / name)
        sources.append(f"bids:raw:{name}")
    run_serially(raw, tmp_path / "out", output=TOGETHER, excluded=())
    sidecars = sorted((tmp_path / "out").rglob("*_dseg.json"))
    said = [json.loads(path.read_text()) for path in sidecars]
    assert [one["Sources"] for one in said] == [sources, sources]
    assert [one["SpatialReference"] for one in said] == sources


class _AllFail:
    """An engine in which each participant fails as a whole, as when a process dies."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def run(
        self, cases: Iterator[Work], stop: Callable[[], bool]
    ) -> Iterator[list[Entry]]:
        for case in cases:
            yield failed_entries(case, self.settings, "its process died")


def test_a_scan_that_cannot_be_taken_keeps_its_reason_where_its_participant_fails(
    tmp_path: Path,
) -> None:
    scans = write_scans(tmp_path / "in", "P0_MR1.nii", "P0_MR2.nii.gz", "P0_MR3.nii.gz")
    outcome = run_serially(
        scans,
        tmp_path / "out",
        output=TOGETHER,
        require_checksum=True,
        engine=_AllFail,
    )
    reasons = {case: entry.reason for case, entry in entries(tmp_path / "out").items()}
    assert "has no checksum" in reasons["P0_MR1"]
    assert reasons["P0_MR2"] == reasons["P0_MR3"] == "its process died"
    assert outcome.failed == 3
