"""How often 95 % intervals of a mean over persons hold the true mean, by method and persons.

    scripts/bench intervals [TRIALS]

Persons are drawn from distributions that look like Dice, surface distances and differences of two
models. docs/metrics.md has the result of the method that trinat uses, docs/notes/statistics.md all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from trinat.segmentation.metrics.statistics import mean_interval, students_t_interval

__all__ = ["DISTRIBUTIONS", "METHODS", "coverage", "run"]

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]
Method = Callable[[Values], Values]  # (P, trials) to low and high, (2, trials)

PERSONS = (6, 8, 12, 20, 50)
_TRIALS = 10_000
_RESAMPLES = 2_000
_AT_ONCE = 500  # trials; bounds memory


def _beta(mean: float, concentration: float) -> Draw:
    a, b = mean * concentration, (1 - mean) * concentration
    return lambda draw, shape: draw.beta(a, b, shape)


def _failures(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Dice of a model that fails for one person in ten."""
    failed = draw.random(shape) < 0.1
    return np.where(failed, draw.beta(5, 5, shape), _beta(0.88, 60)(draw, shape))


def _distances(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    return draw.lognormal(0, 0.5, shape)


def _differences(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Of the Dice of two models, whose errors are not the same."""
    return _beta(0.87, 30)(draw, shape) - _beta(0.85, 30)(draw, shape)


DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {  # and the true mean
    "Dice, mean 0.85, SD 0.06, skewness -0.7": (_beta(0.85, 30), 0.85),
    "Dice, mean 0.85, SD 0.12, skewness -1.2": (_beta(0.85, 8), 0.85),
    "Dice, mean 0.95, SD 0.05, skewness -1.7": (_beta(0.95, 20), 0.95),
    "Dice of a model that fails for 1 person in 10, skewness -2.8": (_failures, 0.842),
    "distance, log-normal, skewness 1.7": (_distances, float(np.exp(0.125))),
    "difference of two Dice, skewness 0": (_differences, 0.02),
}


def _resampled(values: Values) -> tuple[Values, Values]:
    """Means and standard errors of bootstrap samples, (resamples, trials) each."""
    persons = len(values)
    draw = np.random.default_rng(0)
    counts = draw.multinomial(
        persons, np.full(persons, 1 / persons), _RESAMPLES
    ).astype(float)
    means = counts @ values / persons
    variance = (
        np.maximum(counts @ values**2 / persons - means**2, 0) * persons / (persons - 1)
    )
    return means, np.sqrt(variance / persons)


def _percentile(values: Values) -> Values:
    means, _ = _resampled(values)
    return np.percentile(means, [2.5, 97.5], axis=0)


def _bca(values: Values) -> Values:
    """Bias-corrected and accelerated (Efron, 1987)."""
    means, _ = _resampled(values)
    mean, persons = values.mean(0), len(values)
    below = ((means < mean).sum(0) + (means == mean).sum(0) / 2) / len(means)
    bias = stats.norm.ppf(below)
    without = (values.sum(0) - values) / (persons - 1)
    apart = without.mean(0) - without
    acceleration = (apart**3).sum(0) / (6 * (apart**2).sum(0) ** 1.5)
    ordered = np.sort(means, axis=0)
    ends = []
    for quantile in stats.norm.ppf([0.025, 0.975]):
        moved = bias + (bias + quantile) / (1 - acceleration * (bias + quantile))
        place = np.rint(stats.norm.cdf(moved) * (len(means) - 1)).astype(int)
        ends.append(np.take_along_axis(ordered, place[None], 0)[0])
    return np.stack(ends)


def _studentised(values: Values) -> Values:
    """Bootstrap-t: quantiles of (mean of a sample - mean) / (its standard error)."""
    means, errors = _resampled(values)
    mean, error = values.mean(0), stats.sem(values)
    with np.errstate(all="ignore"):
        t = np.where(errors > 1e-9 * error, (means - mean) / errors, np.nan)
    low, high = np.nanpercentile(t, [2.5, 97.5], axis=0)
    return np.stack([mean - high * error, mean - low * error])


def _logit_of_values(values: Values) -> Values:
    if values.min() <= 0 or values.max() >= 1:
        return np.full((2, values.shape[1]), np.nan)
    return np.asarray(special.expit(students_t_interval(special.logit(values))))


def _logit_of_mean(values: Values) -> Values:
    """t for the logit of the mean, whose standard error is that of the mean / (mean (1 - mean))."""
    if values.min() <= 0 or values.max() >= 1:
        return np.full((2, values.shape[1]), np.nan)
    mean = values.mean(0)
    half = students_t_interval(values)[1] - mean
    logit, half = special.logit(mean), half / (mean * (1 - mean))
    return np.asarray(special.expit(np.stack([logit - half, logit + half])))


METHODS: dict[str, Method] = {
    "percentile bootstrap": _percentile,
    "BCa bootstrap": _bca,
    "studentised bootstrap": _studentised,
    "t": students_t_interval,
    "t on logits of persons": _logit_of_values,
    "t on the logit of the mean": _logit_of_mean,
    "trinat": mean_interval,
}


def coverage(
    method: Method, draw: Draw, mean: float, persons: int, trials: int
) -> tuple[float, float]:
    """How many of the intervals hold the mean, in percent, and their median width."""
    generator = np.random.default_rng(1)
    held, widths = [], []
    for start in range(0, trials, _AT_ONCE):
        low, high = method(draw(generator, (persons, min(_AT_ONCE, trials - start))))
        held.append((low <= mean) & (mean <= high))
        widths.append(high - low)
    if np.isnan(widths[0]).all():
        return float("nan"), float("nan")
    return float(100 * np.concatenate(held).mean()), float(
        np.median(np.concatenate(widths))
    )


def run(trials: str = str(_TRIALS)) -> None:
    print(f"{trials} trials; coverage in percent (median width)")
    for name, (draw, mean) in DISTRIBUTIONS.items():
        print(
            f"\n| {name} |",
            " | ".join(f"{persons} persons" for persons in PERSONS),
            "|",
        )
        print("|---" * (1 + len(PERSONS)) + "|")
        for title, method in METHODS.items():
            cells = [
                coverage(method, draw, mean, persons, int(trials))
                for persons in PERSONS
            ]
            shown = [f"{held:.1f} ({width:.3f})" for held, width in cells]
            print(f"| {title} |", " | ".join(shown), "|", flush=True)
