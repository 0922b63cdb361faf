"""How sure networks are: how far views disagree, and what dropout changes (arXiv 1811.09800)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Over samples: entropy of the mean (X, Y, Z) in nats; per class (K,), NaN if in no sample."""

    entropy: NDArray[np.float32]
    iou: NDArray[np.float64]  # voxels in all samples, of those in any
    pairwise_dice: NDArray[np.float64]
    volume_cv: NDArray[np.float64]  # standard deviation of the volume, of its mean
    samples: int


class Samples:
    """Collects samples one by one: their running sum, and one map of classes each."""

    def __init__(self, scheme: LabelScheme) -> None:
        self._classes = len(scheme)
        self._maps: list[Tensor] = []
        self._sum: Tensor | None = None

    def add(self, probabilities: Tensor) -> None:
        """Add one sample, (X, Y, Z, K) float16."""
        self._maps.append(probabilities.argmax(-1).to(torch.uint8).cpu())
        if self._sum is None:
            self._sum = torch.zeros_like(probabilities)
        # Running mean: a sum of many would leave the precision of float16.
        self._sum += (probabilities - self._sum) / len(self._maps)

    def summarise(self) -> Uncertainty:
        assert self._sum is not None
        maps, classes = torch.stack(self._maps), self._classes
        volumes = np.array(
            [np.bincount(m.flatten(), minlength=classes) for m in maps], np.float64
        )
        in_all = np.bincount(maps[0][(maps == maps[0]).all(0)], minlength=classes)
        in_any = np.array([float((maps == k).any(0).sum()) for k in range(classes)])
        dice = [dice_of_maps(a, b, classes) for a, b in combinations(maps, 2)]
        with np.errstate(invalid="ignore", divide="ignore"):
            several = len(maps) > 1
            cv = volumes.std(0, ddof=int(several)) / volumes.mean(0)
            unknown = np.full(classes, np.nan)
            entropy, iou = entropy_of(self._sum), in_all / in_any
            pairwise = _mean_where_known(dice) if several else unknown
            return Uncertainty(
                entropy, iou, pairwise, cv if several else unknown, len(maps)
            )


def entropy_of(probabilities: Tensor) -> NDArray[np.float32]:
    """Entropy in nats of probabilities (..., K): 0 where one class is certain, at most log K."""
    parts = []
    for slab in torch.split(probabilities, 8):
        p = slab.float()
        parts.append(torch.special.entr(p).sum(-1).cpu())
    return np.asarray(torch.cat(parts).numpy())


def dice_of_maps(one: Tensor, other: Tensor, classes: int) -> NDArray[np.float64]:
    """Dice of each class between two maps of class indices, (K,); NaN where both lack it."""
    pairs = torch.bincount(
        one.flatten().int() * classes + other.flatten(), minlength=classes**2
    )
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
    return _mean_where_known(found)


def _mean_where_known(pairs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean over those pairs of maps that have the class, (K,); NaN where none has it."""
    # Of torch, since NumPy's warns where there is no value.
    return np.asarray(torch.from_numpy(np.array(pairs)).nanmean(0))
