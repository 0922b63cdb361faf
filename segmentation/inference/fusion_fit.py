"""Weights of the views: the voxels of a scan that depend on them, and the weights to try.

The weights are few, and Dice is cheap to compute on the voxels that depend on them. So all weights
of a coarse grid are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Mean
from trinat.segmentation.space.views import SliceAxes, View

# A view has decided for a class that it gives more than this.
_DECIDED = 0.75
# Weights are tried in steps of a tenth, and each view has at least one.
_STEPS = 10
_CHUNK = 1 << 17
# Voxels without neighbours, as the rows of one slice: slices are fused one at a time.
_IN_A_ROW = SliceAxes(0, 1, 2)


@dataclass(frozen=True, eq=False)
class AmbiguousVoxels:
    """The voxels of a scan whose class depends on the weights of the views.

    Where each view gives more than 0.75 to one and the same class, that class has over half of
    the fused probability whatever the weights: 0.75 from each view that tells sides, and 0.75 of
    0.75 from the sagittal one. A geometric mean gives it as much, and at most 0.25 to any other.
    Such voxels are only counted.

    `truth` (N,) and `probabilities` (N, K or merged K) are of the N ambiguous voxels; `decided`
    (K, K) counts the others by true and fused class.
    """

    truth: NDArray[np.uint8]
    probabilities: Mapping[View, NDArray[np.float16]]
    decided: NDArray[np.int64]

    def joint(
        self,
        scheme: LabelScheme,
        weights: Mapping[View, float],
        mean: Mean = "arithmetic",
    ) -> NDArray[np.int64]:
        """Count all voxels of the scan by true and fused class, (K, K), with these weights.

        Voxels whose class no weights can change are counted as they were decided, so that the sum
        is the number of voxels of the scan.
        """
        views = tuple(self.probabilities)
        axes = dict.fromkeys(views, _IN_A_ROW)
        sagittal = self.probabilities.get(View.SAGITTAL)
        is_merged = sagittal is not None and sagittal.shape[1] != len(scheme)
        joint = self.decided.copy()
        for start in range(0, len(self.truth), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            truth = self.truth[chunk]
            fusion = ViewAggregator(
                (1, len(truth), 1),
                scheme,
                views,
                weights,
                axes=axes,
                sagittal_is_merged=is_merged,
                mean=mean,
            )
            for view, probabilities in self.probabilities.items():
                given = torch.from_numpy(probabilities[chunk]).float()
                fusion.add(view, 0, given[None, :, None])
            fused = fusion.finish().argmax(-1).flatten().numpy()
            joint += _count_pairs(truth, fused, len(scheme))
        return joint


def find_ambiguous(
    truth: NDArray[np.uint8],
    probabilities: Mapping[View, Tensor],
    scheme: LabelScheme,
) -> AmbiguousVoxels:
    """Find the voxels of a scan that depend on weights.

    Truth (X, Y, Z) is class indices; each view's probabilities are (X, Y, Z, K or merged K).
    """
    classes = len(scheme)
    # A view with fewer classes does not tell left from right.
    to_merged = torch.arange(classes)
    if any(values.shape[-1] != classes for values in probabilities.values()):
        to_merged = torch.from_numpy(scheme.merged.to_merged.copy())
    kept: dict[View, list[NDArray[np.float16]]] = {view: [] for view in probabilities}
    truths = []
    decided = np.zeros((classes, classes), np.int64)
    # Slab by slab: a copy of all probabilities in 32 bits is larger than what is kept.
    for x, slab in enumerate(truth):
        of_slab = {view: values[x] for view, values in probabilities.items()}
        chosen, agreed = _decide(of_slab, to_merged)
        ambiguous = ~agreed
        true = slab[agreed.numpy()]
        decided += _count_pairs(true, chosen[agreed].numpy(), classes)
        truths.append(slab[ambiguous.numpy()])
        for view, values in of_slab.items():
            kept[view].append(values[ambiguous].half().numpy())
    joined = {view: np.concatenate(slabs) for view, slabs in kept.items()}
    return AmbiguousVoxels(np.concatenate(truths), joined, decided)


def weights_to_try(views: Sequence[View]) -> list[dict[View, float]]:
    """List weights of the views that sum to 1, in steps of a tenth; each view has some."""
    tried = []
    for steps in product(range(1, _STEPS), repeat=len(views)):
        if sum(steps) == _STEPS:
            weights = [step / _STEPS for step in steps]
            tried.append(dict(zip(views, weights, strict=True)))
    return tried


def _decide(
    probabilities: Mapping[View, Tensor], to_merged: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the class that a view chooses (Y, Z), and where all views have decided for it."""
    classes = len(to_merged)
    values = {}
    indices = {}
    chosen = None
    for view, of_view in probabilities.items():
        best = of_view.float().max(-1)
        values[view] = best.values
        indices[view] = best.indices
        # The first view that tells sides decides on the side.
        if chosen is None and of_view.shape[-1] == classes:
            chosen = best.indices
    assert chosen is not None
    agreed = torch.ones_like(chosen, dtype=torch.bool)
    for view, of_view in probabilities.items():
        expected = chosen if of_view.shape[-1] == classes else to_merged[chosen]
        agreed &= (indices[view] == expected) & (values[view] > _DECIDED)
    return chosen, agreed


def _count_pairs(
    truth: NDArray[np.uint8],
    found: NDArray[np.int64],
    classes: int,
) -> NDArray[np.int64]:
    """Count voxels by true and found class, (K, K)."""
    pairs = truth.astype(np.int64) * classes + found
    counts = np.bincount(pairs, minlength=classes**2)
    return counts.reshape(classes, classes)
