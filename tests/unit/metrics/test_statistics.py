"""Statistics against published examples, closed forms and scipy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from helpers.ratings import SHROUT_FLEISS
from scipy import stats

from trinat.segmentation.metrics.statistics import (
    bland_altman,
    cohen_kappa,
    holm,
    icc_2_1,
    mean_interval,
    paired_test,
    robust_z,
    within_subject_cv_percent,
)


def test_icc_of_the_published_example() -> None:
    assert icc_2_1(SHROUT_FLEISS) == pytest.approx(0.29, abs=0.005)


def test_icc_counts_a_bias_as_disagreement() -> None:
    participant = np.arange(10.0)
    assert icc_2_1(np.stack([participant, participant], 1)) == pytest.approx(1)
    assert icc_2_1(np.stack([participant, participant + 5], 1)) < 0.5
    # 1, 2, 3 and each plus one: between participants 2, residual 0, between raters 1.5; 2 / (2 + 2
    # * 1.5 / 3) = 2/3.
    shifted = np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]])
    assert icc_2_1(shifted) == pytest.approx(2 / 3)


def test_icc_leaves_out_incomplete_participants() -> None:
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


def test_six_participants_all_better_give_the_smallest_exact_p() -> None:
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


def test_fewer_than_six_participants_get_no_test() -> None:
    test = paired_test(np.zeros(5), np.arange(1.0, 6))
    assert test.p is None
    assert "fewer than 6" in test.note


def test_participants_without_a_value_are_left_out_and_counted() -> None:
    first = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, np.nan])
    second = np.array([0.2, 0.4, 0.6, 0.8, 1.0, np.nan, 1.0])
    test = paired_test(first, second)
    assert test.participants == 5
    assert test.note.startswith("2 without a value from both")


def by_enumeration(differences: np.ndarray) -> float:
    """Return Wilcoxon's two-sided p by enumerating all choices of signs."""
    changed = differences[differences != 0]
    ranks = stats.rankdata(np.abs(changed))
    middle = ranks.sum() / 2
    apart = [
        abs(ranks[np.array(signs)].sum() - middle)
        for signs in product([False, True], repeat=len(changed))
    ]
    observed = abs(ranks[changed > 0].sum() - middle)
    return float((np.array(apart) >= observed - 1e-9).mean())


@pytest.mark.parametrize("seed", range(20))
def test_the_exact_p_is_that_of_all_choices_of_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Steps of 1 from -3 to 4: many ties and zeros.
    differences = rng.integers(-3, 5, rng.integers(6, 13)).astype(float)
    test = paired_test(np.zeros(len(differences)), differences)
    assert test.p == pytest.approx(by_enumeration(differences), rel=1e-12)


def test_without_ties_the_exact_p_is_scipys() -> None:
    differences = np.random.default_rng(0).normal(0.3, 1, 50)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert paired_test(np.zeros(50), differences).p == pytest.approx(expected, rel=1e-9)


def test_above_a_hundred_differences_the_approximation_is_said() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1, 101)
    test = paired_test(np.zeros(101), differences)
    assert "normal approximation" in test.note
    assert test.p == pytest.approx(stats.wilcoxon(differences, method="approx").pvalue)
    exact = paired_test(np.zeros(100), differences[:100]).p
    assert exact == pytest.approx(
        stats.wilcoxon(differences[:100], method="approx").pvalue, rel=0.1
    )


def test_errors_of_rounding_are_no_differences_and_break_no_ties() -> None:
    # 0.1 + 0.2 is 0.30000000000000004; 0.85 + 0.1 - 0.85 and 0.45 + 0.1 - 0.45 are not equal.
    first = np.array([0.3, 0.85, 0.45, 0.25, 0.15, 0.35])
    second = np.array([0.1 + 0.2, *(first[1:] + 0.1)])
    test = paired_test(first, second)
    assert test.p == pytest.approx(2 / 2**5)
    assert "1 without a difference" in test.note


def test_equal_methods_differ_in_nothing() -> None:
    test = paired_test(np.arange(8.0), np.arange(8.0))
    assert (test.p, test.effect, test.mean_difference) == (1.0, 0.0, 0.0)


def test_bland_altman_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, SD 1.
    agreement = bland_altman(
        np.array([10.0, 20, 30, np.nan]), np.array([11.0, 22, 33, 1])
    )
    assert (agreement.participants, agreement.bias, agreement.sd) == (3, 2, 1)
    assert (agreement.lower, agreement.upper) == pytest.approx((0.04, 3.96))


def test_within_subject_cv_by_hand() -> None:
    # 90 and 110: SD 14.142 of 100; equal scans: 0. Root mean square of 0.14142 and 0 is 0.1.
    cv = within_subject_cv_percent(
        np.array([90.0, 50, np.nan]), np.array([110.0, 50, 3])
    )
    assert cv == pytest.approx(10)


def test_robust_z_is_not_moved_by_the_outlier_it_finds() -> None:
    # Median 3, absolute deviations 2 1 0 1 97: median 1.
    z = robust_z(np.array([1.0, 2, 3, 4, 100]))
    assert z == pytest.approx(np.array([-2, -1, 0, 1, 97]) / 1.4826)


def test_robust_z_of_equal_values_is_undefined() -> None:
    assert np.isnan(robust_z(np.array([2.0, 2, 2, 5]))).all()


