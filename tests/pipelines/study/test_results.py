"""Label maps with the ledger entries that describe them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.ledger import Ledger
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.study.results import Results
from trinat.segmentation.labels import Csf


def write_ledger(folder: Path, entries: Sequence[Entry]) -> None:
    with Ledger(folder / "run.jsonl") as ledger:
        for entry in entries:
            ledger.add(entry)


def test_a_folder_inside_an_output_folder_has_its_own_entries_alone(
    tmp_path: Path,
) -> None:
    entries = [
        Entry(name, "done", outputs={f"{name}/T1_dseg.nii.gz": "0"})
        for name in ("sub-1", "sub-2")
    ]
    write_ledger(tmp_path, entries)
    for place, names in (
        (tmp_path, ["sub-1", "sub-2"]),
        (tmp_path / "sub-2", ["sub-2"]),
        (tmp_path / "sub-1" / "T1_dseg.nii.gz", ["sub-1"]),
    ):
        assert [entry.case for entry in Results(place).entries] == names


@pytest.mark.parametrize(
    ("of_scans", "expected"),
    [
        ((None, None), None),
        ((None, "region"), "region"),
        (("region", "intracranial"), "intracranial"),
    ],
)
def test_csf_is_all_fluid_if_any_model_means_that(
    tmp_path: Path, of_scans: Sequence[Csf | None], expected: Csf | None
) -> None:
    entries = [
        Entry(f"sub-{number}", "done", result=ScanResult(csf=csf))
        for number, csf in enumerate(of_scans)
    ]
    write_ledger(tmp_path, entries)
    assert Results(tmp_path).csf == expected
