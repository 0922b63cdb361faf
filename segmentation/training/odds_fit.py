"""Odds of structures, fitted to scans with truth, where a model does not learn.

Networks draw some structures a little too large or too small for a convention of labels that they
have not learnt. What is maximised is the mean Dice itself, one structure after another, in steps:
there is no gradient to follow, and so few numbers do not need one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.odds import Odds
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.overlap import dice

# Slices that are looked at at a time.
_SLAB = 8
# Factors are fitted from 1/10 to 10, in steps of their logarithms.
_FARTHEST = math.log(10)
_STEPS = (-0.6, -0.3, -0.15, 0.15, 0.3, 0.6)
# Every structure is looked at this often, unless nothing changes before.
_ROUNDS = 4
# A step that gains less mean Dice is not taken.
_LEAST_GAIN = 2e-5
# Mean Dice that a factor of e must gain: few scans move rare structures only a little.
_PENALTY = 3e-4
# Classes of a voxel that are looked at, the most probable ones.
_KEPT = 6
# No probability is taken for less.
_LEAST = 1e-4


@dataclass(frozen=True, eq=False)
class DoubtfulVoxels:
    """A scan as far as factors decide on it: the voxels that are not the same with all of them.

    `truth` (N,) is their true class. `classes` and `logarithms` (of probabilities) have an array a
    rank, the most probable class first; `truth` is sorted so that each array is of the first
    voxels, those with at least so many classes. `decided` (K, K) counts all other voxels by true
    and found class.
    """

    truth: NDArray[np.uint8]
    classes: Sequence[NDArray[np.uint8]]
    logarithms: Sequence[NDArray[np.float32]]
    decided: NDArray[np.int64]

    @classmethod
    def of(
        cls, fused: Tensor, truth: NDArray[np.uint8], fixed: Sequence[int]
    ) -> DoubtfulVoxels:
        """Those of a scan with probabilities (X, Y, Z, K); the `fixed` classes have no factor.

        `truth` (X, Y, Z) is class indices.
        """
        count = fused.shape[-1]
        is_fixed = torch.zeros(count, dtype=torch.bool)
        is_fixed[list(fixed)] = True
        decided = torch.zeros(count, count, dtype=torch.int64)
        truths = []
        classes = []
        logarithms = []
        slabs = torch.split(fused, _SLAB)
        true_slabs = torch.split(torch.from_numpy(truth), _SLAB)
        for slab, true in zip(slabs, true_slabs, strict=True):
            best = slab.float().clamp_(min=_LEAST).log_().topk(min(_KEPT, count))
            # One class may lose as much as the other gains.
            reachable = best.values > best.values[..., :1] - 2 * _FARTHEST
            has_factor = (reachable & ~is_fixed[best.indices]).any(-1)
            doubtful = has_factor & reachable[..., 1]
            sure = ~doubtful
            decided += _pairs(true[sure], best.indices[..., 0][sure], count)
            truths.append(true[doubtful])
            classes.append(best.indices[doubtful].to(torch.uint8))
            logarithms.append(best.values[doubtful])
        return cls._sorted(
            torch.cat(truths), torch.cat(classes), torch.cat(logarithms), decided
        )

    @classmethod
    def _sorted(
        cls, truth: Tensor, classes: Tensor, logarithms: Tensor, decided: Tensor
    ) -> DoubtfulVoxels:
        """From N voxels with all that is kept of each, (N, R)."""
        reachable = logarithms > logarithms[:, :1] - 2 * _FARTHEST
        ranks = reachable.sum(1)
        order = ranks.argsort(descending=True)
        # How many voxels have a first class, a second one, and so on.
        lengths = reachable.sum(0).tolist()
        of_rank = []
        logarithms_of_rank = []
        for rank, length in enumerate(lengths):
            voxels = order[:length]
            of_rank.append(classes[voxels, rank].numpy())
            logarithms_of_rank.append(logarithms[voxels, rank].numpy())
        return cls(truth[order].numpy(), of_rank, logarithms_of_rank, decided.numpy())

    def joint(self, logarithms_of_odds: NDArray[np.float64]) -> NDArray[np.int64]:
        """All voxels of the scan by true and found class, (K, K), with factors (K,) of classes."""
        added = logarithms_of_odds.astype(np.float32)
        highest = np.full(len(self.truth), -np.inf, np.float32)
        found = np.zeros(len(self.truth), np.uint8)
        for classes, logarithms in zip(self.classes, self.logarithms, strict=True):
            value = logarithms + added[classes]
            is_higher = value > highest[: len(value)]
            np.copyto(highest[: len(value)], value, where=is_higher)
            np.copyto(found[: len(value)], classes, where=is_higher)
        counted = _pairs(
            torch.from_numpy(self.truth), torch.from_numpy(found), len(self.decided)
        )
        joint: NDArray[np.int64] = self.decided + counted.numpy()
        return joint

    def mean_dice(
        self, logarithms_of_odds: NDArray[np.float64], fixed: Sequence[int]
    ) -> float:
        """Mean Dice over the structures that the truth has, without the `fixed` classes."""
        joint = self.joint(logarithms_of_odds)
        values = dice(joint)
        values[joint.sum(1) == 0] = np.nan
        values[list(fixed)] = np.nan
        return float(np.nanmean(values))


def fit_odds(
    scans: Sequence[DoubtfulVoxels], scheme: LabelScheme, fixed: Sequence[int]
) -> dict[str, float]:
    """Factors, by name of class, that give these scans the best mean Dice over structures.

    Both sides of a structure share one. The `fixed` classes, background among them, have none and
    are in no mean; nor have structures that no truth has. Factors that are 1 are left out.
    """
    true_voxels = sum(scan.joint(np.zeros(len(scheme))).sum(1) for scan in scans)
    logarithms = np.zeros(len(scheme))
    best = _worth(scans, logarithms, fixed)
    for _ in range(_ROUNDS):
        before = best
        for group in _groups(scheme, fixed):
            if not np.any(true_voxels[group]):
                continue
            for step in _STEPS:
                tried = logarithms.copy()
                tried[group] += step
                if abs(tried[group[0]]) > _FARTHEST:
                    continue
                worth = _worth(scans, tried, fixed)
                if worth > best + _LEAST_GAIN:
                    best = worth
                    logarithms = tried
        if best == before:
            break
    odds = {}
    for name, logarithm in zip(scheme.names, logarithms, strict=True):
        if abs(logarithm) > _LEAST:
            odds[name] = round(math.exp(logarithm), 2)
    return odds


def logarithms_of(odds: Odds, scheme: LabelScheme) -> NDArray[np.float64]:
    """The logarithm (K,) of each class's factor."""
    return np.log([odds.get(name, 1.0) for name in scheme.names])


def _worth(
    scans: Sequence[DoubtfulVoxels],
    logarithms: NDArray[np.float64],
    fixed: Sequence[int],
) -> float:
    """Mean over scans of their mean Dice, less what factors far from 1 must gain."""
    values = [scan.mean_dice(logarithms, fixed) for scan in scans]
    # Each side of a structure has the penalty by half.
    penalty = _PENALTY * float(np.square(logarithms).sum()) / 2
    return float(np.mean(values)) - penalty


def _groups(scheme: LabelScheme, fixed: Sequence[int]) -> list[list[int]]:
    """Classes that share a factor: both sides of a structure."""
    groups = []
    for index, partner in enumerate(scheme.partner_permutation.tolist()):
        if index not in fixed and index <= partner:
            groups.append(sorted({index, partner}))
    return groups


def _pairs(truth: Tensor, found: Tensor, classes: int) -> Tensor:
    """Voxels by true and found class, (K, K)."""
    pairs = truth.flatten().long() * classes + found.flatten().long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)
