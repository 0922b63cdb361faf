"""Norms: places worked out by hand, what is refused, and what a fit says of fresh persons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import optimize

from trinat.segmentation.metrics.norms import (
    Curve,
    Equals,
    NormError,
    Norms,
    rows_of,
)
from trinat.segmentation.metrics.norms_fit import Controls, _Model, fit_curves

# Of women from 20 to 22: 4,000 mm3, then 200 less each year; SD 10 %; the head to the power of 1/2.
CURVE = Curve(
    ages=[20.0, 21.0, 22.0],
    skewness=[1.0, 1.0, 1.0],
    median_mm3=[4000.0, 3800.0, 3600.0],
    spread=[0.1, 0.1, 0.1],
    near=[6, 8, 6],
    persons=90,
    intracranial_mm3=1.5e6,
    intracranial_power=0.5,
)


def norms(curve: Curve = CURVE) -> Norms:
    return Norms.of(rows_of("Left-Hippocampus", "F", curve, "abc"))


@pytest.mark.parametrize(
    ("skewness", "volume", "z"),
    [
        (1.0, 880.0, -1.2),  # (0.88 - 1) / 0.1
        (0.0, 1000 * math.exp(0.15), 1.5),
        (2.0, 1000 * math.sqrt(1.3), 1.5),  # (1.3 - 1) / (2 * 0.1)
    ],
)
def test_a_z_and_its_volume(skewness: float, volume: float, z: float) -> None:
    equals = Equals(skewness, 1000.0, 0.1)
    assert equals.z(volume) == pytest.approx(z)
    assert equals.volume_mm3(z) == pytest.approx(volume)


def test_a_place_is_that_among_persons_of_the_age_and_head() -> None:
    """At 20.5 the median is 3,900, of a head that is 1.21 times as large 1.1 times that."""
    place = norms().place("Left-Hippocampus", 4290 * 1.1, "F", 20.5, 1.21 * 1.5e6)
    assert place.z == pytest.approx(1)
    assert place.percentile == pytest.approx(84.13, abs=0.01)
    assert place.high_mm3 == pytest.approx(4290 * 1.1645, abs=0.1)
    assert place.persons == 90


def test_the_last_year_ends_with_its_last_day() -> None:
    place = norms().place("Left-Hippocampus", 3600, "F", 22.9, 1.5e6)
    assert place.z == pytest.approx(0)


@pytest.mark.parametrize(
    ("structure", "volume", "sex", "age", "head", "said"),
    [
        ("Left-Hippocampus", 1.0, "F", 19.9, 1.5e6, "ages from 20 to 22"),
        ("Left-Hippocampus", 1.0, "F", 23.0, 1.5e6, "ages from 20 to 22"),
        ("Left-Hippocampus", 1.0, "M", 21.0, 1.5e6, "no Left-Hippocampus of sex M"),
        ("Left-Amygdala", 1.0, "F", 21.0, 1.5e6, "no Left-Amygdala"),
        ("Left-Hippocampus", 1.0, "F", 21.0, None, "no intracranial volume"),
        ("Left-Hippocampus", 1.0, None, 21.0, 1.5e6, "age and sex are not known"),
        ("Left-Hippocampus", 0.0, "F", 21.0, 1.5e6, "nothing was found"),
    ],
)
def test_norms_say_nothing_of_persons_unlike_the_controls(
    structure: str,
    volume: float,
    sex: str | None,
    age: float,
    head: float | None,
    said: str,
) -> None:
    with pytest.raises(NormError, match=said):
        norms().place(structure, volume, sex, age, head)


def test_a_table_has_its_curves() -> None:
    again = norms().curves["Left-Hippocampus", "F"]
    assert again == CURVE
    assert norms().model == "abc"


def draw(seed: int, persons: int) -> Controls:
    """Hippocampi that shrink from 50 on, more in some than in others, in larger heads of men."""
    draw = np.random.default_rng(seed)
    age = draw.uniform(20, 85, persons)
    is_male = draw.integers(0, 2, persons).astype(float)
    head = np.exp(draw.normal(np.log(1.4e6) + 0.12 * is_male, 0.085))
    lost = 0.1 * np.clip((age - 50) / 30, 0, None) ** 2
    spread = 380 * (1 + 0.006 * (age - 50))
    volume = 4200 * (head / 1.45e6) ** 0.45 * (1 - lost + 0.01 * is_male)
    return Controls(volume + spread * draw.normal(size=persons), age, is_male, head)


def z_of_fresh(curves: dict[str, Curve], fresh: Controls) -> list[float]:
    """Of all whom the curves say something of."""
    assert fresh.intracranial_mm3 is not None
    found = []
    rows = zip(
        fresh.volume_mm3, fresh.age, fresh.is_male, fresh.intracranial_mm3, strict=True
    )
    for volume, age, is_male, head in rows:
        curve = curves["M" if is_male else "F"]
        if curve.ages[0] <= age < curve.ages[-1] + 1:
            found.append(curve.at(age, head).z(volume))
    return found


@pytest.mark.parametrize("persons", [100, 300, 1000])
def test_fresh_persons_lie_where_norms_say(persons: int) -> None:
    """Of twenty groups of controls, 300 fresh persons each."""
    z: list[float] = []
    for seed in range(20):
        z += z_of_fresh(fit_curves(draw(seed, persons)), draw(1000 + seed, 300))
    assert len(z) > 5500
    below = 100 * np.mean(np.array(z) < -1.645)
    above = 100 * np.mean(np.array(z) > 1.645)
    assert (below, above) == (
        pytest.approx(5, abs=1.5),
        pytest.approx(5, abs=1.5),
    )
    assert np.mean(z) == pytest.approx(0, abs=0.1)
    assert 0.95 < np.std(z) < 1.05


def test_the_gradient_is_that_of_the_likelihood() -> None:
    model = _Model.of(draw(0, 100))
    start = model.start() + 0.01

    def value(parameters: np.ndarray) -> float:
        return model.loss(parameters)[0]

    numeric = optimize.approx_fprime(start, value, 1e-7)
    assert model.loss(start)[1] == pytest.approx(numeric, abs=1e-4)


def years(curve: Curve) -> Sequence[float]:
    return curve.ages


def test_a_curve_ends_where_persons_are_few() -> None:
    """Ninety men from 30 to 39, and four from 60 on; women of all ages from 32 to 36."""
    controls = draw(1, 114)
    age = np.concatenate(
        [np.arange(90) % 10 + 30, [60, 62, 64, 66], np.arange(20) % 5 + 32]
    )
    is_male = np.repeat([1.0, 0.0], [94, 20])
    curves = fit_curves(Controls(controls.volume_mm3, age.astype(float), is_male, None))
    # Within five years of 44 there are those of 39; of 45 there are none.
    assert list(years(curves["M"])) == list(range(30, 45))
    assert list(years(curves["F"])) == list(range(32, 37))
    assert curves["M"].intracranial_power is None
    assert curves["M"].at(35, None).median_mm3 > 0
