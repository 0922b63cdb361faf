"""Odds of structures: the effect of a factor on the probabilities."""

from __future__ import annotations

import torch

from trinat.segmentation.inference.fusion import multiply_odds
from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
PALLIDUM, CORTEX = (
    SCHEME.names.index(name) for name in ("Left-Pallidum", "Left-Cerebral-Cortex")
)


def test_a_factor_multiplies_a_probability_and_the_sum_stays_one() -> None:
    """0.2 times 3 is 0.6, beside 0.5 and 0.3: 1.4 in all."""
    fused = torch.zeros(1, 1, 2, len(SCHEME)).half()
    fused[0, 0, 0, [0, CORTEX, PALLIDUM]] = torch.tensor([0.5, 0.3, 0.2]).half()
    fused[0, 0, 1, 0] = 1
    multiply_odds(fused, SCHEME, {"Left-Pallidum": 3.0})
    changed = fused[0, 0, 0, [0, CORTEX, PALLIDUM]].float()
    expected = torch.tensor([0.5, 0.3, 0.6]) / 1.4
    torch.testing.assert_close(changed, expected, atol=1e-3, rtol=0)
    assert fused[0, 0, 1, 0] == 1


def test_without_factors_nothing_changes() -> None:
    fused = torch.rand(2, 2, 2, len(SCHEME)).half()
    before = fused.clone()
    multiply_odds(fused, SCHEME, {})
    assert torch.equal(fused, before)


def test_single_voxels_are_multiplied_alike() -> None:
    fused = torch.rand(3, 4, 5, len(SCHEME)).half()
    voxels = fused.flatten(0, 2).clone()
    odds = {"Left-Pallidum": 3.0, "Left-Cerebral-Cortex": 0.5}
    multiply_odds(fused, SCHEME, odds)
    multiply_odds(voxels, SCHEME, odds)
    assert torch.equal(voxels, fused.flatten(0, 2))
    nothing = torch.zeros(0, len(SCHEME)).half()
    multiply_odds(nothing, SCHEME, odds)
    assert nothing.shape == (0, len(SCHEME))
