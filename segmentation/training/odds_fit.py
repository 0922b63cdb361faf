"""Fit of a factor for each structure to labelled scans, without training.

The probability of a structure is multiplied by its factor, called its odds, before the most
probable class is chosen. Networks draw some structures a little too large or too small for a
labelling convention that they were not trained on. The fit maximises the mean Dice directly by
coordinate ascent, one structure after another: Dice of hard labels has no gradient, and so few
numbers do not need one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.fusion import Odds
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.overlap import joint_histogram, mean_dice

# Number of slices that are searched for doubtful voxels at a time.
_SLAB = 8
# Factors are fitted from 1/10 to 10, in steps of their logarithms.
_FARTHEST = math.log(10)
_STEPS = (-0.6, -0.3, -0.15, 0.15, 0.3, 0.6)
# Maximum number of rounds over all structures.
_ROUNDS = 4
# Steps that gain less mean Dice are not taken.
_LEAST_GAIN = 2e-5
# Penalty: mean Dice that a factor of e must gain for each side of a structure. So a few scans
# change the factors of rare structures only a little.
_PENALTY = 1.5e-4
# Number of classes that are stored for a voxel: the most probable ones.
_CLASSES_PER_VOXEL = 6
# Lower probabilities are raised to this value.
_MIN_PROBABILITY = 1e-4


@dataclass(frozen=True, eq=False)
class DoubtfulVoxels:
    """The N voxels of a scan whose class changes if structures get other factors.

    The probability of each structure is multiplied by a factor, its odds. `truth` (N,) is the true
    class of these voxels. `classes[r]` and `logarithms[r]` have the class with rank r and the
    logarithm of its probability; rank 0 is the most probable class. Voxels are sorted by their
    number of possible classes, the highest first, so an array of rank r has the first voxels only,
    those with more than r possible classes. `decided` (K, K) counts all other voxels by true and
    predicted class.
    """

    truth: NDArray[np.uint8]
    classes: Sequence[NDArray[np.uint8]]
    logarithms: Sequence[NDArray[np.float32]]
    decided: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        fused: Tensor,
        truth: NDArray[np.uint8],
        fixed: Sequence[int],
        beyond: NDArray[np.int64] | None = None,
    ) -> DoubtfulVoxels:
        """Find the voxels of a scan whose class changes if structures get other factors.

        `fused` (X, Y, Z, K) are probabilities, `truth` (X, Y, Z) class indices. The classes in
        `fixed` have no factor. `beyond` (K,) counts by true class the voxels outside of these
        arrays, all of which are predicted as background.
        """
        count = fused.shape[-1]
        is_fixed = torch.zeros(count, dtype=torch.bool)
        is_fixed[list(fixed)] = True
        decided = np.zeros((count, count), np.int64)
        if beyond is not None:
            decided[:, 0] += beyond
        truths = []
        classes = []
        logarithms = []
        slabs = torch.split(fused, _SLAB)
        true_slabs = torch.split(torch.from_numpy(truth), _SLAB)
        for slab, true in zip(slabs, true_slabs, strict=True):
            best = (
                slab.float()
                .clamp_(min=_MIN_PROBABILITY)
                .log_()
                .topk(min(_CLASSES_PER_VOXEL, count))
            )
            reachable = _is_reachable(best.values)
            has_factor = (reachable & ~is_fixed[best.indices]).any(-1)
            doubtful = has_factor & reachable[..., 1]
            sure = ~doubtful
            found = best.indices[..., 0][sure]
            decided += _joint_of(true[sure].numpy(), found.numpy(), count)
            truths.append(true[doubtful])
            classes.append(best.indices[doubtful].to(torch.uint8))
            logarithms.append(best.values[doubtful])
        # Sort the N voxels by their number of possible classes.
        by_voxel = torch.cat(classes)  # (N, R), the most probable class first
        logarithms_by_voxel = torch.cat(logarithms)
        reachable = _is_reachable(logarithms_by_voxel)
        order = reachable.sum(1).argsort(descending=True)
        # Number of voxels with at least one possible class, at least two, and so on.
        lengths = reachable.sum(0).tolist()
        by_rank = []
        logarithms_by_rank = []
        for rank, length in enumerate(lengths):
            voxels = order[:length]
            by_rank.append(by_voxel[voxels, rank].numpy())
            logarithms_by_rank.append(logarithms_by_voxel[voxels, rank].numpy())
        true_classes = torch.cat(truths)[order].numpy()
        return cls(true_classes, by_rank, logarithms_by_rank, decided)

    def joint(self, logarithms_of_odds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Count all voxels of the scan by true and predicted class, (K, K), for given factors.

        `logarithms_of_odds` (K,) are the logarithms of the factors on the probabilities of the
        classes.
        """
        added = logarithms_of_odds.astype(np.float32)
        highest = np.full(len(self.truth), -np.inf, np.float32)
        found = np.zeros(len(self.truth), np.uint8)
        for classes, logarithms in zip(self.classes, self.logarithms, strict=True):
            value = logarithms + added[classes]
            is_higher = value > highest[: len(value)]
            np.copyto(highest[: len(value)], value, where=is_higher)
            np.copyto(found[: len(value)], classes, where=is_higher)
        return self.decided + _joint_of(self.truth, found, len(self.decided))

    @property
    def true_voxels(self) -> NDArray[np.int64]:
        """Number of voxels of each class in the truth, (K,)."""
        decided: NDArray[np.int64] = self.decided.sum(1)
        doubtful = np.bincount(self.truth, minlength=len(decided))
        return decided + doubtful

    def mean_dice(
        self, logarithms_of_odds: NDArray[np.float64], fixed: Sequence[int]
    ) -> float:
        """Return the mean Dice over the classes in the truth of this scan, except the `fixed` ones.

        `logarithms_of_odds` (K,) are the logarithms of the factors on the probabilities of the
        classes.
        """
        return mean_dice(self.joint(logarithms_of_odds), fixed)


