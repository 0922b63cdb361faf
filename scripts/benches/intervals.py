"""Simulated coverage and width of 95 % confidence intervals of a mean over persons.

    scripts/bench intervals [STUDIES]

Persons are drawn from distributions that look like Dice, volumes, surface distances and
differences between two models. docs/metrics.md has the result of the method that trinat uses,
docs/notes/statistics.md that of all methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from trinat.segmentation.metrics.statistics import mean_interval

__all__ = ["CASES", "METHODS", "Case", "coverage", "run"]

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Values]

PERSONS = (5, 7, 10, 20)
_STUDIES = 10_000
_RESAMPLES = 2_000
_AT_ONCE = 500  # studies; bounds memory


@dataclass(frozen=True)
class Case:
    """Distribution of the values of persons, with its true mean and its possible range."""

    draw: Draw
    mean: float
    least: float = 0.0
    most: float = np.inf


Method = Callable[[Values, Case], Values]  # (P, studies) to low and high, (2, studies)


def _beta(mean: float, concentration: float) -> Draw:
    a, b = mean * concentration, (1 - mean) * concentration
    return lambda draw, shape: draw.beta(a, b, shape)


def _lognormal(sigma: float) -> Case:
    return Case(
        lambda draw, shape: draw.lognormal(0, sigma, shape), float(np.exp(sigma**2 / 2))
    )


def _failures(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Draw the Dice of a model that fails for one person in ten."""
    failed = draw.random(shape) < 0.1
    return np.where(failed, draw.beta(5, 5, shape), _beta(0.88, 60)(draw, shape))


def _differences(draw: np.random.Generator, shape: tuple[int, int]) -> Values:
    """Draw the difference in Dice of two models with independent errors."""
    return _beta(0.87, 30)(draw, shape) - _beta(0.85, 30)(draw, shape)


CASES = {
    "Dice, mean 0.75, SD 0.10, skewness -0.5": Case(_beta(0.75, 18), 0.75, most=1),
    "Dice, mean 0.85, SD 0.06, skewness -0.7": Case(_beta(0.85, 30), 0.85, most=1),
    "Dice, mean 0.85, SD 0.12, skewness -1.2": Case(_beta(0.85, 8), 0.85, most=1),
    "Dice, mean 0.95, SD 0.05, skewness -1.7": Case(_beta(0.95, 20), 0.95, most=1),
    "Dice of a model that fails for 1 person in 10, skewness -2.8": Case(
        _failures, 0.842, most=1
    ),
    "volume, normal, SD 12 %": Case(
        lambda draw, shape: 1 + 0.12 * draw.standard_normal(shape), 1.0
    ),
    "volume, log-normal, SD 15 %, skewness 0.5": _lognormal(0.15),
    "ventricle or distance, log-normal, SD 53 %, skewness 1.7": _lognormal(0.5),
    "difference of two Dice, skewness 0": Case(_differences, 0.02, least=-1, most=1),
}


def _t(values: Values, case: Case) -> Values:
    return mean_interval(values)


def _logit_of_persons(values: Values, case: Case) -> Values:
    if case.least < 0 or case.most > 1:
        return np.full((2, values.shape[1]), np.nan)
    return np.asarray(special.expit(mean_interval(special.logit(values))))


def _bootstrap(method: str) -> Method:
    def interval(values: Values, case: Case) -> Values:
        found = stats.bootstrap(
            (values,),
            np.mean,
            axis=0,
            method=method,
            n_resamples=_RESAMPLES,
            batch=100,
            rng=np.random.default_rng(0),
        )
        return np.stack(found.confidence_interval)

    return interval


def _farther_of_t_and_hall(values: Values, case: Case) -> Values:
    """Compute the interval that trinat had before: each end the farther of t and Hall's t."""
    persons, mean, error = len(values), values.mean(0), stats.sem(values)
    a = stats.skew(values, bias=False) / np.sqrt(persons)
    quantile = stats.t.ppf(0.975, persons - 1)
    below, above = (
        3 / a * (np.cbrt(1 + a * (t - a / 6)) - 1) for t in (-quantile, quantile)
    )
    return np.stack(
        [
            mean - np.maximum(quantile, above) * error,
            mean - np.minimum(-quantile, below) * error,
        ]
    )


def _trinat(values: Values, case: Case) -> Values:
    least, most = case.least, case.most
    if least < 0:  # of differences
        return mean_interval(values)
    return mean_interval(values, least, most)


METHODS: dict[str, Method] = {
    "percentile bootstrap": _bootstrap("percentile"),
    "BCa bootstrap": _bootstrap("BCa"),
    "Student's t": _t,
    "Student's t on logits of persons": _logit_of_persons,
    "the farther of t and Hall's t": _farther_of_t_and_hall,
    "trinat": _trinat,
}


def coverage(
    method: Method, case: Case, persons: int, studies: int
) -> tuple[float, float]:
    """Return the percentage of intervals that hold the mean, and their width relative to t's.

    Intervals are cut at the ends of the possible range, as reports do; t's are not.
    """
    generator = np.random.default_rng(1)
    held, widths, widths_of_t = [], [], []
    for start in range(0, studies, _AT_ONCE):
        values = case.draw(generator, (persons, min(_AT_ONCE, studies - start)))
        low, high = np.clip(method(values, case), case.least, case.most)
        held.append((low <= case.mean) & (case.mean <= high))
        widths.append(high - low)
        widths_of_t.append(np.subtract(*mean_interval(values)[::-1]))
    if np.isnan(widths[0]).all():
        return float("nan"), float("nan")
    width = np.concatenate(widths).mean() / np.concatenate(widths_of_t).mean()
    return float(100 * np.concatenate(held).mean()), float(width)


def run(studies: str = str(_STUDIES)) -> None:
    print(f"{studies} studies; coverage in percent (mean width, relative to t's)")
    for name, case in CASES.items():
        print(f"\n| {name} |", " | ".join(f"{n} persons" for n in PERSONS), "|")
        print("|---" * (1 + len(PERSONS)) + "|")
        for title, method in METHODS.items():
            cells = [coverage(method, case, n, int(studies)) for n in PERSONS]
            shown = [f"{held:.1f} ({width:.2f})" for held, width in cells]
            print(f"| {title} |", " | ".join(shown), "|", flush=True)
