"""Statistics against published examples, closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from segmentation.metrics.statistics import (
    bland_altman,
    bootstrap_interval,
    cohen_kappa,
    holm,
    icc_2_1,
    paired_test,
    robust_z,
    within_subject_cv_percent,
)

# Shrout and Fleiss (1979), table 2: six targets, four judges; their ICC(2,1) is 0.29.
SHROUT_FLEISS = np.array(
    [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]], float
)


def test_icc_of_the_published_example() -> None:
    assert icc_2_1(SHROUT_FLEISS) == pytest.approx(0.29, abs=0.005)


def test_icc_counts_a_bias_as_disagreement() -> None:
    person = np.arange(10.0)
    assert icc_2_1(np.stack([person, person], 1)) == pytest.approx(1)
    assert icc_2_1(np.stack([person, person + 5], 1)) < 0.5


def test_icc_leaves_out_incomplete_persons() -> None:
    incomplete = np.vstack([SHROUT_FLEISS, [100, np.nan, 1, 1]])
    assert icc_2_1(incomplete) == icc_2_1(SHROUT_FLEISS)


@pytest.mark.parametrize("few", [SHROUT_FLEISS[:1], np.ones((5, 2))])
def test_icc_of_too_little_is_undefined(few: np.ndarray) -> None:
    assert math.isnan(icc_2_1(few))


def test_holm_steps_down_and_keeps_the_order() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04: made monotone.
    adjusted = holm(np.array([0.04, 0.01, np.nan, 0.03, 0.02]))
    assert adjusted == pytest.approx([0.06, 0.04, np.nan, 0.06, 0.06], nan_ok=True)


def test_holm_never_exceeds_one() -> None:
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


def test_six_persons_all_better_give_the_smallest_exact_p() -> None:
    first = np.array([0.80, 0.81, 0.82, 0.83, 0.84, 0.85])
    second = first + np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    test = paired_test(first, second)
    assert test.p == pytest.approx(2 / 2**6)
    assert test.effect == 1
    assert test.mean_difference == pytest.approx(0.035)


def test_the_effect_is_signed() -> None:
    # Ranks 1 to 4 of |difference|; only the smallest is in favour: (1 - 9) / 10.
    first = np.zeros(4)
    assert paired_test(first, np.array([1.0, -2, -3, -4])).effect == pytest.approx(-0.8)


def test_fewer_than_six_persons_get_no_test() -> None:
    test = paired_test(np.zeros(5), np.arange(1.0, 6))
    assert test.p is None
    assert "fewer than 6" in test.note


def test_persons_without_a_value_are_left_out_and_counted() -> None:
    first = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, np.nan])
    second = np.array([0.2, 0.4, 0.6, 0.8, 1.0, np.nan, 1.0])
    test = paired_test(first, second)
    assert test.persons == 5
    assert test.note.startswith("2 without a value from both")


def test_ties_are_said_and_equal_scipy() -> None:
    difference = np.array([1.0, 1, 2, 2, -1, 3, 3, 0])
    test = paired_test(np.zeros(8), difference)
    assert "tied" in test.note
    assert "1 without a difference" in test.note
    expected = stats.wilcoxon(difference[difference != 0], method="approx").pvalue
    assert test.p == pytest.approx(expected)


def test_equal_methods_differ_in_nothing() -> None:
    test = paired_test(np.arange(8.0), np.arange(8.0))
    assert (test.p, test.effect, test.mean_difference) == (1.0, 0.0, 0.0)


def test_bland_altman_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, SD 1.
    agreement = bland_altman(np.array([10.0, 20, 30, np.nan]), np.array([11.0, 22, 33, 1]))
    assert (agreement.persons, agreement.bias, agreement.sd) == (3, 2, 1)
    assert (agreement.lower, agreement.upper) == pytest.approx((0.04, 3.96))


def test_within_subject_cv_by_hand() -> None:
    # 90 and 110: SD 14.142 of 100; equal scans: 0. Root mean square of 0.14142 and 0 is 0.1.
    cv = within_subject_cv_percent(np.array([90.0, 50, np.nan]), np.array([110.0, 50, 3]))
    assert cv == pytest.approx(10)


def test_robust_z_is_not_moved_by_the_outlier_it_finds() -> None:
    # Median 3, absolute deviations 2 1 0 1 97: median 1.
    z = robust_z(np.array([1.0, 2, 3, 4, 100]))
    assert z == pytest.approx(np.array([-2, -1, 0, 1, 97]) / 1.4826)


def test_robust_z_of_equal_values_is_undefined() -> None:
    assert np.isnan(robust_z(np.array([2.0, 2, 2, 5]))).all()


def test_bootstrap_is_the_plain_percentile_bootstrap() -> None:
    """Equal to resampling persons one by one with the same generator."""
    values = np.random.default_rng(3).normal(size=(12, 2))
    interval = bootstrap_interval(values, np.random.default_rng(0), samples=1200)
    drawn = np.random.default_rng(0).integers(12, size=(1200, 12))
    expected = np.percentile(values[drawn].mean(1), [2.5, 97.5], axis=0)
    assert interval == pytest.approx(expected)


def test_bootstrap_leaves_out_undefined_values() -> None:
    values = np.array([[1.0, 1.0], [3.0, np.nan], [2.0, 3.0], [2.0, np.nan]])
    low, high = bootstrap_interval(values, np.random.default_rng(0), samples=2000)
    assert 1 <= low[1] < 2 < high[1] <= 3


def test_bootstrap_of_one_person_is_undefined() -> None:
    values = np.array([[1.0, 2.0], [np.nan, 3.0]])
    interval = bootstrap_interval(values, np.random.default_rng(0))
    assert np.isnan(interval[:, 0]).all()
    assert np.isfinite(interval[:, 1]).all()
    assert np.isnan(bootstrap_interval(values[:1], np.random.default_rng(0))).all()


@pytest.mark.slow
def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    trials = rng.normal(size=(30, 1000))
    low, high = bootstrap_interval(trials, rng, samples=1000)
    covered = ((low < 0) & (high > 0)).mean()
    assert 0.91 < covered < 0.97


def test_cohens_kappa_of_ten_ratings_worked_out_by_hand() -> None:
    first = ["pass"] * 6 + ["look"] * 3 + ["reject"]
    second = ["pass"] * 4 + ["look"] * 2 + ["look"] * 2 + ["reject"] * 2
    # Same in 4 + 2 + 1 of 10; by chance 0.6 x 0.4 + 0.3 x 0.4 + 0.1 x 0.2 = 0.38.
    assert cohen_kappa(first, second) == pytest.approx((0.7 - 0.38) / 0.62)


def test_cohens_kappa_is_undefined_where_chance_explains_all() -> None:
    assert np.isnan(cohen_kappa([], []))
    assert np.isnan(cohen_kappa(["pass"] * 3, ["pass"] * 3))
    assert cohen_kappa(["pass", "look"], ["pass", "look"]) == 1