def fit_odds(
    scans: Sequence[DoubtfulVoxels],
    scheme: LabelScheme,
    fixed: Sequence[int],
    own: Odds,
) -> dict[str, float]:
    """Return the factor on each class's probability that gives the best mean Dice, by name.

    Both sides of a structure share a factor. The classes in `fixed`, which include background, keep
    the factors that the model has (`own`) and are not part of the mean. Factors of 1 are left out
    of the result.
    """
    # Groups of classes that share a factor, without fixed classes.
    groups = []
    for index, partner in enumerate(scheme.partner_permutation.tolist()):
        free = sorted({index, partner} - set(fixed))
        if free and index <= partner:
            groups.append(free)
    logarithms = logarithms_of(own, scheme)
    # Fitted factors start at 1, so that they do not depend on those of the model.
    for group in groups:
        logarithms[group] = 0
    best = _penalised_dice(scans, logarithms, fixed)
    for _ in range(_ROUNDS):
        before = best
        for group in groups:
            for step in _STEPS:
                tried = logarithms.copy()
                tried[group] += step
                if abs(tried[group[0]]) > _FARTHEST:
                    continue
                worth = _penalised_dice(scans, tried, fixed)
                if worth > best + _LEAST_GAIN:
                    best = worth
                    logarithms = tried
        if best == before:
            break
    odds = {}
    for name, logarithm in zip(scheme.names, logarithms.tolist(), strict=True):
        factor = round(math.exp(logarithm), 2)
        if factor != 1:
            odds[name] = factor
    return odds


def without_truth(scans: Sequence[DoubtfulVoxels]) -> list[int]:
    """List the classes that are in the true labels of no scan.

    Nothing is known of these classes, so the caller fits no factor for them.
    """
    true_voxels = sum(scan.true_voxels for scan in scans)
    return np.flatnonzero(true_voxels == 0).tolist()


def logarithms_of(odds: Odds, scheme: LabelScheme) -> NDArray[np.float64]:
    """Return the logarithm of the factor of each class, (K,); 0 for a class without one."""
    return np.log([odds.get(name, 1.0) for name in scheme.names])


def _penalised_dice(
    scans: Sequence[DoubtfulVoxels],
    logarithms: NDArray[np.float64],
    fixed: Sequence[int],
) -> float:
    """Return the objective of the fit: mean Dice over scans, minus a penalty on factors far from 1.

    `logarithms` (K,) are the logarithms of the factors.
    """
    values = [scan.mean_dice(logarithms, fixed) for scan in scans]
    penalty = _PENALTY * float(np.square(logarithms).sum())
    return float(np.mean(values)) - penalty


def _is_reachable(logarithms: Tensor) -> Tensor:
    """Return which classes of voxels can become the most probable by some factors, (..., R).

    `logarithms` (..., R) are those of the probabilities, the most probable class first. Factors may
    make the first class ten times less probable, and another class ten times more.
    """
    return logarithms > logarithms[..., :1] - 2 * _FARTHEST


def _joint_of(
    truth: NDArray[np.integer], found: NDArray[np.integer], classes: int
) -> NDArray[np.int64]:
    """Count voxels by true and predicted class, (N,) and (N,) to (K, K)."""
    # Reshaped to a map of one slice, because `joint_histogram` goes from slice to slice.
    return joint_histogram(truth[None, None], found[None, None], classes)
