"""Where the three views disagree: a sign of doubt that costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View

__all__ = ["dice_of_maps", "view_agreement"]


def dice_of_maps(one: Tensor, other: Tensor, classes: int) -> NDArray[np.float64]:
    """Dice of each class between two maps of class indices, (K,); NaN where both lack it."""
    pairs = torch.bincount(one.flatten().int() * classes + other.flatten(), minlength=classes**2)
    table = pairs.view(classes, classes).double()
    sizes = table.sum(0) + table.sum(1)
    return np.asarray((2 * table.diagonal() / sizes).cpu().numpy())


def view_agreement(
    maps: Mapping[View, Tensor], scheme: LabelScheme, merged_views: tuple[View, ...]
) -> NDArray[np.float64]:
    """Mean Dice of each class over the pairs of views, (K,); NaN where none has the class.

    A view that cannot tell sides is compared on merged structures, which both sides then show.
    """
    found = []
    for one, other in combinations(maps, 2):
        if (one in merged_views) == (other in merged_views):
            found.append(dice_of_maps(maps[one], maps[other], len(scheme)))
            continue
        to_merged = torch.from_numpy(scheme.merged.to_merged.astype(np.uint8))
        first, second = (
            maps[view]
            if view in merged_views
            else to_merged.to(maps[view].device)[maps[view].int()]
            for view in (one, other)
        )
        dice = dice_of_maps(first, second, len(scheme.merged.scheme))
        found.append(dice[scheme.merged.to_merged])
    if not found:
        return np.full(len(scheme), np.nan)
    stacked = np.array(found)
    known = np.isfinite(stacked)
    counts = known.sum(0)
    total = np.where(known, stacked, 0).sum(0)
    return np.asarray(np.divide(total, counts, out=np.full(len(scheme), np.nan), where=counts > 0))
