"""Uncertainty of networks: disagreement of views, and variation over samples (arXiv 1811.09800).

Samples are predictions of the same scan with dropout as in training.
"""

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

# Slices whose entropy is computed at a time.
_SLAB = 8


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Variation of several predictions of one scan, which are called samples.

    Values are NaN for a class that is in no sample. With one sample, `pairwise_dice` and
    `volume_cv` are NaN for all classes.

    Attributes
    ----------
    entropy : array (X, Y, Z)
        Entropy of the mean of the samples, in nats.
    iou : array (K,)
        Intersection over union of each class: the number of voxels that have the class in all
        samples, divided by the number of those that have it in any sample.
    pairwise_dice : array (K,)
        Mean Dice of each class over all pairs of samples.
    volume_cv : array (K,)
        Coefficient of variation of each class's volume: standard deviation divided by mean.
    """

    entropy: NDArray[np.float32]
    iou: NDArray[np.float64]
    pairwise_dice: NDArray[np.float64]
    volume_cv: NDArray[np.float64]


class Samples:
    """Accumulator of several predictions of one scan: running mean, and class map of each.

    Memory grows by one byte a voxel for each prediction.
    """

    def __init__(self) -> None:
        self._maps: list[Tensor] = []
        self._mean: Tensor | None = None

    def add(self, probabilities: Tensor) -> None:
        """Add the class probabilities of one prediction, (X, Y, Z, K) float16."""
        labels = probabilities.argmax(-1)
        self._maps.append(labels.to(torch.uint8).cpu())
        if self._mean is None:
            self._mean = torch.zeros_like(probabilities)
        # A running mean, because a sum of many samples would lose precision in float16.
        self._mean += (probabilities - self._mean) / len(self._maps)

    def summarise(self) -> Uncertainty:
        """Return the variation of the predictions added so far; there must be at least one."""
        assert self._mean is not None
        classes = self._mean.shape[-1]
        unknown = np.full(classes, np.nan)
        pairwise_dice = unknown
        volume_cv = unknown
        if len(self._maps) > 1:
            pairwise_dice = mean_dice_of_pairs(self._maps, classes)
            counts = [
                np.bincount(labels.flatten(), minlength=classes)
                for labels in self._maps
            ]
            volumes = np.array(counts, np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                volume_cv = np.asarray(volumes.std(0, ddof=1) / volumes.mean(0))
        # Voxels that have the class in all samples, and in any sample.
        maps = torch.stack(self._maps)
        same_in_all = (maps == maps[0]).all(0)
        in_all = np.bincount(maps[0][same_in_all], minlength=classes)
        in_any = np.zeros(classes)
        for k in range(classes):
            in_any[k] = float((maps == k).any(0).sum())
        with np.errstate(invalid="ignore", divide="ignore"):
            iou = np.asarray(in_all / in_any)
        return Uncertainty(
            entropy=entropy_of(self._mean),
            iou=iou,
            pairwise_dice=pairwise_dice,
            volume_cv=volume_cv,
        )


def entropy_of(probabilities: Tensor) -> NDArray[np.float32]:
    """Return the entropy of probabilities (..., K) in nats: 0 for certainty, at most log K."""
    parts = []
    for slab in torch.split(probabilities, _SLAB):
        terms = torch.special.entr(slab.float())
        parts.append(terms.sum(-1).cpu())
    return np.asarray(torch.cat(parts).numpy())


def dice_of_maps(one: Tensor, other: Tensor, classes: int) -> NDArray[np.float64]:
    """Return the Dice of each class between two class maps, (K,); NaN if both lack the class.

    The maps are of equal shape, and K is `classes`.
    """
    pairs = one.flatten().int() * classes + other.flatten()
    counts = torch.bincount(pairs, minlength=classes**2)
    table = counts.view(classes, classes).double()
    sizes = table.sum(0) + table.sum(1)
    dice = 2 * table.diagonal() / sizes
    return np.asarray(dice.cpu().numpy())


def mean_dice_of_pairs(maps: Sequence[Tensor], classes: int) -> NDArray[np.float64]:
    """Return the mean Dice of each class over all pairs of class maps, (K,); NaN if no map has it.

    There are at least two maps, of equal shape, and K is `classes`.
    """
    pairs = combinations(maps, 2)
    return _mean_where_known([dice_of_maps(*pair, classes) for pair in pairs])


def view_agreement(
    maps: Mapping[View, Tensor],
    scheme: LabelScheme,
    merged_views: tuple[View, ...],
) -> NDArray[np.float64]:
    """Return the mean Dice of each class over all pairs of views, (K,); NaN if no view has it.

    `maps` has the class map of each view. A view of `merged_views` does not tell left from right:
    it is compared with other views without sides, and both sides get the Dice of their common
    class.
    """
    found = []
    for one, other in combinations(maps, 2):
        if (one in merged_views) == (other in merged_views):
            found.append(dice_of_maps(maps[one], maps[other], len(scheme)))
            continue
        merged = scheme.merged
        first = maps[one]
        second = maps[other]
        if one in merged_views:
            second = _merge_sides(second, merged.to_merged)
        else:
            first = _merge_sides(first, merged.to_merged)
        dice = dice_of_maps(first, second, len(merged.scheme))
        found.append(dice[merged.to_merged])
    return _mean_where_known(found)


def _merge_sides(labels: Tensor, to_merged: NDArray[np.int64]) -> Tensor:
    """Convert a map of classes to a map in which left and right have the same class, uint8.

    `to_merged` (K,) has the merged class of each class.
    """
    table = torch.from_numpy(to_merged.astype(np.uint8)).to(labels.device)
    return table[labels.int()]


def _mean_where_known(pairs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean of arrays (K,), ignoring NaN, (K,); NaN where all are NaN."""
    # torch's nanmean, since NumPy's warns if there is no value.
    return np.asarray(torch.from_numpy(np.array(pairs)).nanmean(0))
