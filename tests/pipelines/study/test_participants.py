"""Matching of scans to the rows of a participants table, by name."""

from __future__ import annotations

import pytest

from trinat.pipelines.study.participants import Facts, Named, ParticipantsTable


def table_of(ages: dict[str, float]) -> ParticipantsTable:
    """Return participants with these names and ages."""
    return ParticipantsTable({name: Facts(age=age) for name, age in ages.items()}, {})


def matches(rows: list[str], scans: list[str]) -> dict[str, str]:
    """Return the row of each scan, whose participant has the scan's name."""
    participants_table = table_of(dict.fromkeys(rows, 61))
    found = participants_table.match({(scan, scan): () for scan in scans})
    return {scan: row for (scan, _), row in found.rows.items()}


@pytest.mark.parametrize("row", ["sub-01", "01", "1", "SUB-01", "sub-1", "sub_001"])
def test_a_participant_is_found_by_other_spellings(row: str) -> None:
    assert matches([row], ["sub-01"]) == {"sub-01": row}


def test_no_participant_gets_the_row_of_another() -> None:
    rows = ["sub-1", "sub-10", "sub-2"]
    assert matches(rows, ["sub-10", "sub-01"]) == {
        "sub-10": "sub-10",
        "sub-01": "sub-1",
    }
    # 1 and 01 are two participants, both in the table and in the scans.
    assert matches(["1", "01"], ["sub-1", "sub-2"]) == {}
    assert matches(["1"], ["sub-1", "sub-01"]) == {}
    assert matches(["sub-01"], ["sub-01", "sub-1"]) == {"sub-01": "sub-01"}


def test_what_has_no_row_is_named() -> None:
    participants_table = table_of({"1": 61, "01": 62, "sub-2": 63})
    matched = participants_table.match(
        {("sub-1", "sub-1"): (), ("sub-2", "sub-2"): (), ("x", "x"): ()}
    )
    assert matched.remarks == (
        "sub-1 could be 1 or 01 in the table",
        "2 of 3 participants are not in the table: sub-1, x",
    )


def test_a_row_that_several_participants_have_is_named() -> None:
    participants_table = table_of({"anna": 61})
    matched = participants_table.match(
        {("anna-1", "anna-1"): (), ("anna-2", "anna-2"): ()}
    )
    assert matched.doubts == (
        "anna in the table is the row of 2 participants: anna-1, anna-2",
    )
    of_one = participants_table.match(
        {("anna_V1", "anna"): (), ("anna_V2", "anna"): ()}
    )
    assert of_one.doubts == ()


def test_participants_of_two_sites_have_rows_with_their_folders() -> None:
    participants_table = table_of({"A/sub-01": 1, "B_sub-01": 2})
    first, second = ("sub-01", "A/sub-01"), ("sub-01", "B/sub-01")
    scans = {first: ("A",), second: ("B",)}
    matched = participants_table.match(scans)
    assert (matched.of(*first).age, matched.of(*second).age) == (1, 2)
    # A row without a folder could be of either.
    assert table_of({"sub-01": 1}).match(scans).rows == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("T1", "anna/T1"), ("T1", "ben/T1")),
        (("anna_T1", "anna/T1"), ("ben_T1", "ben/T1")),
        (("T1", "T1"), ("MPRAGE", "MPRAGE")),
    ],
)
@pytest.mark.parametrize("group", [(), ("controls",)])
def test_a_row_may_have_the_name_of_a_folder_that_holds_one_participant(
    first: Named, second: Named, group: tuple[str, ...]
) -> None:
    scans = {first: (*group, "anna"), second: (*group, "ben")}
    rows = table_of({"anna": 1, "ben": 2}).match(scans).rows
    assert rows == {first: "anna", second: "ben"}


def test_a_folder_of_two_participants_is_neither_of_them() -> None:
    first, second = ("p1", "A/p1"), ("p2", "A/p2")
    scans = {first: ("A",), second: ("A",)}
    assert table_of({"A": 1}).match(scans).rows == {}
    assert table_of({"A": 1, "p1": 2}).match(scans).rows == {first: "p1"}


@pytest.mark.parametrize("row", ["005", "5", "sub-005"])
def test_a_participant_whom_a_run_has_named_has_its_own_row(row: str) -> None:
    participants_table = table_of({"009": 1, row: 2, "010": 3})
    scans: dict[Named, tuple[str, ...]] = {
        ("009", "005"): (),
        ("010", "005"): (),
        ("017", "009"): (),
    }
    matched = participants_table.match(scans, together=["005", "009"])
    assert matched.rows == {
        ("009", "005"): row,
        ("010", "005"): row,
        ("017", "009"): "009",
    }


def test_a_participant_without_a_row_gets_none_of_another_participant() -> None:
    scans: dict[Named, tuple[str, ...]] = {("9", "5"): (), ("17", "9"): ()}
    matched = table_of({"9": 1}).match(scans, together=["5", "9"])
    assert matched.rows == {("17", "9"): "9"}
    assert matched.absent == ("5",)


def test_rows_of_scans_count_before_the_row_of_their_participant() -> None:
    scans: dict[Named, tuple[str, ...]] = {
        ("anna-1", "anna"): (),
        ("anna-2", "anna"): (),
    }
    rows = table_of({"anna": 1, "anna-2": 3}).match(scans, together=["anna"]).rows
    assert rows == {("anna-1", "anna"): "anna", ("anna-2", "anna"): "anna-2"}
