"""The methods that `scripts/bench intervals` compares are what they are called."""

from __future__ import annotations

import numpy as np
import pytest
from benches.intervals import DISTRIBUTIONS, METHODS, coverage
from scipy import stats

VALUES = np.random.default_rng(0).beta(25, 5, size=(12, 3))


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_bootstraps_are_scipys(method: str) -> None:
    found = METHODS[f"{method} bootstrap"](VALUES)
    theirs = stats.bootstrap(
        (VALUES,),
        np.mean,
        method=method,
        n_resamples=4000,
        axis=0,
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert np.abs(found - np.stack(theirs)).max() < 0.06 * width.max()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_true_means_are_those_of_the_distributions(name: str) -> None:
    draw, mean = DISTRIBUTIONS[name]
    values = draw(np.random.default_rng(0), (1000, 200))
    assert values.mean() == pytest.approx(mean, abs=4 * values.std() / values.size**0.5)


def test_t_covers_the_mean_of_symmetric_values() -> None:
    draw, mean = DISTRIBUTIONS["difference of two Dice, skewness 0"]
    held, _ = coverage(METHODS["t"], draw, mean, 12, 1000)
    assert 93 < held < 97