def test_without_bounds_the_interval_is_students_t() -> None:
    # 1, 2, 3: mean 2, SD 1, and t is 4.3027 with 2 degrees of freedom: 2 ± 4.3027 / sqrt(3).
    values = np.array([[1.0], [2.0], [3.0]])
    expected = np.array([[2 - 2.48414], [2 + 2.48414]])
    assert mean_interval(values) == pytest.approx(expected, abs=1e-5)


def test_with_a_lower_bound_the_interval_is_students_t_of_the_logarithm() -> None:
    # The half width 2.48414 of the mean 2 is 1.24207 of its logarithm.
    values = np.array([[1.0], [2.0], [3.0]])
    expected = np.array([[2 * np.exp(-1.24207)], [2 * np.exp(1.24207)]])
    assert mean_interval(values, 0.0) == pytest.approx(expected, abs=1e-4)
    # For a change that is at least -100 %, distances from that bound count.
    assert mean_interval(values - 100, -100.0) == pytest.approx(
        expected - 100, abs=1e-4
    )


def test_a_large_error_is_not_taken_to_the_logarithm() -> None:
    # 1 and 9: t is 12.706 with 1 degree of freedom, half is 12.706 * 4.
    (low,), (high,) = mean_interval(np.array([[1.0], [9.0]]), 0.0)
    assert low == 0
    assert high == pytest.approx(5 + 12.7062 * 4, abs=1e-2)


def test_between_bounds_the_interval_is_students_t_of_the_logit() -> None:
    # 0.7, 0.8, 0.9: half width 0.248414, over 0.8 * 0.2 of the logit log(4).
    values = np.array([[0.7], [0.8], [0.9]])
    half = 0.248414 / 0.16
    expected = 1 / (1 + np.exp([[half - np.log(4)], [-half - np.log(4)]]))
    assert mean_interval(values, 0.0, 1.0) == pytest.approx(expected, abs=1e-5)
    # Percentages have the same interval, a hundred times as large.
    assert mean_interval(100 * values, 0.0, 100.0) == pytest.approx(
        100 * expected, abs=1e-3
    )


def test_the_interval_never_leaves_the_possible_range() -> None:
    values = np.array([0.98, 1.0, 1.0, 0.99, 0.3, 1.0])[:, None]
    (low,), (high,) = mean_interval(values, 0.0, 1.0)
    assert 0 < low < values.mean() < high < 1
    assert mean_interval(np.ones((4, 1)), 0.0, 1.0).tolist() == [[1.0], [1.0]]
    assert mean_interval(np.zeros((4, 1)), 0.0).tolist() == [[0.0], [0.0]]


def test_intervals_leave_out_undefined_values() -> None:
    values = np.array(
        [[1.0, 1.0], [3.0, np.nan], [2.0, 3.0], [2.0, np.nan], [7.0, 4.0]]
    )
    alone = mean_interval(values[[0, 2, 4], 1:])
    np.testing.assert_allclose(mean_interval(values)[:, 1:], alone)


def test_the_interval_of_equal_values_is_that_value() -> None:
    assert mean_interval(np.full((6, 1), 0.9)).tolist() == [[0.9], [0.9]]


def test_the_interval_of_one_participant_is_undefined_and_that_of_two_is_not() -> None:
    interval = mean_interval(np.array([[1.0, 2.0], [np.nan, 3.0]]))
    assert np.isnan(interval[:, 0]).all()
    assert np.isfinite(interval[:, 1]).all()
    assert np.isnan(mean_interval(np.ones((1, 2)))).all()


@pytest.mark.parametrize("participants", [5, 7, 10, 20])
@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        (25.5, 4.5, 1.0),  # Dice of 0.85, SD 0.06, skewness -0.7
        (6.8, 1.2, 1.0),  # Dice of 0.85, SD 0.12, skewness -1.2
        (19.0, 1.0, 1.0),  # Dice of 0.95, SD 0.05, skewness -1.7
        (4.0, 40.0, np.inf),  # volumes like those of ventricles, SD 45 %, skewness 0.8
    ],
)
def test_intervals_hold_the_mean_as_often_as_they_say(
    a: float, b: float, most: float, participants: int
) -> None:
    values = np.random.default_rng(0).beta(a, b, size=(participants, 10_000))
    mean = a / (a + b)
    low, high = mean_interval(values, 0.0, most)
    assert 0.93 < ((low <= mean) & (mean <= high)).mean() < 0.97
    width_of_t = np.subtract(*mean_interval(values)[::-1]).mean()
    assert (high - low).mean() < 1.19 * width_of_t


def test_cohens_kappa_of_ten_ratings_worked_out_by_hand() -> None:
    first = ["pass"] * 6 + ["look"] * 3 + ["reject"]
    second = ["pass"] * 4 + ["look"] * 2 + ["look"] * 2 + ["reject"] * 2
    # Equal in 4 + 2 + 1 of 10; by chance 0.6 x 0.4 + 0.3 x 0.4 + 0.1 x 0.2 = 0.38.
    assert cohen_kappa(first, second) == pytest.approx((0.7 - 0.38) / 0.62)


def test_cohens_kappa_is_undefined_where_chance_explains_all() -> None:
    assert np.isnan(cohen_kappa([], []))
    assert np.isnan(cohen_kappa(["pass"] * 3, ["pass"] * 3))
    assert cohen_kappa(["pass", "look"], ["pass", "look"]) == 1
