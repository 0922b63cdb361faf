"""From numbers per person to statements about a method.

The unit is the person: sessions of one person are averaged before anything here sees them. NaN
means "undefined for this person" and is left out, one structure and metric at a time; every
result says over how many persons it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]

BOOTSTRAP_SAMPLES = 10_000
# With five pairs the smallest two-sided Wilcoxon p is 2 / 2^5 = 0.0625: it cannot reach 0.05.
FEWEST_PERSONS = 6

_CHUNK = 500  # resamples drawn at a time; bounds memory, does not change the result


def bootstrap_interval(
    values: Values, generator: np.random.Generator, *, samples: int = BOOTSTRAP_SAMPLES
) -> Values:
    """95 % percentile intervals of the mean over persons, (P, M) to (2, M); NaN below 2 persons.

    One set of resampled persons serves all M columns: scipy.stats.bootstrap, column by column,
    takes 100 times as long for the thousand columns of a report.
    """
    persons, columns = values.shape
    if persons < 2:
        return np.full((2, columns), np.nan)
    known = ~np.isnan(values)
    filled = np.where(known, values, 0)
    means = np.empty((samples, columns))
    for start in range(0, samples, _CHUNK):
        drawn = generator.integers(persons, size=(min(_CHUNK, samples - start), persons))
        # How often each person is in each resample: one count over rows set apart.
        apart = drawn + persons * np.arange(len(drawn))[:, None]
        counts = np.bincount(apart.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)
        weights = counts @ known
        means[start : start + len(drawn)] = np.divide(
            counts @ filled, weights, out=np.full(weights.shape, np.nan), where=weights > 0
        )
    enough = known.sum(0) >= 2
    interval = np.full((2, columns), np.nan)
    # A resample may hold only persons without a value; it says nothing and is left out.
    interval[:, enough] = np.nanpercentile(means[:, enough], [2.5, 97.5], axis=0)
    return interval


@dataclass(frozen=True)
class PairedTest:
    """Two methods on the same persons; `p` is None where no honest test can be made, see `note`."""

    persons: int
    mean_difference: float
    p: float | None
    effect: float  # matched-pairs rank-biserial correlation: -1 to 1
    note: str = ""


def paired_test(first: Values, second: Values) -> PairedTest:
    """Wilcoxon's signed-rank test of `second` against `first`, one value a person, (P,).

    Exact up to 50 persons without ties, else the normal approximation with correction for ties.
    Persons without a value from both are left out.
    """
    difference = second - first
    left_out = int(np.isnan(difference).sum())
    difference = difference[~np.isnan(difference)]
    persons = len(difference)
    note = f"{left_out} without a value from both" if left_out else ""
    if not persons:
        return PairedTest(0, float("nan"), None, float("nan"), note)
    mean, changed = float(difference.mean()), difference[difference != 0]
    effect = _rank_biserial(changed)
    if persons < FEWEST_PERSONS:
        few = f"fewer than {FEWEST_PERSONS} persons: no test"
        return PairedTest(persons, mean, None, effect, _join(note, few))
    if not len(changed):
        return PairedTest(persons, mean, 1.0, effect, _join(note, "no person differs"))
    magnitudes = np.abs(changed)
    tied = len(np.unique(magnitudes)) < len(magnitudes)
    exact = not tied and len(changed) <= 50
    p = float(stats.wilcoxon(changed, method="exact" if exact else "approx").pvalue)
    notes = [note]
    if len(changed) < persons:
        notes.append(f"{persons - len(changed)} without a difference left out of the ranks")
    if tied:
        notes.append("tied differences: normal approximation")
    return PairedTest(persons, mean, p, effect, _join(*notes))


def holm(p_values: Values) -> Values:
    """Holm's step-down correction; NaN stays NaN and is not counted as a comparison."""
    adjusted = np.full(len(p_values), np.nan)
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = p_values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


@dataclass(frozen=True)
class Agreement:
    """Bland-Altman: bias of `second - first`, its SD and the 95 % limits, mean ± 1.96 SD."""

    persons: int
    bias: float
    sd: float
    lower: float
    upper: float


def bland_altman(first: Values, second: Values) -> Agreement:
    """How far two measurements of the same persons lie apart, (P,) and (P,)."""
    difference = (second - first)[~np.isnan(second - first)]
    bias = float(difference.mean()) if len(difference) else float("nan")
    sd = float(difference.std(ddof=1)) if len(difference) > 1 else float("nan")
    return Agreement(len(difference), bias, sd, bias - 1.96 * sd, bias + 1.96 * sd)


def icc_2_1(measurements: Values) -> float:
    """ICC(2,1) of Shrout and Fleiss: two-way random, absolute agreement, single, (P, raters).

    NaN for fewer than two persons with all measurements, or where nothing varies.
    """
    complete = measurements[~np.isnan(measurements).any(1)]
    n, k = complete.shape
    if n < 2 or k < 2:
        return float("nan")
    grand, persons, raters = complete.mean(), complete.mean(1), complete.mean(0)
    between_persons = k * ((persons - grand) ** 2).sum() / (n - 1)
    between_raters = n * ((raters - grand) ** 2).sum() / (k - 1)
    rest = complete - persons[:, None] - raters[None] + grand
    residual = (rest**2).sum() / ((n - 1) * (k - 1))
    whole = between_persons + (k - 1) * residual + k * (between_raters - residual) / n
    return float((between_persons - residual) / whole) if whole > 0 else float("nan")


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float:
    """Agreement of two raters beyond chance over the same items; 1 is full, 0 that of chance.

    NaN for no items, and where both always gave one and the same rating: chance explains that.
    """
    if not first:
        return float("nan")
    same = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
    shares = Counter(first), Counter(second)
    chance = sum(shares[0][name] * shares[1][name] for name in shares[0]) / len(first) ** 2
    return (same - chance) / (1 - chance) if chance < 1 else float("nan")


def within_subject_cv_percent(first: Values, second: Values) -> float:
    """Within-subject coefficient of variation of two scans a person, in percent, (P,) and (P,).

    Root mean square over persons of (SD / mean); of two values, SD = |a - b| / sqrt(2).
    """
    mean = (first + second) / 2
    known = ~np.isnan(mean) & (mean > 0)
    if not known.any():
        return float("nan")
    variation = (first[known] - second[known]) ** 2 / 2 / mean[known] ** 2
    return float(100 * np.sqrt(variation.mean()))


def robust_z(values: Values, *, least_spread: float = 0.0) -> Values:
    """Distance from the median in robust SDs, (P,); NaN where most values are the same.

    The median absolute deviation times 1.4826 is the SD of a normal distribution, and one wild
    value does not move it. An SD is at least `least_spread`, a share of the median.
    """
    centre = np.nanmedian(values) if (~np.isnan(values)).any() else np.nan
    deviation = np.nanmedian(np.abs(values - centre)) if np.isfinite(centre) else 0.0
    spread = max(1.4826 * deviation, least_spread * abs(centre))
    if not spread > 0:
        return np.full(len(values), np.nan)
    return np.asarray((values - centre) / spread, np.float64)


def _rank_biserial(changed: Values) -> float:
    """(sum of ranks in favour - sum of ranks against) / sum of ranks; 0 where nothing changed."""
    if not len(changed):
        return 0.0
    ranks: Any = stats.rankdata(np.abs(changed))
    return float((ranks * np.sign(changed)).sum() / ranks.sum())


def _join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
