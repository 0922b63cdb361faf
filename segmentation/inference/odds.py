"""Odds of structures: factors on their probabilities, before the most probable class is taken.

A factor above 1 lets a structure win more of the voxels in doubt, one below 1 fewer. `trinat
fit-odds` fits them to scans with truth.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trinat.segmentation.labels.scheme import LabelScheme

# Voxels whose probabilities are multiplied at a time.
_VOXELS_AT_A_TIME = 1 << 18

Odds = Mapping[str, float]  # factor by name of class


def multiply_odds(fused: Tensor, scheme: LabelScheme, odds: Odds) -> None:
    """Multiply the probabilities (X, Y, Z, K) or (N, K) of classes by their factors, in place.

    Sums stay 1. Classes without a factor lose what others gain, or gain what they lose.
    """
    if not odds or not len(fused):
        return
    by_class = [odds.get(name, 1.0) for name in scheme.names]
    factors = torch.tensor(by_class, device=fused.device)
    voxels_of_slice = fused[0, ..., 0].numel()
    slices = max(_VOXELS_AT_A_TIME // voxels_of_slice, 1)
    for slab in torch.split(fused, slices):
        weighted = slab.float() * factors
        slab.copy_(weighted / weighted.sum(-1, keepdim=True).clamp_(min=1e-6))
