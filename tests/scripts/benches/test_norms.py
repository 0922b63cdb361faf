"""The simulated persons of scripts/bench norms: z of the true curve is their own number."""

from __future__ import annotations

import numpy as np
import pytest
from benches.norms import SHAPES, people


@pytest.mark.parametrize("name", list(SHAPES))
def test_persons_differ_from_the_median_of_their_equals_by_chance_alone(
    name: str,
) -> None:
    shape = SHAPES[name]
    controls = people(0, 2000, shape)
    assert controls.intracranial_mm3 is not None
    head = controls.intracranial_mm3 / 1.45e6
    median = shape(controls.age, controls.is_male, head, np.zeros(2000))
    assert (median > 0).all()
    assert np.mean(controls.volume_mm3 < median) == pytest.approx(0.5, abs=0.04)
