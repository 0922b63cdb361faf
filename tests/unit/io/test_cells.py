"""Tests of values in the cells of users' tables."""

from __future__ import annotations

import pytest

from trinat.segmentation.io.cells import number_in


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("61", 61),
        ("61.5", 61.5),
        ("61,5", 61.5),
        ("1,400,000", 1_400_000),
        ("1.400.000", 1_400_000),
        ("1,400,000.5", 1_400_000.5),
        ("1.400.000,5", 1_400_000.5),
        ("1.345,7", 1345.7),
        ("1 400 000", 1_400_000),
        ("1.4e6", 1_400_000),
        ("1344,123", 1344.123),
    ],
)
def test_a_number_is_read_where_it_can_be_one_alone(cell: str, number: float) -> None:
    assert number_in(cell) == number


@pytest.mark.parametrize(
    "cell", ["44,000", "1,2,3", "1_000", "61y", "nan", "٣", "", "1e400"]
)
def test_what_could_be_two_numbers_or_none_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match=r"could be|no number|too large"):
        number_in(cell)
