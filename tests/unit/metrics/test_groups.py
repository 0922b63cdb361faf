"""Differences and trends, against published and hand-worked values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from trinat.segmentation.metrics.statistics import group_difference, trend

FIRST = np.array([4.0, 6.0, 8.0])
SECOND = np.array([1.0, 3.0, 5.0, np.nan])


def test_hedges_g_is_the_difference_in_pooled_deviations_corrected_for_few() -> None:
    found = group_difference(FIRST, SECOND)
    assert (found.first, found.second) == (3, 3)
    assert found.difference == 3
    # Both variances are 4, so d is 1.5; with 4 degrees of freedom the factor is 0.797885.
    assert found.g == pytest.approx(1.5 * 0.797885, abs=1e-5)
    # Welch: 3 ± t(0.975, 4) sqrt(4/3 + 4/3).
    assert found.high - found.difference == pytest.approx(
        2.776445 * np.sqrt(8 / 3), abs=1e-4
    )
    assert found.p == pytest.approx(stats.ttest_ind(FIRST, SECOND[:3]).pvalue)


def test_the_interval_of_g_is_where_the_noncentral_t_has_its_tails() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 12), rng.normal(0, 1, 15)
    found = group_difference(first, second)
    scale = np.sqrt(1 / 12 + 1 / 15)
    factor = 1 - 3 / (4 * 25 - 1)
    t = stats.ttest_ind(first, second).statistic
    low = stats.nct.cdf(t, 25, found.g_low / factor / scale)
    high = stats.nct.cdf(t, 25, found.g_high / factor / scale)
    assert (low, high) == (
        pytest.approx(0.975, abs=1e-3),
        pytest.approx(0.025, abs=1e-3),
    )


def test_groups_change_their_sign_and_nothing_else_with_their_order() -> None:
    found, turned = group_difference(FIRST, SECOND), group_difference(SECOND, FIRST)
    assert (turned.difference, turned.g) == (-found.difference, pytest.approx(-found.g))
    assert turned.g_low == pytest.approx(-found.g_high, abs=1e-6)


def test_large_groups_that_differ_much_have_an_interval_either_way() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        first, second = draw.normal(0, 1, 100), draw.normal(1.5, 1, 100)
        found = group_difference(first, second)
        assert found.g_low < found.g < found.g_high < 0


@pytest.mark.parametrize(
    ("first", "second"), [([1.0], [2.0, 3.0]), ([], []), ([1.0, 1.0], [2.0, 2.0])]
)
def test_too_few_or_equal_persons_have_no_difference(
    first: list[float], second: list[float]
) -> None:
    found = group_difference(np.array(first), np.array(second))
    assert (found.first, found.second) == (len(first), len(second))
    assert np.isnan(found.g)
    assert np.isnan(found.p)


def test_a_trend_has_the_interval_of_its_slope_and_of_r() -> None:
    x = np.array([0.0, 1, 2, 3, np.nan])
    y = np.array([0.0, 1, 1, 2, 9])
    found = trend(x, y)
    assert (found.persons, found.slope) == (4, pytest.approx(0.6))
    assert found.intercept == pytest.approx(0.1)
    # Residual variance 0.2 / 2, over the sum of squares of x, 5.
    half = stats.t.ppf(0.975, 2) * np.sqrt(0.1 / 5)
    assert found.high - found.slope == pytest.approx(half)
    assert found.r == pytest.approx(3 / np.sqrt(10))
    assert found.r_low < found.r < found.r_high < 1


def test_values_that_differ_by_rounding_alone_are_equal() -> None:
    # 22 and 222 voxels of 0.9 mm: the mean of equal volumes is another number.
    first, second = np.full(6, 22 * 0.9**3), np.full(6, 222 * 0.9**3)
    assert first.mean() != first[0] or second.mean() != second[0]
    found = group_difference(first, second)
    assert (found.first, found.second) == (6, 6)
    assert np.isnan([found.g, found.p]).all()
    assert np.isnan(trend(np.arange(4.0), 100 + np.array([0, 1, 0, 1]) * 1e-11).slope)


def test_groups_that_are_thousands_of_deviations_apart_have_no_interval() -> None:
    first = np.tile([0.0, 1.0], 5)
    found = group_difference(first, first + 2e4)
    assert found.difference == pytest.approx(-2e4)
    assert np.isnan(found.g_low) == np.isnan(found.g_high)


def test_a_trend_needs_four_persons_of_different_ages() -> None:
    assert np.isnan(trend(np.arange(3.0), np.arange(3.0)).slope)
    assert np.isnan(trend(np.ones(9), np.arange(9.0)).slope)
    assert trend(np.ones(9), np.arange(9.0)).persons == 9


def test_a_perfect_line_has_r_one_without_an_interval() -> None:
    found = trend(np.arange(5.0), 2 * np.arange(5.0))
    assert (found.r, found.r_low, found.r_high) == (1, 1, 1)
