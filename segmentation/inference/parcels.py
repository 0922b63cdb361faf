"""Parcels of the cortex, predicted by the networks of a second model.

The first model decides which voxels are cortex and on which side; the second one names the parcel.
Only voxels that may be cortex are kept, which saves memory and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.network import SliceProbabilities
from trinat.segmentation.inference.uncertainty import mean_dice_of_pairs
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.space.conform import ConformPlan, restore
from trinat.segmentation.space.views import (
    DirectedAxis,
    SliceAxes,
    View,
    to_slices,
    turned,
)

# Least probability of cortex on the working grid for a voxel that may be cortex in the scan.
_MAY_BE_CORTEX = 0.02
# Lower limit of a parcel's probability in each view of the geometric mean.
_MIN_PROBABILITY = 1e-3
# Smoothing of the cortex: weight of the neighbours' mean at each voxel, and number of iterations.
_NEIGHBOUR_WEIGHT = 0.7
_TIMES = 2


@dataclass(frozen=True, eq=False)
class Parcels:
    """The cortical parcel of each voxel of the working grid (RAS axes, 1 mm) that may be cortex.

    `places` (X, Y, Z) is the mask of these N voxels. `classes` (N,) has the parcel of each of them,
    in C order, as a class of `parcellation.parcels`. `by_view` has the parcels that each view alone
    predicts, (N,) as well.
    """

    parcellation: Parcellation
    places: NDArray[np.bool_]
    classes: NDArray[np.uint8]
    by_view: Mapping[View, NDArray[np.uint8]]

    def agreement(self, structures: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Return the mean Dice between views of each parcel, in the order of `parcellation.names`.

        NaN for a parcel that no view has. `structures` (X, Y, Z) are the classes of structures on
        the 1 mm working grid: only their voxels of cortex count.
        """
        whole = self.parcellation.whole
        here = structures[self.places]
        counted = self.parcellation.is_cortex(here)
        maps = []
        for classes in self.by_view.values():
            joined = self.parcellation.join(here, classes)
            maps.append(torch.from_numpy(joined[counted]))
        mean = mean_dice_of_pairs(maps, len(whole))
        names = self.parcellation.names
        return np.array([mean[whole.names.index(name)] for name in names])

    def turned(self, axes: Sequence[DirectedAxis]) -> Parcels:
        """Return the parcels on the grid with its axes reordered and flipped, as by `turned`."""
        places = turned(self.places, axes)

        def in_new_order(classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
            on_grid = np.zeros(self.places.shape, np.uint8)
            on_grid[self.places] = classes
            return np.asarray(turned(on_grid, axes)[places])

        by_view = {view: in_new_order(found) for view, found in self.by_view.items()}
        classes = in_new_order(self.classes)
        return Parcels(
            self.parcellation, np.ascontiguousarray(places), classes, by_view
        )

    def restored(self, structures: Volume, plan: ConformPlan) -> Volume:
        """Return a label map of structures and parcels in the scan's own space, uint8.

        `structures` has the class of each voxel of the scan, with the cortex as one structure a
        side. In the result, parcels replace the cortex, and the classes are those of
        `parcellation.whole`. Voxels of cortex without a parcel get the parcel of the nearest voxel
        that has one.
        """
        on_grid = np.zeros(self.places.shape, np.uint8)
        on_grid[self.places] = self.classes
        volume = Volume(on_grid, plan.working.affine)
        parcels = restore(volume, plan, labels=True).data
        is_cortex = self.parcellation.is_cortex(structures.data)
        parcels = _fill_from_nearest(parcels, is_cortex, structures.grid.spacing_mm)
        joined = self.parcellation.join(structures.data, parcels)
        return Volume(joined, structures.affine, structures.codes, structures.notes)


def likely_cortex(probabilities: Tensor, parcellation: Parcellation) -> Tensor:
    """Return the probability of cortex, (X, Y, Z), from class probabilities (X, Y, Z, K).

    It is the sum of the probabilities of left and right cortex.
    """
    left, right = (probabilities[..., label.index] for label in parcellation.cortex)
    return left + right


def may_be_cortex(cortex: Tensor) -> Tensor:
    """Return a mask of the voxels that may be cortex, given the probability of cortex (X, Y, Z)."""
    return cortex >= _MAY_BE_CORTEX


def join_views(
    parts: Iterable[tuple[View, SliceProbabilities]],
    cortex: Tensor,
    axes: Mapping[View, SliceAxes],
    weights: Mapping[View, float],
    odds: Tensor,
    parcellation: Parcellation,
) -> Parcels:
    """Combine the views' predictions to the parcel of each voxel that may be cortex.

    `odds` (K,) multiply the probabilities of the K classes of `parcellation.parcels`. All other
    parameters are those of `mean_of_views`.
    """
    logarithms, by_view = mean_of_views(parts, cortex, axes, weights, parcellation)
    logarithms += odds[1:].log()
    classes = (1 + logarithms.argmax(1)).to(torch.uint8)
    return Parcels(
        parcellation,
        may_be_cortex(cortex).cpu().numpy(),
        classes.cpu().numpy(),
        {view: found.cpu().numpy() for view, found in by_view.items()},
    )


def mean_of_views(
    parts: Iterable[tuple[View, SliceProbabilities]],
    cortex: Tensor,
    axes: Mapping[View, SliceAxes],
    weights: Mapping[View, float],
    parcellation: Parcellation,
) -> tuple[Tensor, dict[View, Tensor]]:
    """Return the weighted geometric mean of the views' probabilities, and each view's classes.

    The mean is smoothed over neighbouring voxels of cortex. It holds the logarithm for each parcel,
    (N, K - 1), at the N voxels that may be cortex, in C order. The classes of a view are (N,).

    Parameters
    ----------
    parts : iterable
        Predictions of the networks for parcels, each with its view; on the device of `cortex`.
    cortex : Tensor (X, Y, Z)
        Probability of cortex of each voxel.
    axes, weights : mapping
        Axes along which the slices of each view are cut, and the weight of each view.
    parcellation : Parcellation
        Its `parcels` are the K classes of the predictions.
    """
    places = may_be_cortex(cortex)
    device = places.device
    numbers = _number_positions(places)
    count = int(places.sum())
    names = len(parcellation.parcels) - 1
    logarithms = torch.zeros((count, names), device=device)
    by_view: dict[View, Tensor] = {}
    for view, part in parts:
        slices = to_slices(numbers, axes[view])
        numbers_here = slices[part.slices, part.rows, part.columns]
        is_wanted = numbers_here >= 0
        wanted = numbers_here[is_wanted].long()
        # Leave out class 0, because every voxel of cortex belongs to a parcel.
        own = part.probabilities[is_wanted][:, 1:]
        own = own / own.sum(1, keepdim=True).clamp(min=_MIN_PROBABILITY)
        logarithms[wanted] += (
            own.clamp(min=_MIN_PROBABILITY).log().float() * weights[view]
        )
        if view not in by_view:
            by_view[view] = torch.zeros(count, dtype=torch.uint8, device=device)
        by_view[view][wanted] = (1 + own.argmax(1)).to(torch.uint8)
    is_cortex = cortex >= 0.5
    inside = numbers[is_cortex].long()
    logarithms[inside] = _follow_neighbours(logarithms[inside], is_cortex)
    return logarithms, by_view


def _number_positions(places: Tensor) -> Tensor:
    """Assign numbers from 0 in C order to the set voxels of a mask (X, Y, Z); others get -1."""
    count = int(places.sum())
    numbers = torch.full(places.shape, -1, dtype=torch.int32, device=places.device)
    numbers[places] = torch.arange(count, dtype=torch.int32, device=places.device)
    return numbers


def _follow_neighbours(values: Tensor, places: Tensor) -> Tensor:
    """Move values (N, K) at the N set voxels of a mask towards the mean of their neighbours.

    `places` (X, Y, Z) is the mask. A voxel has up to six neighbours in it. Values of a voxel
    without neighbours become smaller, but their order stays.
    """
    count = len(values)
    numbers = _number_positions(places)
    pairs = []
    for axis, length in enumerate(places.shape):
        one = numbers.narrow(axis, 0, length - 1)
        other = numbers.narrow(axis, 1, length - 1)
        both = (one >= 0) & (other >= 0)
        pairs.append(torch.stack([one[both], other[both]]).long())
    neighbours = torch.cat(pairs, 1)
    neighbours = torch.cat([neighbours, neighbours.flip(0)], 1)
    rows = neighbours[0]
    # A row of this matrix, times the values, is the mean of a position's neighbours.
    shares = 1 / rows.bincount(minlength=count).to(values)
    means = torch.sparse_coo_tensor(
        neighbours, shares[rows], (count, count), check_invariants=False
    )
    for _ in range(_TIMES):
        values = torch.sparse.addmm(
            values, means, values, beta=1 - _NEIGHBOUR_WEIGHT, alpha=_NEIGHBOUR_WEIGHT
        )
    return values


def _fill_from_nearest(
    parcels: NDArray[np.uint8],
    is_cortex: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> NDArray[np.uint8]:
    """Give each voxel of cortex without a parcel the parcel of the nearest voxel that has one.

    `parcels` (X, Y, Z) is 0 where there is no parcel; `is_cortex` (X, Y, Z) is the mask to fill.
    """
    missing = is_cortex & (parcels == 0)
    known = is_cortex & (parcels > 0)
    if not missing.any() or not known.any():
        return parcels
    from scipy.spatial import cKDTree

    places = np.argwhere(known)
    tree = cKDTree(places * spacing_mm)
    _, nearest = tree.query(np.argwhere(missing) * spacing_mm)
    filled = parcels.copy()
    filled[missing] = parcels[known][nearest]
    return filled
