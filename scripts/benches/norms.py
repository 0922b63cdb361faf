"""How well norms of simulated healthy persons say where fresh ones lie, by persons behind them.

    scripts/bench norms [GROUPS]

docs/norms.md has the result, and says what the persons are like.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.evaluate.norms import Controls, fit_curves
from trinat.segmentation.metrics.norms import SEXES, Norms, rows_of

__all__ = ["SHAPES", "people", "run"]

Values = NDArray[np.float64]
# Volumes of persons by age, sex (1 is male), intracranial volume, and a standard normal number.
Shape = Callable[[Values, Values, Values, Values], Values]

_PERSONS = (60, 80, 100, 300, 1000)
_FRESH = 2000
_Z_OF_95 = 1.6449


def _constant(age: Values, is_male: Values, head: Values, own: Values) -> Values:
    return 20_000 * head**0.6 * (1 + 0.02 * is_male) * (1 + 0.09 * own)


def _falling(age: Values, is_male: Values, head: Values, own: Values) -> Values:
    return 260_000 * head**0.8 * (1 - 0.003 * (age - 50)) * (1 + 0.06 * own)


def _hippocampus(age: Values, is_male: Values, head: Values, own: Values) -> Values:
    """Lost from 50 on, ever faster, and more in some than in others."""
    lost = 0.1 * np.clip((age - 50) / 30, 0, None) ** 2
    spread = 380 * (1 + 0.006 * (age - 50))
    return 4200 * head**0.45 * (1 - lost + 0.01 * is_male) + spread * own


def _ventricle(age: Values, is_male: Values, head: Values, own: Values) -> Values:
    """Log-normal, and growing ever faster."""
    years = age - 45
    median = 9000 * head**1.2 * np.exp(0.022 * years + 0.0002 * years**2)
    return np.asarray(median * np.exp((0.38 + 0.001 * (age - 50)) * own))


SHAPES: dict[str, Shape] = {
    "constant": _constant,
    "falling with age": _falling,
    "as hippocampus": _hippocampus,
    "as ventricle": _ventricle,
}


def people(seed: int, count: int, shape: Shape) -> Controls:
    """Persons of 20 to 85 years; men have heads that are 13 % larger."""
    draw = np.random.default_rng(seed)
    age = draw.uniform(20, 85, count)
    is_male = draw.integers(0, 2, count).astype(float)
    head_mm3 = np.exp(draw.normal(np.log(1.4e6) + 0.12 * is_male, 0.085))
    own = draw.normal(size=count)
    volume_mm3 = shape(age, is_male, head_mm3 / 1.45e6, own)
    return Controls(volume_mm3, age, is_male, head_mm3)


def _z_of(fresh: Controls, norms: Norms) -> Values:
    """Of each fresh person; NaN of whom the norms say nothing."""
    z = np.full(len(fresh.age), np.nan)
    assert fresh.intracranial_mm3 is not None
    for number, age in enumerate(fresh.age):
        curve = norms.curves["structure", SEXES[int(fresh.is_male[number])]]
        if curve.ages[0] <= age < curve.ages[-1] + 1:
            equals = curve.at(age, fresh.intracranial_mm3[number])
            z[number] = equals.z(fresh.volume_mm3[number])
    return z


def run(groups: str = "60") -> None:
    print(f"{groups} groups of controls a row, {_FRESH} fresh persons each")
    print("| persons | structure | below p5 | above p95 | one group | z | SD | known |")
    print("|---|---|---|---|---|---|---|---|")
    for persons in _PERSONS:
        for name, shape in SHAPES.items():
            below = []
            above = []
            means = []
            spreads = []
            known = []
            for group in range(int(groups)):
                curves = fit_curves(people(group, persons, shape))
                rows = []
                for sex, curve in curves.items():
                    rows += rows_of("structure", sex, curve, "")
                z = _z_of(people(100_000 + group, _FRESH, shape), Norms.of(rows))
                known.append(np.isfinite(z).mean())
                z = z[np.isfinite(z)]
                below.append(100 * (z < -_Z_OF_95).mean())
                above.append(100 * (z > _Z_OF_95).mean())
                means.append(z.mean())
                spreads.append(z.std())
            low, high = np.quantile([*below, *above], [0.05, 0.95])
            print(
                f"| {persons} | {name} | {np.mean(below):.1f} % | {np.mean(above):.1f} % "
                f"| {low:.1f} to {high:.1f} % | {np.mean(means):+.2f} "
                f"| {np.mean(spreads):.2f} | {np.mean(known):.0%} |",
                flush=True,
            )
