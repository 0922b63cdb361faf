"""trinat next: the scans of a results folder to correct first, by its ledger."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from helpers.commands import trinat
from helpers.refusals import refusal
from helpers.studies import write_study

from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.next_scans import features_of, likeness, propose
from trinat.pipelines.study.record import ScanResult
from trinat.segmentation.errors import EvaluationError

# Similarity of three equal scans and two that resemble no other.
ALIKE = np.eye(5)
ALIKE[:3, :3] = 1
PARTICIPANTS = ("a", "b", "c", "d", "e")


def scan(volumes: dict[str, float], agreement: dict[str, float | None]) -> ScanFile:
    result = ScanResult(volumes_mm3=volumes, agreement=agreement)
    return ScanFile("scan", Path(), "scan", entry=Entry("scan", "done", result=result))


def test_scans_are_compared_by_logarithms_of_volumes_and_by_agreements() -> None:
    scans = [
        scan({"Thalamus": np.e, "Caudate": 0.0}, {"Thalamus": 0.9}),
        scan({"Thalamus": 1.0}, {"Thalamus": None}),
    ]
    # Caudate, which no scan has, thalamus, and the agreement on it.
    expected = [[np.nan, 1.0, 0.9], [np.nan, 0.0, np.nan]]
    np.testing.assert_allclose(features_of(scans), expected)


def test_corrected_scans_and_second_scans_of_their_participants_are_not_listed(
    tmp_path: Path,
) -> None:
    names = ("sub-01_ses-1_T1w", "sub-01_ses-2_T1w", "sub-02_T1w", "sub-03_T1w")
    results = write_study(tmp_path / "results", names)
    said = json.loads(trinat("next", results, "--json"))
    assert said["corrected"] == 0
    assert sorted(scan["participant"] for scan in said["next"]) == [
        "sub-01",
        "sub-02",
        "sub-03",
    ]
    assert said["next"][0].keys() == {
        "scan",
        "participant",
        "grade",
        "agreement",
        "share",
    }

    copyfile(
        results / "sub-01_ses-1_T1w_dseg.nii.gz",
        results / "sub-01_ses-1_T1w_desc-corrected_dseg.nii.gz",
    )
    said = json.loads(trinat("next", results, "--json"))
    assert said["corrected"] == 1
    assert {scan["participant"] for scan in said["next"]} == {"sub-02", "sub-03"}
    lines = trinat("next", results, "--count", 1).splitlines()
    assert lines[0] == "1 corrected; to correct next:"
    assert len(lines) == 2

    # The same with an imported label map.
    (tmp_path / "manual").mkdir()
    copyfile(
        results / "sub-02_T1w_dseg.nii.gz", tmp_path / "manual/sub-02_T1w_dseg.nii.gz"
    )
    said = json.loads(
        trinat("next", results, "--labels", tmp_path / "manual", "--json")
    )
    assert said["corrected"] == 2
    assert [scan["participant"] for scan in said["next"]] == ["sub-03"]


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    results = write_study(tmp_path / "results", ["sub-01_T1w"])
    ledger = results / "run.jsonl"
    lines = ledger.read_text().replace('"status": "done"', '"status": "failed"')
    ledger.write_text(lines.replace('"status":"done"', '"status":"failed"'))
    with refusal(EvaluationError, results):
        trinat("next", results)


def chosen(
    doubts: list[float],
    corrected: tuple[int, ...] = (),
    participants: tuple[str, ...] = PARTICIPANTS,
) -> list[int]:
    proposals = propose(ALIKE, np.array(doubts), participants, corrected, 3)
    return [proposal.scan for proposal in proposals]


def test_the_scan_that_is_like_most_others_comes_first_and_then_what_it_does_not_teach() -> (
    None
):
    assert chosen([0.1, 0.1, 0.1, 0.1, 0.2]) == [0, 4, 3]


def test_much_doubt_in_one_scan_counts_more_than_many_scans_without() -> None:
    assert chosen([0.01, 0.01, 0.01, 0.5, 0.1]) == [3, 4, 0]


def test_what_is_like_a_corrected_scan_is_taught_already() -> None:
    # Only the uncertainty of 3 and 4 remains; then none does, and the next participant follows.
    assert chosen([0.4, 0.4, 0.4, 0.1, 0.2], corrected=(1,)) == [4, 3, 0]


def test_no_participant_comes_twice() -> None:
    participants = ("a", "a", "a", "d", "d")
    assert chosen([0.1, 0.1, 0.1, 0.1, 0.2], participants=participants) == [0, 4]
    assert chosen([0.1] * 5, corrected=(3,), participants=participants) == [0]


def test_shares_are_of_all_doubt() -> None:
    doubts = np.array([0.1, 0.1, 0.1, 0.1, 0.2])
    proposals = propose(ALIKE, doubts, PARTICIPANTS, (), 2)
    assert [proposal.share for proposal in proposals] == pytest.approx([0.5, 1 / 3])
    assert propose(ALIKE, np.zeros(5), PARTICIPANTS, (), 1)[0].share == 0


def test_likeness_falls_with_the_distance_in_units_of_what_is_usual() -> None:
    # 0, 1 and 2 on a line, in any unit: squared distances 1, 1 and 4, whose median is 1.
    features = np.array([[0.0], [30.0], [60.0]])
    near = np.exp(-0.5)
    far = np.exp(-2)
    expected = [[1, near, far], [near, 1, near], [far, near, 1]]
    np.testing.assert_allclose(likeness(features), expected)
    # Features that are constant, or unknown for a scan, do not separate scans.
    more = np.column_stack([features, np.full(3, 7.0), [np.nan] * 3])
    np.testing.assert_allclose(likeness(more), expected)
    np.testing.assert_array_equal(likeness(np.ones((2, 3))), np.ones((2, 2)))
    np.testing.assert_array_equal(likeness(np.empty((1, 0))), [[1.0]])
