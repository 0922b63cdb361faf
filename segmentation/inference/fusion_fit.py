"""Weights of the views, fitted to scans with truth by expectation maximisation.

Each class is a question with two answers, and each view gives a probability for the true one; an
arithmetic mean of the views mixes these linearly. The fit finds the weights that make the truth
most likely: a view's new weight is the mean share that it has in the mixture. The problem is
concave and has no step size. Soft Dice is no alternative: it is a ratio of linear functions of the
weights, and therefore always best with one view alone.

Each scan counts as one observation, however many voxels it has, since its voxels are not
independent, and each structure of a scan counts as much as any other. The default weights count as
`PRIOR_SCANS` scans more, so that few scans move the weights only a little.

Both sides of a structure are one group: no view has to tell them apart.

A geometric mean of the views takes the same weights. Whether it is better is tried, not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import DEFAULT_WEIGHTS, Mean
from trinat.segmentation.space.views import SliceAxes, View

# The default weights count as this many scans.
PRIOR_SCANS = 0.1

# A view has decided for a class that it gives more than this.
_DECIDED = 0.75
# Voxels say something of a class if they have it, or if a view gives it more than this.
_NOTICED = 0.05
# Voxels sampled of each class and scan; more would say the same.
_VOXELS = 2000
# No view is believed to be more certain than this.
_LEAST = 0.01
_ROUNDS = 200
_CONVERGED = 1e-5
_CHUNK = 1 << 17
# Voxels without neighbours, as the rows of one slice: slices are fused one at a time.
_IN_A_ROW = SliceAxes(0, 1, 2)

Likelihoods = NDArray[np.float32]


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
        weights: Mapping[View, NDArray[np.floating]],
        mean: Mean = "arithmetic",
    ) -> NDArray[np.int64]:
        """Count all voxels of the scan by true and fused class, (K, K), with these weights.

        `weights` have an entry a class for each view. Voxels whose class no weights can change are
        counted as they were decided, so that the sum is the number of voxels of the scan.
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


@dataclass(frozen=True, eq=False)
class ViewLikelihoods:
    """A sample of a scan's voxels, to which weights are fitted.

    `likelihoods` (V, N) are the probabilities that each view gives to the true answer; `shares`
    (N,) is how much each voxel counts, 1 in total, or nothing if there is no voxel.
    """

    views: tuple[View, ...]
    likelihoods: Likelihoods
    shares: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        ambiguous: AmbiguousVoxels,
        scheme: LabelScheme,
        generator: np.random.Generator,
        *,
        without: Sequence[int] = (),
    ) -> ViewLikelihoods:
        """Sample a scan's ambiguous voxels; leave out the classes `without`.

        `generator` chooses the sample. For each class those voxels count that have it, or that some
        view takes for possible. Left and right of a structure are one group.
        """
        groups = _groups(scheme)
        truth = groups[ambiguous.truth]
        given = _by_group(ambiguous, groups)
        left_out = set(groups[list(without)].tolist())
        likelihoods = []
        for group in range(given.shape[2]):
            of_group = given[:, :, group]
            noticed = (truth == group) | (of_group > _NOTICED).any(0)
            voxels = np.flatnonzero(noticed)
            if group in left_out or not len(voxels):
                continue
            if len(voxels) > _VOXELS:
                voxels = generator.choice(voxels, _VOXELS, replace=False)
            found = of_group[:, voxels]
            right = np.where(truth[voxels] == group, found, 1 - found)
            likelihoods.append(np.clip(right, _LEAST, 1))
        views = tuple(ambiguous.probabilities)
        if not likelihoods:
            return cls(views, np.zeros((len(views), 0), np.float32), np.zeros(0))
        shares = []
        for values in likelihoods:
            voxels = values.shape[1]
            shares.append(np.full(voxels, 1 / len(likelihoods) / voxels))
        return cls(views, np.concatenate(likelihoods, 1), np.concatenate(shares))


def find_ambiguous(
    truth: NDArray[np.uint8],
    probabilities: Mapping[View, Tensor],
    scheme: LabelScheme,
) -> AmbiguousVoxels:
    """Find the voxels of a scan that depend on weights.

    Truth (X, Y, Z) is class indices; each view's probabilities are (X, Y, Z, K or merged K).
    """
    groups = torch.from_numpy(_groups(scheme))
    classes = len(scheme)
    kept: dict[View, list[NDArray[np.float16]]] = {view: [] for view in probabilities}
    truths = []
    decided = np.zeros((classes, classes), np.int64)
    # Slab by slab: a copy of all probabilities in 32 bits is larger than what is kept.
    for x, slab in enumerate(truth):
        of_slab = {view: values[x] for view, values in probabilities.items()}
        chosen, agreed = _decide(of_slab, groups, classes)
        ambiguous = ~agreed
        true = slab[agreed.numpy()]
        decided += _count_pairs(true, chosen[agreed].numpy(), classes)
        truths.append(slab[ambiguous.numpy()])
        for view, values in of_slab.items():
            kept[view].append(values[ambiguous].half().numpy())
    joined = {view: np.concatenate(slabs) for view, slabs in kept.items()}
    return AmbiguousVoxels(np.concatenate(truths), joined, decided)


def fit_weights(evidence: Sequence[ViewLikelihoods]) -> dict[View, float]:
    """Fit the weights of the views, which sum to 1, to scans.

    Where the scans say little, the weights stay near the default.
    """
    views = evidence[0].views
    prior = np.array([DEFAULT_WEIGHTS[view] for view in views])
    prior = prior / prior.sum()
    likelihoods = np.concatenate([scan.likelihoods for scan in evidence], axis=1)
    shares = np.concatenate([scan.shares for scan in evidence])
    weights = prior
    for _ in range(_ROUNDS):
        mixed = weights[:, None] * likelihoods
        explained = (mixed / mixed.sum(0)) @ shares
        updated = (explained + PRIOR_SCANS * prior) / (shares.sum() + PRIOR_SCANS)
        change = np.abs(updated - weights).max()
        weights = updated
        if change < _CONVERGED:
            break
    return dict(zip(views, weights.tolist(), strict=True))


def _decide(
    probabilities: Mapping[View, Tensor], groups: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return the class that a view chooses (Y, Z), and where all views have decided for it."""
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
        expected = chosen if of_view.shape[-1] == classes else groups[chosen]
        agreed &= (indices[view] == expected) & (values[view] > _DECIDED)
    return chosen, agreed


def _by_group(ambiguous: AmbiguousVoxels, groups: NDArray[np.int64]) -> Likelihoods:
    """Return the probability that each view gives to each group, (V, N, G)."""
    count = int(groups.max()) + 1
    to_groups = np.eye(count, dtype=np.float32)[groups]
    given = []
    for probabilities in ambiguous.probabilities.values():
        of_view = probabilities.astype(np.float32)
        if of_view.shape[1] == len(groups):
            of_view = of_view @ to_groups
        given.append(of_view)
    return np.stack(given)


def _groups(scheme: LabelScheme) -> NDArray[np.int64]:
    """Number the structures of the classes, (K,), with both sides of a structure as one.

    In a scheme that has some structures on one side only, each class is by itself.
    """
    if scheme.has_unpartnered_sides:
        return np.arange(len(scheme))
    return scheme.merged.to_merged.copy()


def _count_pairs(
    truth: NDArray[np.uint8],
    found: NDArray[np.int64],
    classes: int,
) -> NDArray[np.int64]:
    """Count voxels by true and found class, (K, K)."""
    pairs = truth.astype(np.int64) * classes + found
    counts = np.bincount(pairs, minlength=classes**2)
    return counts.reshape(classes, classes)
