"""trinat next: which scans of a folder of results to correct, by its ledger."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest
from helpers.commands import trinat
from helpers.studies import write_study

from trinat.pipelines.learn.order import features_of
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.web.study import Item
from trinat.segmentation.errors import EvaluationError


def item(volumes: dict[str, float], agreement: dict[str, float | None]) -> Item:
    result = {"volumes_mm3": volumes, "agreement": agreement}
    return Item("scan", Path(), Entry("scan", "done", result=result), None)


def test_scans_are_compared_by_logarithms_of_volumes_and_by_agreements() -> None:
    items = [
        item({"Thalamus": np.e, "Caudate": 0.0}, {"Thalamus": 0.9}),
        item({"Thalamus": 1.0}, {"Thalamus": None}),
    ]
    # Caudate, which nobody has, thalamus, and the agreement on it.
    expected = [[np.nan, 1.0, 0.9], [np.nan, 0.0, np.nan]]
    np.testing.assert_allclose(features_of(items), expected)


def test_corrected_scans_and_second_scans_of_their_persons_are_not_listed(
    tmp_path: Path,
) -> None:
    names = ("sub-01_ses-1_T1w", "sub-01_ses-2_T1w", "sub-02_T1w", "sub-03_T1w")
    results = write_study(tmp_path / "results", names)
    said = json.loads(trinat("next", results, "--json"))
    assert said["corrected"] == 0
    assert sorted(scan["person"] for scan in said["next"]) == [
        "sub-01",
        "sub-02",
        "sub-03",
    ]
    assert said["next"][0].keys() == {"scan", "person", "grade", "agreement", "share"}

    copyfile(
        results / "sub-01_ses-1_T1w_dseg.nii.gz",
        results / "sub-01_ses-1_T1w_desc-corrected_dseg.nii.gz",
    )
    said = json.loads(trinat("next", results, "--json"))
    assert said["corrected"] == 1
    assert {scan["person"] for scan in said["next"]} == {"sub-02", "sub-03"}
    lines = trinat("next", results, "--count", 1).splitlines()
    assert lines[0] == "1 corrected; to correct next:"
    assert len(lines) == 2

    # The same by a label map from elsewhere.
    (tmp_path / "manual").mkdir()
    copyfile(
        results / "sub-02_T1w_dseg.nii.gz", tmp_path / "manual/sub-02_T1w_dseg.nii.gz"
    )
    said = json.loads(
        trinat("next", results, "--labels", tmp_path / "manual", "--json")
    )
    assert said["corrected"] == 2
    assert [scan["person"] for scan in said["next"]] == ["sub-03"]


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    results = write_study(tmp_path / "results", ["sub-01_T1w"])
    ledger = results / "run.jsonl"
    lines = ledger.read_text().replace('"status": "done"', '"status": "failed"')
    ledger.write_text(lines.replace('"status":"done"', '"status":"failed"'))
    with pytest.raises(EvaluationError, match="no scan has a result here"):
        trinat("next", results)
