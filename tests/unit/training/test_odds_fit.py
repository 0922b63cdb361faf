"""Fitted odds of structures: the factors that suit scans with a truth, and their criteria."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
    without_truth,
)

SCHEME = load_scheme("quicknat33")
LEFT, RIGHT, CORTEX = (
    SCHEME.names.index(name)
    for name in ("Left-Pallidum", "Right-Pallidum", "Left-Cerebral-Cortex")
)
FIXED = [0, SCHEME.names.index("CSF")]
NO_ODDS = np.zeros(len(SCHEME))


def row(voxels: list[dict[int, float]]) -> Tensor:
    """Return probabilities (1, 1, N, K) of a row of voxels, given by class."""
    fused = torch.zeros(1, 1, len(voxels), len(SCHEME), dtype=torch.float16)
    for place, probabilities in enumerate(voxels):
        for index, probability in probabilities.items():
            fused[0, 0, place, index] = probability
    return fused


def truth(*classes: int) -> np.ndarray:
    return np.array([[classes]], np.uint8)


@pytest.mark.parametrize("seed", range(3))
def test_kept_voxels_say_what_all_of_the_scan_would(seed: int) -> None:
    generator = np.random.default_rng(seed)
    # No voxel is uncertain between more classes than are considered.
    probabilities = generator.dirichlet([0.3] * 5, (3, 20, 30))
    classes = generator.permuted(
        np.tile(np.arange(len(SCHEME)), (3, 20, 30, 1)), axis=-1
    )
    fused = torch.zeros(3, 20, 30, len(SCHEME)).half()
    fused.scatter_(
        -1,
        torch.from_numpy(classes[..., :5]),
        torch.from_numpy(probabilities).half(),
    )
    true = generator.integers(0, len(SCHEME), fused.shape[:3], np.uint8)
    scan = DoubtfulVoxels.of(fused, true, FIXED)
    assert 0 < len(scan.truth) < true.size
    # Up to the limits of factors; the fixed classes have none.
    logarithms = generator.uniform(-math.log(10), math.log(10), len(SCHEME))
    logarithms[FIXED] = 0
    # The same probabilities, where those below 0.0001 are raised to it.
    weighted = fused.float().clamp(min=1e-4) * torch.from_numpy(np.exp(logarithms))
    expected = np.zeros((len(SCHEME), len(SCHEME)), int)
    np.add.at(expected, (true.ravel(), weighted.argmax(-1).numpy().ravel()), 1)
    np.testing.assert_array_equal(scan.joint(logarithms), expected)
    assert scan.joint(NO_ODDS).sum() == true.size


def test_mean_dice_is_over_what_the_truth_has() -> None:
    """One of two true pallidum voxels is found: 2 * 1 / (2 + 1). Nobody drew the cortex."""
    fused = row([{LEFT: 0.9, 0: 0.1}, {CORTEX: 0.9, LEFT: 0.1}])
    scan = DoubtfulVoxels.of(fused, truth(LEFT, LEFT), FIXED)
    assert scan.mean_dice(NO_ODDS, FIXED) == pytest.approx(2 / 3)
    # Fixed classes do not enter a mean.
    assert scan.mean_dice(NO_ODDS, [*FIXED, LEFT]) == 0
    # Ten times as likely, the second voxel becomes pallidum too.
    odds = logarithms_of({"Left-Pallidum": 9.9}, SCHEME)
    assert scan.mean_dice(odds, FIXED) == 1


def test_truth_beyond_what_was_looked_at_was_missed() -> None:
    """One of three true pallidum voxels is found: 2 * 1 / (3 + 1)."""
    beyond = np.zeros(len(SCHEME), int)
    beyond[LEFT] = 2
    scan = DoubtfulVoxels.of(row([{LEFT: 1.0}]), truth(LEFT), FIXED, beyond)
    assert scan.mean_dice(NO_ODDS, FIXED) == pytest.approx(1 / 2)
    assert scan.true_voxels[LEFT] == 3


def test_a_structure_that_is_drawn_too_small_gains_on_both_sides() -> None:
    """Cortex has 0.6 where the truth is left pallidum: 1.5 is the smallest factor that helps."""
    fused = row([{CORTEX: 0.6, LEFT: 0.4}, {CORTEX: 0.99, LEFT: 0.01}, {RIGHT: 1.0}])
    scan = DoubtfulVoxels.of(fused, truth(LEFT, CORTEX, RIGHT), FIXED)
    odds = fit_odds([scan], SCHEME, FIXED, {})
    ratio = odds.get("Left-Pallidum", 1) / odds.get("Left-Cerebral-Cortex", 1)
    assert 1.5 < ratio < 10
    assert odds.get("Right-Pallidum") == odds.get("Left-Pallidum")
    assert scan.mean_dice(logarithms_of(odds, SCHEME), FIXED) == 1


def test_what_is_right_already_needs_no_factor() -> None:
    fused = row([{CORTEX: 0.6, LEFT: 0.4}, {LEFT: 0.6, CORTEX: 0.4}])
    scan = DoubtfulVoxels.of(fused, truth(CORTEX, LEFT), FIXED)
    assert fit_odds([scan], SCHEME, FIXED, {}) == {}


def test_a_structure_that_no_truth_has_gets_no_factor() -> None:
    """Lower odds of cortex would help the pallidum, but no truth has cortex."""
    fused = row([{CORTEX: 0.6, LEFT: 0.4}, {RIGHT: 1.0}])
    scan = DoubtfulVoxels.of(fused, truth(LEFT, RIGHT), FIXED)
    undrawn = without_truth([scan])
    assert CORTEX in undrawn
    assert LEFT not in undrawn
    odds = fit_odds([scan], SCHEME, [*FIXED, *undrawn], {})
    assert set(odds) == {"Left-Pallidum", "Right-Pallidum"}
    assert odds["Left-Pallidum"] > 1.5


def test_of_a_pair_the_fixed_side_has_no_factor() -> None:
    fused = row([{CORTEX: 0.6, LEFT: 0.4}, {CORTEX: 0.99, LEFT: 0.01}])
    scan = DoubtfulVoxels.of(fused, truth(LEFT, CORTEX), FIXED)
    odds = fit_odds([scan], SCHEME, [*FIXED, RIGHT], {})
    assert "Right-Pallidum" not in odds
    assert scan.mean_dice(logarithms_of(odds, SCHEME), [*FIXED, RIGHT]) == 1


def test_a_class_that_is_not_fitted_keeps_the_factor_of_the_model() -> None:
    """Cortex of 0.3 times 4 hides the pallidum of 0.7: its factor must be above 1.2 / 0.7."""
    fused = row([{LEFT: 0.7, CORTEX: 0.3}, {RIGHT: 1.0}])
    scan = DoubtfulVoxels.of(fused, truth(LEFT, RIGHT), FIXED)
    own = {"Left-Cerebral-Cortex": 4.0, "Left-Pallidum": 0.1}
    odds = fit_odds([scan], SCHEME, [*FIXED, CORTEX], own)
    assert odds["Left-Cerebral-Cortex"] == 4
    # Fitted anew, from 1.
    assert 1.71 < odds["Left-Pallidum"] < 2.5
    assert odds["Left-Pallidum"] == odds["Right-Pallidum"]


def test_a_gain_that_is_not_worth_the_distance_is_not_taken() -> None:
    """One voxel of 20,000 gains less than its factor must."""
    voxels = [{CORTEX: 0.75, LEFT: 0.25}] + [{LEFT: 1.0}] * 20_000 + [{CORTEX: 1.0}]
    true = (LEFT,) * 20_001 + (CORTEX,)
    scan = DoubtfulVoxels.of(row(voxels), truth(*true), [*FIXED, CORTEX])
    assert fit_odds([scan], SCHEME, [*FIXED, CORTEX], {}) == {}
