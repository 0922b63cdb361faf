"""Statistics for the comparison of methods over participants.

The unit of observation is the participant: callers average the sessions of a participant first. NaN
means "undefined for this participant". Such values are left out, separately for each structure and
metric, and every result has the number of participants that it includes. Intervals are 95 %
intervals. In shapes, P is the number of participants and M that of structures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Values = NDArray[np.float64]

# With five pairs the smallest two-sided Wilcoxon p is 2 / 2^5 = 0.0625: it cannot reach 0.05.
FEWEST_PARTICIPANTS = 6
_SIGNIFICANT = 0.05
# Above this number of differences, a normal approximation: enumeration takes more than a
# millisecond.
_MOST_EXACT = 100
# On each side of a 95 % interval.
_TAIL = 0.025
# Above this half width of Student's t interval, relative to the mean, the logarithm is unreliable.
_LARGE_ERROR = 1.5


def mean_interval(
    values: Values, least: float = -np.inf, most: float = np.inf
) -> Values:
    """Return 95 % confidence intervals of the mean over participants, (P, M) to (2, M).

    The interval is Student's t interval, computed on a scale that has no bounds and transformed
    back (delta method): the logit of the mean of values between two bounds, the logarithm of
    the mean of values with one lower bound (unless the error is larger than the mean: then
    Student's t, cut at the bound), and the mean itself otherwise. So it never leaves the
    possible range, and covers the mean of skewed values, such as Dice, more often than
    Student's t alone. docs/notes/statistics.md has the simulated coverage of several methods.

    Parameters
    ----------
    values
        One column per structure, NaN where undefined. Columns with fewer than 2 participants have
        no interval (NaN).
    least, most
        The smallest and the largest possible value.
    """
    count = (~np.isnan(values)).sum(0)
    participants = np.where(count >= 2, count, np.nan)
    mean = np.nansum(values, axis=0) / participants
    variance = np.nansum((values - mean) ** 2, axis=0) / (participants - 1)
    half = stats.t.ppf(1 - _TAIL, participants - 1) * np.sqrt(variance / participants)
    if not np.isfinite(least):
        return np.stack([mean - half, mean + half])
    # If the mean is at a bound, all values are equal to it, and the interval is the mean itself.
    is_inside = (mean > least) & (mean < most)
    if np.isfinite(most):
        share = np.where(is_inside, (mean - least) / (most - least), 0.5)
        centre = special.logit(share)
        half_there = half / (most - least) / (share * (1 - share))
        ends = special.expit([centre - half_there, centre + half_there])
        interval = least + (most - least) * ends
    else:
        above = np.where(is_inside, mean - least, 1.0)
        ratio = half / above
        ends = least + above * np.exp([-ratio, ratio])
        # The delta method holds for small errors only: the interval of two participants could have
        # any width.
        cut = np.maximum([mean - half, mean + half], least)
        interval = np.where(ratio > _LARGE_ERROR, cut, ends)
    return np.asarray(np.where(is_inside, interval, mean))


@dataclass(frozen=True)
class PairedTest:
    """Result of a paired test of two methods.

    `mean_difference` is the second method minus the first, in the unit of the values. `p` is None
    if no valid test exists; `note` then has the reason.
    """

    participants: int
    mean_difference: float
    p: float | None
    effect: float  # matched-pairs rank-biserial correlation: -1 to 1
    note: str = ""


def paired_test(first: Values, second: Values) -> PairedTest:
    """Test `second` against `first`, (P,) and (P,), by Wilcoxon's signed-rank test.

    Both have one value for each participant, in the same order. Participants with a NaN are left
    out.

    The p value is exact up to 100 differences: the share of all 2^n choices of signs whose rank sum
    is at least as far from the middle. Equal differences share the mean of their ranks. Differences
    of 0 are dropped, as in Wilcoxon's definition, because they have no sign. With n other
    differences, p is at least 2 / 2^n.
    """
    difference = _without_rounding(second - first, first, second)
    left_out = int(np.isnan(difference).sum())
    difference = difference[~np.isnan(difference)]
    participants = len(difference)
    notes = []
    if left_out:
        notes.append(f"{left_out} without a value from both")
    if not participants:
        return PairedTest(0, float("nan"), None, float("nan"), "; ".join(notes))
    changed = difference[difference != 0]
    # Sum of the ranks with a positive sign minus that with a negative sign, as a share of all
    # ranks; 0 if all values are equal.
    effect = 0.0
    if len(changed):
        ranks: Any = stats.rankdata(np.abs(changed))
        effect = float((ranks * np.sign(changed)).sum() / ranks.sum())
    p: float | None = None
    if participants < FEWEST_PARTICIPANTS:
        notes.append(f"fewer than {FEWEST_PARTICIPANTS} participants: no test")
    elif not len(changed):
        p = 1.0
        notes.append("no participant differs")
    else:
        if len(changed) < participants:
            notes.append(
                f"{participants - len(changed)} without a difference left out of the ranks"
            )
        if len(changed) <= _MOST_EXACT:
            p = _exact_p(changed)
        else:
            p = float(stats.wilcoxon(changed, method="approx").pvalue)
            notes.append(f"more than {_MOST_EXACT} differences: normal approximation")
    mean = float(difference.mean())
    return PairedTest(participants, mean, p, effect, "; ".join(notes))


def fewest_participants_for(tests: int) -> int:
    """Return the smallest number of participants with which a test can be significant at 5 %.

    `tests` is the number of tests that are corrected together by Holm's method. This multiplies the
    smallest p by the number of tests, and with n participants p is at least 2 / 2^n.
    """
    participants = FEWEST_PARTICIPANTS
    while tests * 2 / 2**participants > _SIGNIFICANT:
        participants += 1
    return participants


def _exact_p(changed: Values) -> float:
    """Return the exact two-sided p of Wilcoxon's signed-rank test.

    `changed` (n,) are the differences of the pairs, without zeros.
    """
    # Ranks of ties can end in a half. Doubled ranks are whole numbers, so that sums are exact.
    doubled = 2 * stats.rankdata(np.abs(changed))
    ranks = np.rint(doubled).astype(int)
    total = int(ranks.sum())
    # probability[s]: probability that the positive ranks sum to s if signs are random.
    probability = np.zeros(total + 1)
    probability[0] = 1.0
    for rank in ranks:
        positive = np.zeros(total + 1)
        positive[rank:] = probability[: total + 1 - rank]
        probability = (probability + positive) / 2
    observed = int(ranks[changed > 0].sum())
    # Twice the distance of each sum from the middle sum.
    distances = np.abs(2 * np.arange(total + 1) - total)
    is_as_far = distances >= distances[observed]
    return min(1.0, float(probability[is_as_far].sum()))


def _without_rounding(difference: Values, first: Values, second: Values) -> Values:
    """Round differences to 1e-12 of the largest value.

    This sets rounding errors to 0, and makes differences equal that differ by rounding errors only.
    """
    largest = max(
        float(np.nanmax(np.abs(first), initial=0)),
        float(np.nanmax(np.abs(second), initial=0)),
    )
    if not largest > 0:
        return difference
    smallest = largest * 1e-12
    return np.asarray(np.rint(difference / smallest) * smallest, np.float64)


def holm(p_values: Values) -> Values:
    """Correct p values by Holm's step-down method, (N,) to (N,).

    NaN stays NaN and does not count as a test.
    """
    # Imported here: it takes a second.
    from statsmodels.stats.multitest import multipletests

    adjusted = np.full(len(p_values), np.nan)
    known = np.isfinite(p_values)
    if known.any():
        adjusted[known] = multipletests(p_values[known], method="holm")[1]
    return adjusted


@dataclass(frozen=True)
class Agreement:
    """Bland-Altman analysis of two measurements, in the unit of the measurements.

    `bias` is the mean of `second - first`, `sd` the standard deviation, and `lower` and `upper` are
    the 95 % limits, bias ± 1.96 SD. Values are NaN if there are too few participants for them.
    """

    participants: int
    bias: float
    sd: float
    lower: float
    upper: float


def bland_altman(first: Values, second: Values) -> Agreement:
    """Compute the Bland-Altman agreement of two measurements per participant, (P,) and (P,).

    Participants with a NaN are left out. A single participant has a bias and no limits.
    """
    difference = second - first
    difference = difference[~np.isnan(difference)]
    bias = float("nan")
    if len(difference):
        bias = float(difference.mean())
    sd = float("nan")
    if len(difference) > 1:
        sd = float(difference.std(ddof=1))
    half = 1.96 * sd
    return Agreement(
        participants=len(difference),
        bias=bias,
        sd=sd,
        lower=bias - half,
        upper=bias + half,
    )


def icc_2_1(measurements: Values) -> float:
    """Return ICC(2,1) of Shrout and Fleiss for measurements (P, raters).

    This is the model with two-way random effects, absolute agreement and single raters.
    Participants with a NaN are left out. NaN for fewer than two complete participants, and if
    nothing varies.
    """
    complete = measurements[~np.isnan(measurements).any(1)]
    n, k = complete.shape
    if n < 2 or k < 2:
        return float("nan")
    of_participants, of_raters, residual = mean_squares(complete)
    whole = of_participants + (k - 1) * residual + k * (of_raters - residual) / n
    if not whole > 0:
        return float("nan")
    return float((of_participants - residual) / whole)


def mean_squares(measurements: Values) -> tuple[float, float, float]:
    """Return the mean squares of participants, raters and residual in a two-way ANOVA, (P, raters).

    Needs at least two participants and two raters, and no NaN.
    """
    n, k = measurements.shape
    grand_mean = measurements.mean()
    participant_means = measurements.mean(1)
    rater_means = measurements.mean(0)
    of_participants = k * ((participant_means - grand_mean) ** 2).sum() / (n - 1)
    of_raters = n * ((rater_means - grand_mean) ** 2).sum() / (k - 1)
    rest = measurements - participant_means[:, None] - rater_means[None] + grand_mean
    freedom = (n - 1) * (k - 1)
    residual = (rest**2).sum() / freedom
    return float(of_participants), float(of_raters), float(residual)


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float:
    """Return Cohen's kappa, the agreement of two raters beyond chance.

    `first` and `second` have the ratings of the same items, in the same order. 1 is full agreement,
    0 agreement by chance. NaN for no items, and if both raters gave all items the same single
    rating, because chance explains such agreement.
    """
    if not first:
        return float("nan")
    number = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True))
    of_first = Counter(first)
    of_second = Counter(second)
    agreed_by_chance = sum(of_first[name] * of_second[name] for name in of_first)
    same = agreed / number
    chance = agreed_by_chance / number**2
    if chance >= 1:
        return float("nan")
    return (same - chance) / (1 - chance)


def within_subject_cv_percent(first: Values, second: Values) -> float:
    """Return the within-subject coefficient of variation of two scans, in percent.

    `first` and `second` (P,) have the measurements of both scans. The coefficient is the root mean
    square of (SD / mean) over participants, where the SD of two values is |a - b| / √2.
    Participants with a NaN, or without a positive mean, are left out.
    """
    mean = (first + second) / 2
    known = ~np.isnan(mean) & (mean > 0)
    if not known.any():
        return float("nan")
    difference = first[known] - second[known]
    variation = difference**2 / 2 / mean[known] ** 2
    return float(100 * np.sqrt(variation.mean()))


def robust_z(values: Values) -> Values:
    """Return the distance from the median in robust SDs, (P,); NaN if most values are the same.

    The median absolute deviation times 1.4826 is the SD of a normal distribution, and resists
    outliers.
    """
    undefined = np.full(len(values), np.nan)
    if np.isnan(values).all():
        return undefined
    centre = np.nanmedian(values)
    deviation = 0.0
    if np.isfinite(centre):
        deviation = float(np.nanmedian(np.abs(values - centre)))
    spread = 1.4826 * deviation
    if not spread > 0:
        return undefined
    return np.asarray((values - centre) / spread, np.float64)
