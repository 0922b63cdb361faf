"""Norms: percentiles worked out by hand, and refusals."""

from __future__ import annotations

import math

import pytest

from trinat.segmentation.metrics.norms import (
    Curve,
    Equals,
    NormError,
    Norms,
    rows_of,
)

# Of women from 20 to 22: 4,000 mm3, then 200 less each year; SD 10 %; the head to the power of 1/2.
CURVE = Curve(
    ages=[20.0, 21.0, 22.0],
    skewness=[1.0, 1.0, 1.0],
    median_mm3=[4000.0, 3800.0, 3600.0],
    spread=[0.1, 0.1, 0.1],
    near=[6, 8, 6],
    participants=90,
    intracranial_mm3=1.5e6,
    intracranial_power=0.5,
    intracranial_from="measured",
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


def test_a_place_is_that_among_participants_of_the_age_and_head() -> None:
    """At 20.5 the median is 3,900; a head that is 1.21 times as large has 1.1 times that."""
    place = norms().place(
        "Left-Hippocampus", 4290 * 1.1, "F", 20.5, {"measured": 1.21 * 1.5e6}
    )
    assert place.z == pytest.approx(1)
    assert place.percentile == pytest.approx(84.13, abs=0.01)
    assert place.high_mm3 == pytest.approx(4290 * 1.1645, abs=0.1)
    assert place.participants == 90


def test_the_last_year_ends_with_its_last_day() -> None:
    place = norms().place("Left-Hippocampus", 3600, "F", 22.9, {"measured": 1.5e6})
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
def test_norms_say_nothing_of_participants_unlike_the_controls(
    structure: str,
    volume: float,
    sex: str | None,
    age: float,
    head: float | None,
    said: str,
) -> None:
    heads = {"measured": head, "table": 1.5e6}
    with pytest.raises(NormError, match=said):
        norms().place(structure, volume, sex, age, heads)


def test_a_table_has_its_curves() -> None:
    again = norms().curves["Left-Hippocampus", "F"]
    assert again == CURVE
    assert norms().model == "abc"
