"""Weights for fusion, fitted to scans with truth: how far each view is to be believed.

Each class by itself is a question with two answers, and each view gives a probability for the
true one; an arithmetic mean mixes these linearly. The weights that make the truth most likely are
found by expectation maximisation: a view's new weight is the mean share that it has in the
mixture. That is concave, has no step size, and rewards what overlap does not: soft Dice is a ratio
of linear functions of the weights, and therefore always best with one view alone.

Each scan counts as one observation, however many voxels it has, since its voxels are not
independent; and beside the scans stand the weights to start from, as if seen on so many scans
(`VIEW_PRIOR` for all classes together, `CLASS_PRIOR` for one class). Few scans thus move the
views as a whole a little, and single classes hardly.

Both sides of a structure share one weight, so they are fitted as one, and no side is needed of
the sagittal view.

A geometric mean of the views takes the same weights; whether it is better is tried, not fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.fusion import Fusion
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
# Voxels without neighbours, as slices of one voxel each.
_IN_A_ROW = SliceAxes(0, 1, 2)

Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Contested:
    """A scan as far as weights decide on it: the voxels that are not the same with all of them.

    Where each view gives more than 0.75 to one and the same class, that class has over half of
    the fused probability whatever the weights: 0.75 from each view that tells sides, and 0.75 of
    0.75 from the sagittal one. A geometric mean gives it as much, and at most 0.25 to any other.
    Such voxels are only counted.
    """

    truth: NDArray[np.uint8]  # (N,)
    probabilities: Mapping[View, NDArray[np.float16]]  # (N, K or merged K)
    decided: NDArray[np.int64]  # voxels by true and fused class, (K, K)

    def joint(
        self,
        scheme: LabelScheme,
        weights: Mapping[View, NDArray[np.floating]],
        mean: Mean = "arithmetic",
    ) -> NDArray[np.int64]:
        """All voxels of the scan by true and fused class, (K, K), with these weights."""
        views = tuple(self.probabilities)
        axes, sagittal = (
            dict.fromkeys(views, _IN_A_ROW),
            self.probabilities.get(View.SAGITTAL),
        )
        merged = sagittal is not None and sagittal.shape[1] != len(scheme)
        joint = self.decided.copy()
        for start in range(0, len(self.truth), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            truth = self.truth[chunk]
            shape = (len(truth), 1, 1)
            fusion = Fusion(
                shape,
                scheme,
                views,
                weights,
                axes=axes,
                sagittal_is_merged=merged,
                mean=mean,
            )
            for view, given in self.probabilities.items():
                fusion.add(
                    view, 0, torch.from_numpy(given[chunk]).float()[:, None, None]
                )
            fused = fusion.finish().argmax(-1).flatten().numpy()
            joint += _count(truth, fused, len(scheme))
        return joint


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one scan says of the views: by class (sides as one), the probability that each view
    gives to the true answer, (V, N); an empty array where the scan says nothing."""

    views: tuple[View, ...]
    likelihoods: tuple[NDArray[np.float32], ...]

    @classmethod
    def of(
        cls,
        contested: Contested,
        scheme: LabelScheme,
        generator: np.random.Generator,
        *,
        without: Sequence[int] = (),
    ) -> Evidence:
        """From a sample of a scan's contested voxels; classes `without` are not looked at."""
        groups = _groups(scheme)
        truth = groups[contested.truth]
        onto = np.eye(int(groups.max()) + 1, dtype=np.float32)[groups]
        given = np.stack(
            [
                p.astype(np.float32) @ onto
                if p.shape[1] == len(groups)
                else p.astype(np.float32)
                for p in contested.probabilities.values()
            ]
        )
        left_out = set(groups[list(without)].tolist())
        found = []
        for group in range(given.shape[2]):
            of_group = given[:, :, group]
            asked = np.flatnonzero((truth == group) | (of_group > _NOTICED).any(0))
            if group in left_out:
                asked = asked[:0]
            if len(asked) > _VOXELS:
                asked = generator.choice(asked, _VOXELS, replace=False)
            right = np.where(
                truth[asked] == group, of_group[:, asked], 1 - of_group[:, asked]
            )
            found.append(np.clip(right, _LEAST, 1))
        return cls(tuple(contested.probabilities), tuple(found))


