"""Calibration: the rule by which limits are chosen, on points worked out by hand."""

from __future__ import annotations

import pytest

from pipelines.bench.quality import CASES, Point, limit, rates

POINTS = [
    *(Point("k", "c", "s", agreement=n / 10, dice=0.4) for n in range(1, 10)),  # 0.1 to 0.9
    Point("k", "c", "s", agreement=0.05, dice=0.4),
    Point("k", "c", "s", agreement=0.75, dice=0.8),
    Point("k", "c", "s", agreement=0.95, dice=0.8),
]


def test_the_limit_is_the_lowest_that_catches_enough() -> None:
    # Ten have failed; nine of them lie at 0.8 or below.
    assert limit(POINTS, 0.5) == 0.81
    assert rates(POINTS, 0.5, 0.81) == (0.9, 0.5)
    assert rates(POINTS, 0.5, 0.80)[0] == 0.8


def test_without_failures_there_is_no_limit() -> None:
    with pytest.raises(SystemExit, match="make the phantoms harder"):
        limit(POINTS, 0.1)


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
