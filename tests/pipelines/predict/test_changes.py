"""Tables of changes, from what the ledger says of each scan."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from trinat.pipelines.predict.changes import write_changes
from trinat.pipelines.predict.entry import Entry


def scan(case: str, mm3: float, year: float | None) -> Entry:
    fact = {
        "person": "anna",
        "group": "",
        "year": year,
        "volumes_mm3": {"Brain-Stem": mm3},
    }
    return Entry(case, "done", result={"model": "own", "longitudinal": fact})


def volumes(folder: Path, *scans: Entry) -> tuple[str, str]:
    """First and last volume that changes.tsv has of the one structure."""
    assert write_changes(folder, scans)
    (row,) = csv.DictReader(
        (folder / "changes.tsv").read_text().splitlines(), delimiter="\t"
    )
    return row["first_mm3"], row["last_mm3"]


@pytest.mark.parametrize(
    ("years", "first_and_last"),
    [
        ((2022, 2021, 2020), ("3.0", "1.0")),
        ((None, None, None), ("1.0", "3.0")),
        # A scan without a time has no place among the others.
        ((2022, None, 2020), ("1.0", "3.0")),
    ],
)
def test_scans_are_in_the_order_of_time_or_else_of_their_names(
    tmp_path: Path, years, first_and_last
) -> None:
    scans = [
        scan(f"visit-{n}", float(n), year) for n, year in enumerate(years, start=1)
    ]
    assert volumes(tmp_path, *scans) == first_and_last


def test_structures_that_no_scan_has_do_not_stop_the_run(tmp_path: Path) -> None:
    assert write_changes(tmp_path, [scan("a", 0, 1.0), scan("b", 0, 2.0)])
    assert len((tmp_path / "changes.tsv").read_text().splitlines()) == 1
