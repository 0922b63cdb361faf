"""Changes in time, worked out by hand."""

from __future__ import annotations

import pytest

from trinat.segmentation.metrics.change import change_of


def test_a_change_there_and_back_is_symmetric() -> None:
    loss = change_of([100, 90], [0, 1])
    gain = change_of([90, 100], [0, 1])
    assert loss is not None
    assert gain is not None
    # 10 of 95.
    assert loss.percent == pytest.approx(-10.526, abs=1e-3)
    assert gain.percent == pytest.approx(10.526, abs=1e-3)
    assert loss.percent_per_year == pytest.approx(loss.percent)
    assert loss.low is None


def test_two_years_halve_the_change_a_year() -> None:
    change = change_of([100, 90], [70.0, 72.0])
    assert change is not None
    assert change.percent_per_year == pytest.approx(-5.263, abs=1e-3)


def test_three_scans_have_an_interval_around_the_slope() -> None:
    # Of the mean 100: +1, 0.5 and -1.5; slope -1.25, off the line by -0.25, 0.5, -0.25.
    change = change_of([101, 100.5, 98.5], [0, 1, 2])
    assert change is not None
    assert change.percent_per_year == pytest.approx(-1.25)
    # t of one degree of freedom is 12.706; the error is sqrt(0.375 / 1 / 2) = 0.43301.
    assert change.high is not None
    assert change.high == pytest.approx(-1.25 + 12.706 * 0.43301, abs=1e-3)


def test_without_times_there_is_no_change_a_year() -> None:
    change = change_of([100, 90], [None, 1.0], retest_percent=1)
    assert change is not None
    assert change.percent_per_year is None
    assert change.noise == pytest.approx(1)
    assert change.is_beyond_noise


def test_noise_a_year_falls_with_time() -> None:
    # Two scans differ by up to 1 % anyway; these are four years apart.
    change = change_of([100, 99.5], [0, 4], retest_percent=1)
    assert change is not None
    assert change.noise == pytest.approx(1 / 4)
    assert change.is_beyond_noise is False


def test_a_structure_that_is_nowhere_has_no_change() -> None:
    assert change_of([0, 0], [0, 1]) is None
