"""Tests of the distributions and methods that `scripts/bench intervals` compares."""

from __future__ import annotations

import numpy as np
import pytest
from benches.intervals import CASES, METHODS, coverage


@pytest.mark.parametrize("name", CASES)
def test_the_true_means_are_those_of_the_distributions(name: str) -> None:
    case = CASES[name]
    values = case.draw(np.random.default_rng(0), (1000, 200))
    assert values.mean() == pytest.approx(
        case.mean, abs=4 * values.std() / values.size**0.5
    )


def test_t_covers_the_mean_of_symmetric_values() -> None:
    case = CASES["difference of two Dice, skewness 0"]
    held, width = coverage(METHODS["Student's t"], case, 12, 1000)
    assert 93 < held < 97
    assert width == 1