def contest(
    truth: NDArray[np.uint8], probabilities: Mapping[View, Tensor], scheme: LabelScheme
) -> Contested:
    """Which voxels of a scan depend on weights: truth (X, Y, Z) as class indices, and each view's
    probabilities (X, Y, Z, K or merged K)."""
    sided = {view: p.shape[-1] == len(scheme) for view, p in probabilities.items()}
    groups = torch.from_numpy(_groups(scheme))
    kept: dict[View, list[NDArray[np.float16]]] = {view: [] for view in probabilities}
    truths = []
    decided = np.zeros((len(scheme), len(scheme)), np.int64)
    # Slab by slab: a copy of all probabilities in 32 bits is larger than what is kept.
    for x, slab in enumerate(truth):
        best = {view: p[x].float().max(-1) for view, p in probabilities.items()}
        chosen = next(best[view].indices for view in probabilities if sided[view])
        agreed = torch.ones_like(chosen, dtype=torch.bool)
        for view, (value, index) in best.items():
            same = index == (chosen if sided[view] else groups[chosen])
            agreed &= same & (value > _DECIDED)
        open_ = ~agreed
        decided += _count(slab[agreed.numpy()], chosen[agreed].numpy(), len(scheme))
        truths.append(slab[open_.numpy()])
        for view, p in probabilities.items():
            kept[view].append(p[x][open_].half().numpy())
    return Contested(
        np.concatenate(truths),
        {view: np.concatenate(p) for view, p in kept.items()},
        decided,
    )


def fit_weights(
    evidence: Sequence[Evidence], scheme: LabelScheme
) -> tuple[dict[View, float], dict[View, Values]]:
    """Weights of the views for all classes, and for each class, (K,); both sum to 1 over views."""
    views = evidence[0].views
    start = np.array([DEFAULT_WEIGHTS[view] for view in views])
    groups = range(len(evidence[0].likelihoods))
    # Each scan counts as one, and in it each class as much as any other.
    everything = [
        (likelihood, 1 / sum(part.shape[1] > 0 for part in scan.likelihoods))
        for scan in evidence
        for likelihood in scan.likelihoods
        if likelihood.shape[1]
    ]
    overall = _mix(everything, start / start.sum(), VIEW_PRIOR)
    by_group = []
    for g in groups:
        parts = [(s.likelihoods[g], 1.0) for s in evidence if s.likelihoods[g].shape[1]]
        by_group.append(_mix(parts, overall, CLASS_PRIOR))
    by_class = np.stack(by_group)[_groups(scheme)]
    return (
        dict(zip(views, overall.tolist(), strict=True)),
        dict(zip(views, by_class.T, strict=True)),
    )


def _mix(
    parts: Sequence[tuple[NDArray[np.float32], float]], prior: Values, scans: float
) -> Values:
    """The most probable weights (V,), given likelihoods (V, N) that count so much each, and a
    prior that counts as so many scans."""
    if not parts:
        return prior
    likelihood = np.concatenate([values for values, _ in parts], axis=1)
    mass = np.concatenate(
        [np.full(v.shape[1], count / v.shape[1]) for v, count in parts]
    )
    weights = prior
    for _ in range(_ROUNDS):
        mixed = weights[:, None] * likelihood
        shares = (mixed / mixed.sum(0)) @ mass
        moved = (shares + scans * prior) / (mass.sum() + scans)
        if np.abs(moved - weights).max() < _CONVERGED:
            return np.asarray(moved)
        weights = moved
    return np.asarray(weights)


def _groups(scheme: LabelScheme) -> NDArray[np.int64]:
    """Class -> number of its structure, sides as one; itself where a scheme has one side only."""
    if scheme.has_unpartnered_sides:
        return np.arange(len(scheme))
    return scheme.merged.to_merged.copy()


def _count(
    truth: NDArray[np.uint8], found: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    pairs = truth.astype(np.int64) * classes + found
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
