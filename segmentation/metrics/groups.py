"""Differences between groups of persons, and trends over their age, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Values = NDArray[np.float64]

_TAIL = 0.025
_UNKNOWN = float("nan")


@dataclass(frozen=True)
class GroupDifference:
    """First group minus second: persons in each, difference of means, Hedges' g, Welch's p.

    `low` and `high` are the 95 % interval of the difference (Welch), `g_low` and `g_high` that of
    g. What is undefined is NaN: all but the counts where a group has fewer than two persons or
    nobody differs.
    """

    first: int
    second: int
    difference: float = _UNKNOWN
    low: float = _UNKNOWN
    high: float = _UNKNOWN
    g: float = _UNKNOWN
    g_low: float = _UNKNOWN
    g_high: float = _UNKNOWN
    p: float = _UNKNOWN


@dataclass(frozen=True)
class Trend:
    """A straight line through values: persons, slope and Pearson's r, with 95 % intervals.

    The slope has Student's interval, r has Fisher's. What is undefined is NaN: all but the count
    with fewer than four persons, or where one of the two does not vary.
    """

    persons: int
    intercept: float = _UNKNOWN
    slope: float = _UNKNOWN
    low: float = _UNKNOWN
    high: float = _UNKNOWN
    r: float = _UNKNOWN
    r_low: float = _UNKNOWN
    r_high: float = _UNKNOWN
    p: float = _UNKNOWN


def group_difference(first: Values, second: Values) -> GroupDifference:
    """Compare two groups of persons, (P,) and (Q,); NaN is nobody's value."""
    first = first[np.isfinite(first)]
    second = second[np.isfinite(second)]
    counts = len(first), len(second)
    if min(counts) < 2:
        return GroupDifference(*counts)
    freedom = sum(counts) - 2
    first_squares = ((first - first.mean()) ** 2).sum()
    second_squares = ((second - second.mean()) ** 2).sum()
    squares = first_squares + second_squares
    if not squares > 0:
        return GroupDifference(*counts)
    difference = float(first.mean() - second.mean())
    error, welch_freedom = _welch(first, second)
    half = float(stats.t.ppf(1 - _TAIL, welch_freedom)) * error
    d = difference / np.sqrt(squares / freedom)
    small_sample = _small_sample_factor(freedom)
    d_low, d_high = _interval_of_d(d, *counts)
    return GroupDifference(
        *counts,
        difference=difference,
        low=difference - half,
        high=difference + half,
        g=small_sample * d,
        g_low=small_sample * d_low,
        g_high=small_sample * d_high,
        p=2 * float(stats.t.sf(abs(difference) / error, welch_freedom)),
    )


def _welch(first: Values, second: Values) -> tuple[float, float]:
    """Standard error of the difference of two means, and its degrees of freedom (Welch, 1947)."""
    # Not scipy's ttest_ind: it warns of groups whose values are nearly equal.
    first_part = first.var(ddof=1) / len(first)
    second_part = second.var(ddof=1) / len(second)
    variance = first_part + second_part
    first_lost = first_part**2 / (len(first) - 1)
    second_lost = second_part**2 / (len(second) - 1)
    freedom = variance**2 / (first_lost + second_lost)
    return float(np.sqrt(variance)), float(freedom)


def trend(x: Values, y: Values) -> Trend:
    """The line y = intercept + slope x by least squares, (P,) each; NaN is left out."""
    known = np.isfinite(x) & np.isfinite(y)
    x = x[known]
    y = y[known]
    persons = len(x)
    if persons < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Trend(persons)
    line = stats.linregress(x, y)
    half = stats.t.ppf(1 - _TAIL, persons - 2) * line.stderr
    r = float(np.clip(line.rvalue, -1, 1))
    r_low, r_high = r, r
    if abs(r) < 1:
        fisher = np.arctanh(r)
        spread = stats.norm.ppf(1 - _TAIL) / np.sqrt(persons - 3)
        r_low, r_high = np.tanh([fisher - spread, fisher + spread])
    return Trend(
        persons,
        intercept=float(line.intercept),
        slope=float(line.slope),
        low=float(line.slope - half),
        high=float(line.slope + half),
        r=r,
        r_low=float(r_low),
        r_high=float(r_high),
        p=float(line.pvalue),
    )


def _small_sample_factor(freedom: int) -> float:
    """What Cohen's d is multiplied by to be Hedges' g, which is unbiased (Hedges, 1981)."""
    ratio = exp(lgamma(freedom / 2) - lgamma((freedom - 1) / 2))
    return float(ratio / np.sqrt(freedom / 2))


def _interval_of_d(d: float, first: int, second: int) -> tuple[float, float]:
    """The exact 95 % interval of Cohen's d of normal values, by the noncentral t distribution."""
    freedom = first + second - 2
    scale = float(np.sqrt(1 / first + 1 / second))
    t = d / scale

    def at(probability: float) -> float:
        """The d whose distribution of t has this share below the t that was found."""

        def excess(noncentrality: float) -> float:
            return float(stats.nct.cdf(t, freedom, noncentrality)) - probability

        return scale * _root(excess, t)

    return at(1 - _TAIL), at(_TAIL)


def _root(falling: Callable[[float], float], near: float) -> float:
    """Where a function that falls is 0, looked for in both directions from a place near it."""
    reach = 4.0 + abs(near)
    for _ in range(6):
        if falling(near - reach) > 0 > falling(near + reach):
            return float(optimize.brentq(falling, near - reach, near + reach))
        reach *= 2
    return _UNKNOWN
