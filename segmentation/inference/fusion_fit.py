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

# A view has decided for a class if it gives the class a larger probability than this.
_DECIDED = 0.75
# Number of steps from weight 0 to weight 1; each view has a weight of at least one step.
_STEPS = 10
_CHUNK = 1 << 17
# The ambiguous voxels have no neighbours, so they are fused as a volume (1, N, 1).
_IN_A_ROW = SliceAxes(0, 1, 2)


@dataclass(frozen=True, eq=False)
class AmbiguousVoxels:
    """The voxels of a scan whose fused class may depend on the weights of the views.

    `truth` (N,) has the true class of the N ambiguous voxels, and `probabilities` each view's
    probabilities of them: (N, K), or fewer classes for a view with one class for both sides of a
    structure. All other voxels are decided: `decided` (K, K) counts them by true class (rows) and
    fused class (columns).

    A voxel is decided if all views give more than 0.75 to the same class. That class has over half
    of the fused probability with any weights: 0.75 from each view that tells sides apart, and 0.75
    of 0.75 from the sagittal one. In a geometric mean it has as much, and any other class has at
    most 0.25.
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
        """Count all voxels of the scan by true class and by fused class with these weights: (K, K).

        `weights` has the weight of each view, and `mean` is "arithmetic" or "geometric". Voxels
        whose class does not depend on the weights are included, so that the counts sum to the
        number of voxels of the scan.
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
    """Find the voxels of a scan whose fused class may depend on the weights of the views.

    `truth` (X, Y, Z) has the true class of each voxel. `probabilities` has those of each view: (X,
    Y, Z, K) with the K classes of `scheme`, or fewer for a view with one class for both sides of a
    structure. At least one view must have all K classes.
    """
    classes = len(scheme)
    # A view with fewer classes has merged classes: it does not tell left from right.
    to_merged = torch.arange(classes)
    if any(values.shape[-1] != classes for values in probabilities.values()):
        to_merged = torch.from_numpy(scheme.merged.to_merged.copy())
    kept: dict[View, list[NDArray[np.float16]]] = {view: [] for view in probabilities}
    truths = []
    decided = np.zeros((classes, classes), np.int64)
    # Slab by slab, because a float32 copy of all probabilities would take more memory than the
    # result.
    for x, slab in enumerate(truth):
        of_slab = {view: values[x] for view, values in probabilities.items()}
        chosen, agreed = _find_agreement(of_slab, to_merged)
        ambiguous = ~agreed
        true = slab[agreed.numpy()]
        decided += _count_pairs(true, chosen[agreed].numpy(), classes)
        truths.append(slab[ambiguous.numpy()])
        for view, values in of_slab.items():
            kept[view].append(values[ambiguous].half().numpy())
    joined = {view: np.concatenate(slabs) for view, slabs in kept.items()}
    return AmbiguousVoxels(np.concatenate(truths), joined, decided)


def weights_to_try(views: Sequence[View]) -> list[dict[View, float]]:
    """List all combinations of weights of the views in steps of 0.1 that sum to 1; none is 0."""
    tried = []
    for steps in product(range(1, _STEPS), repeat=len(views)):
        if sum(steps) == _STEPS:
            weights = [step / _STEPS for step in steps]
            tried.append(dict(zip(views, weights, strict=True)))
    return tried


def _find_agreement(
    probabilities: Mapping[View, Tensor], to_merged: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the class that the first view with sides chooses, and a mask of the voxels that agree.

    `probabilities` has those of each view: (Y, Z, K), or fewer classes for a view with one class
    for both sides of a structure. `to_merged` (K,) has that class for each of the K classes. Both
    results are (Y, Z). The mask is True where all views choose that class, each with a probability
    of more than 0.75.
    """
    classes = len(to_merged)
    values = {}
    indices = {}
    chosen = None
    for view, of_view in probabilities.items():
        best = of_view.float().max(-1)
        values[view] = best.values
        indices[view] = best.indices
        # The first view that tells left from right decides on the side.
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
    """Count voxels by true class (rows) and found class (columns), (K, K), with K `classes`."""
    pairs = truth.astype(np.int64) * classes + found
    counts = np.bincount(pairs, minlength=classes**2)
    return counts.reshape(classes, classes)
