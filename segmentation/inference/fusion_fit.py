"""Weights for fusion, fitted to scans with truth: how far each view is to be believed.

Each class by itself is a question with two answers, and each view gives a probability for the
true one; an arithmetic mean mixes these linearly. The weights that make the truth most likely are
found by expectation maximisation: a view's new weight is the mean share that it has in the
mixture. That is concave, has no step size, and rewards what overlap does not: soft Dice is a ratio
of linear functions of the weights, and therefore always best with one view alone.

Each scan counts as one observation, however many voxels it has, since its voxels are not
independent. Beside the scans stand the weights to start from, as if seen on some scans more
(`VIEW_PRIOR` for all classes together, `CLASS_PRIOR` for one class). Few scans thus move the
views as a whole a little, and single classes hardly.

Both sides of a structure share one weight, so they are fitted as one, and no side is needed of
the sagittal view. A class with its partner is a group here.

A geometric mean of the views takes the same weights; whether it is better is tried, not fitted.
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

# Scans that the default weights of the views, and the views' weights for a class, count as.
VIEW_PRIOR = 0.1
CLASS_PRIOR = 1.0

# A view that gives a class more than this has decided for it.
_DECIDED = 0.75
# Voxels that say something of a class: those that have it, and those that a view takes for it.
_NOTICED = 0.05
# Of each class and scan; more would say the same.
_VOXELS = 2000
# No view is believed to be more certain than that.
_LEAST = 0.01
_ROUNDS = 200
_CONVERGED = 1e-5
_CHUNK = 1 << 17
# Voxels without neighbours, as the rows of one slice: slices are fused one at a time.
_IN_A_ROW = SliceAxes(0, 1, 2)

Values = NDArray[np.float64]
Likelihoods = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AmbiguousVoxels:
    """A scan as far as weights decide on it: the voxels that are not the same with all of them.

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
        """All voxels of the scan by true and fused class, (K, K), with these weights.

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
    """What one scan says of the views.

    `likelihoods` has, by group of classes, the probability that each view gives to the true
    answer, (V, N); an empty array where the scan says nothing.
    """

    views: tuple[View, ...]
    likelihoods: tuple[Likelihoods, ...]

    @classmethod
    def of(
        cls,
        ambiguous: AmbiguousVoxels,
        scheme: LabelScheme,
        generator: np.random.Generator,
        *,
        without: Sequence[int] = (),
    ) -> ViewLikelihoods:
        """From a sample of a scan's ambiguous voxels; classes `without` are not looked at.

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
            if group in left_out:
                voxels = voxels[:0]
            if len(voxels) > _VOXELS:
                voxels = generator.choice(voxels, _VOXELS, replace=False)
            found = of_group[:, voxels]
            right = np.where(truth[voxels] == group, found, 1 - found)
            likelihoods.append(np.clip(right, _LEAST, 1))
        return cls(tuple(ambiguous.probabilities), tuple(likelihoods))


def find_ambiguous(
    truth: NDArray[np.uint8],
    probabilities: Mapping[View, Tensor],
    scheme: LabelScheme,
) -> AmbiguousVoxels:
    """Which voxels of a scan depend on weights.

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


def fit_weights(
    evidence: Sequence[ViewLikelihoods], scheme: LabelScheme
) -> tuple[dict[View, float], dict[View, Values]]:
    """Weights of the views for all classes, and for each class, (K,); both sum to 1 over views.

    Where scans say little they stay near the default.
    """
    views = evidence[0].views
    # What is fitted goes to the model's model.yaml, and wins over the default there.
    default = np.array([DEFAULT_WEIGHTS[view] for view in views])
    # For all groups together each scan counts as one, and in it each group as much as any other.
    every: list[tuple[Likelihoods, float]] = []
    for scan in evidence:
        known = [values for values in scan.likelihoods if values.shape[1]]
        every.extend((values, 1 / len(known)) for values in known)
    overall = _fit_mixture(every, default / default.sum(), VIEW_PRIOR)
    by_group = []
    for group in range(len(evidence[0].likelihoods)):
        of_group = [scan.likelihoods[group] for scan in evidence]
        parts = [(values, 1.0) for values in of_group if values.shape[1]]
        by_group.append(_fit_mixture(parts, overall, CLASS_PRIOR))
    by_class = np.stack(by_group)[_groups(scheme)]
    by_view = dict(zip(views, overall.tolist(), strict=True))
    by_view_and_class = dict(zip(views, by_class.T, strict=True))
    return by_view, by_view_and_class


def _fit_mixture(
    parts: Sequence[tuple[Likelihoods, float]], prior: Values, prior_scans: float
) -> Values:
    """The most probable weights (V,), by expectation maximisation.

    Each part is likelihoods (V, N) and how many scans they count as, all N together; the prior
    (V,) counts as `prior_scans`. Without any part it is the prior.
    """
    if not parts:
        return prior
    likelihood = np.concatenate([values for values, _ in parts], axis=1)
    masses = []
    for values, scans in parts:
        voxels = values.shape[1]
        masses.append(np.full(voxels, scans / voxels))
    mass = np.concatenate(masses)
    weights = prior
    for _ in range(_ROUNDS):
        mixed = weights[:, None] * likelihood
        shares = (mixed / mixed.sum(0)) @ mass
        updated = (shares + prior_scans * prior) / (mass.sum() + prior_scans)
        change = np.abs(updated - weights).max()
        weights = updated
        if change < _CONVERGED:
            break
    return np.asarray(weights)


def _decide(
    probabilities: Mapping[View, Tensor], groups: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Class that a view chooses (Y, Z), and where all views have decided for it or its group."""
    values = {}
    indices = {}
    chosen = None
    for view, of_view in probabilities.items():
        best = of_view.float().max(-1)
        values[view] = best.values
        indices[view] = best.indices
        # Of the first view that tells sides.
        if chosen is None and of_view.shape[-1] == classes:
            chosen = best.indices
    assert chosen is not None
    agreed = torch.ones_like(chosen, dtype=torch.bool)
    for view, of_view in probabilities.items():
        expected = chosen if of_view.shape[-1] == classes else groups[chosen]
        agreed &= (indices[view] == expected) & (values[view] > _DECIDED)
    return chosen, agreed


def _by_group(ambiguous: AmbiguousVoxels, groups: NDArray[np.int64]) -> Likelihoods:
    """What each view gives to each group at the ambiguous voxels, (V, N, G)."""
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
    """Class -> number of its structure, sides as one; itself where a scheme has one side only."""
    if scheme.has_unpartnered_sides:
        return np.arange(len(scheme))
    return scheme.merged.to_merged.copy()


def _count_pairs(
    truth: NDArray[np.uint8],
    found: NDArray[np.int64],
    classes: int,
) -> NDArray[np.int64]:
    """Voxels by true and found class, (K, K)."""
    pairs = truth.astype(np.int64) * classes + found
    counts = np.bincount(pairs, minlength=classes**2)
    return counts.reshape(classes, classes)
