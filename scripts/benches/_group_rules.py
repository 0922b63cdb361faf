"""Shares of p below 0.05 without an effect, by rule for standard errors and for weights.

Studies are drawn in designs: all studies of a design have the same persons, so that a rule is
computed for all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from trinat.segmentation.metrics.linear_model import Contrast, Design

Values = NDArray[np.float64]

_SIGNIFICANT = 0.05
_DESIGNS = 60
_STUDIES_OF_DESIGN = 300
# Persons of both groups, and the standard deviation of the first relative to the second.
_GROUPS = (
    *((4, 4, 1), (3, 27, 1), (3, 27, 2), (4, 20, 1), (4, 20, 2), (6, 30, 2)),
    *((10, 10, 1), (12, 36, 1), (12, 36, 2), (20, 60, 1), (8, 72, 2), (8, 72, 0.5)),
)
_LEVENE = 0.1  # variances with a smaller p of Levene's test count as different
# Controls and patients, and the most visits of each, within so many years.
_PERSONS_WITH_VISITS = ((10, 6), (25, 15), (50, 30))
_VISITS = (5, 3)
_YEARS = 4.0


def print_rules() -> None:
    """Print the shares of all rules, in per cent."""
    print("| persons | SD | classical | HC3 | HC3 by Levene | HC2, Bell-McCaffrey |")
    print("|---|---|---|---|---|---|")
    for first, second, sd in _GROUPS:
        shares = _mean(_errors_by_rule(first, second, sd))
        cells = " | ".join(f"{100 * share:.1f}" for share in shares.values())
        print(f"| {first} + {second} | {sd:g} | {cells} |", flush=True)
    print()
    print("| persons (of whom patients) | all alike | as in the report | by spread |")
    print("|---|---|---|---|")
    for controls, patients in _PERSONS_WITH_VISITS:
        shares = _mean(_changes_by_rule(controls, patients))
        cells = " | ".join(f"{100 * share:.1f}" for share in shares.values())
        print(f"| {controls + patients} ({patients}) | {cells} |", flush=True)


def _mean(shares: Iterator[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean share of each rule over designs."""
    found = list(shares)
    return {rule: float(np.mean([each[rule] for each in found])) for rule in found[0]}


def _design(
    draw: np.random.Generator, is_first: NDArray[np.bool_], weights: Values | None
) -> tuple[Design, Contrast]:
    """Return intercept, group, age and sex of persons, and the difference of the groups."""
    while True:
        columns = (
            np.ones(len(is_first)),
            is_first,
            draw.normal(size=len(is_first)),
            draw.integers(0, 2, len(is_first)),
        )
        design = Design(np.stack(columns, axis=1).astype(float), weights)
        contrast = design.contrast(np.array([0.0, 1.0, 0.0, 0.0]))
        # In small groups sex and group may be the same.
        if contrast is not None and not design.is_fitted_exactly.any():
            return design, contrast


def _errors_by_rule(first: int, second: int, sd: float) -> Iterator[dict[str, float]]:
    """Yield, for each design, the share of p below 0.05 by each rule for the standard error."""
    is_first = np.arange(first + second) < first
    for seed in range(_DESIGNS):
        draw = np.random.default_rng((first, second, seed))
        design, contrast = _design(draw, is_first, None)
        values = draw.normal(size=(len(is_first), _STUDIES_OF_DESIGN))
        values[is_first] *= sd
        inverse = np.linalg.pinv(design.matrix)
        difference = (inverse @ values)[1]
        residuals = values - design.matrix @ (inverse @ values)
        freedom = design.residual_freedom
        rest = 1 - design.leverage[:, None]
        pooled = (residuals**2).sum(0) / freedom
        classical = _p(difference, pooled * contrast.variance, freedom)
        of_persons = inverse[1][:, None] * residuals
        hc3 = _p(difference, ((of_persons / rest) ** 2).sum(0), freedom)
        levene = stats.levene(residuals[is_first], residuals[~is_first], axis=0).pvalue
        hc2 = (contrast.robust_weights[:, None] * residuals**2).sum(0)
        p_values = {
            "classical": classical,
            "HC3": hc3,
            "HC3 by Levene": np.where(levene < _LEVENE, hc3, classical),
            "HC2": _p(difference, hc2, contrast.freedom),
        }
        yield {rule: float((p < _SIGNIFICANT).mean()) for rule, p in p_values.items()}


def _changes_by_rule(controls: int, patients: int) -> Iterator[dict[str, float]]:
    """Yield, for each design, the share of p below 0.05 of the change by each rule for weights.

    A person changes by -0.5 ± 0.5 % a year, and a volume has a noise of 1 %.
    """
    is_patient = np.arange(controls + patients) < patients
    for seed in range(_DESIGNS):
        draw = np.random.default_rng((controls, patients, seed))
        slopes = []
        spreads = []
        for person in is_patient:
            visits = draw.integers(2, _VISITS[int(person)] + 1)
            years = draw.uniform(0, _YEARS, visits)
            years -= years.mean()
            rates = draw.normal(-0.5, 0.5, _STUDIES_OF_DESIGN)
            noise = draw.normal(0, 1, (visits, _STUDIES_OF_DESIGN))
            spread = float((years**2).sum())
            slopes.append(rates + years @ noise / spread)
            spreads.append(spread)
        spread_of = np.array(spreads)
        rules = {
            "alike": np.ones(len(spreads)),
            "report": spread_of / (spread_of + np.median(spread_of)),
            "spread": spread_of,
        }
        shares = {}
        for rule, weights in rules.items():
            same = np.random.default_rng((controls, patients, seed, 1))
            weights = weights / weights.mean()
            design, contrast = _design(same, is_patient, weights)
            root = np.sqrt(weights)[:, None]
            matrix = root * design.matrix
            values = root * np.array(slopes)
            fitted = np.linalg.pinv(matrix) @ values
            residuals = values - matrix @ fitted
            variance = (contrast.robust_weights[:, None] * residuals**2).sum(0)
            p = _p(fitted[1], variance, contrast.freedom)
            shares[rule] = float((p < _SIGNIFICANT).mean())
        yield shares


def _p(difference: Values, variance: Values, freedom: float) -> Values:
    """Return the two-sided p of differences (S,) with their variances (S,)."""
    t = np.abs(difference) / np.sqrt(variance)
    return np.asarray(2 * special.stdtr(freedom, -t))
