"""Resample images, labels and probabilities to another grid by linear interpolation.

A target voxel that covers several source voxels is averaged over its own extent, at so many points
that none of them is skipped: this low-pass prevents aliasing of thin structures. The source is
surrounded by background: values fade to it over one voxel.

A point exactly between labels is decided as if it lay a thousandth of a voxel to one side,
alternating from voxel to voxel: if all ties went to the lowest label, halving the spacing would
cost a small structure 5 % of its volume. Remaining ties go to the lowest label.

Interpolating an indicator for each of many labels would be slow. Almost all voxels have one label
all around them; `_LabelVotes` counts votes only where labels meet.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import (
    Box,
    box_between,
    grown,
    is_empty,
    occupied_box,
    whole,
)
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import (
    Point,
    interpolate,
    sample_points,
    sharpened,
    slabs,
    source_positions,
)
from trinat.segmentation.space.views import turned

_TABLE_LENGTH = 2**16
# Largest number of different labels, because a vote needs a count for each label in every voxel.
# FreeSurfer's largest maps have some hundreds.
_MOST_LABELS = 4096
# Votes that differ by less are a tie.
_TIE = 2.0**-16
# Offset added to sampled positions, so that points exactly between labels are no ties.
_NUDGE_VOXELS = (1.0e-3, 1.3e-3, 1.7e-3)
# Tolerance for a position to count as a whole voxel.
_ROUNDING = 1e-6
_MIXED = -1
# Voxels whose votes are counted at a time: each has a count for each label.
_VOTE_VOXELS = 2**14


def resample_image(
    data: NDArray[Any], to: GridMap, *, stay_sharp: bool = False
) -> NDArray[np.float32]:
    """Resample an image (X, Y, Z) to another grid, float32; outside of the image, values are 0.

    With `stay_sharp` the image is sharpened first by as much as interpolation blurs it. Near strong
    edges, values may then slightly exceed the image's.
    """
    copied = _copy_reordered(data, to)
    if copied is not None:
        return copied.astype(np.float32, copy=False)
    # Copy, because torch does not support negative strides. C order makes sums round alike.
    image = torch.from_numpy(np.array(data, np.float32, order="C"))
    if stay_sharp:
        image = sharpened(image, to)
    return np.asarray(interpolate(image, to).numpy())


def resample_labels(data: NDArray[Any], to: GridMap) -> NDArray[Any]:
    """Resample a label map (X, Y, Z); each voxel gets the label that covers most of it.

    Coverage is the linearly interpolated mask of a label; interpolation is done only where labels
    meet. Outside of the map the label is 0. Raises LabelError for thousands of different labels,
    which no label map has.
    """
    copied = _copy_reordered(data, to)
    if copied is not None:
        return copied
    out = np.zeros(to.shape, data.dtype)
    inside = occupied_box(data != 0)
    reached = to.reach(inside)
    if is_empty(inside) or is_empty(reached):
        return out
    part = data[inside]
    names = np.unique(part)
    names = np.unique(np.append(names, 0))
    if len(names) > _MOST_LABELS:
        raise LabelError(
            f"{len(names)} different labels, as no label map has",
            remedy="give a label map",
        )
    ranks = torch.from_numpy(_rank_labels(part, names))
    background = int(names.searchsorted(0))
    votes = _LabelVotes(ranks, background, len(names))
    winners = votes.elect(to.cut(inside, reached)).numpy()
    out[reached] = names.astype(data.dtype)[winners]
    return out


def resample_probabilities(
    probabilities: NDArray[Any] | Tensor, to: GridMap
) -> NDArray[np.uint8]:
    """Resample probabilities (K, X, Y, Z); return the most probable class of each voxel.

    In each voxel, probabilities sum to 1 or to 0. Outside of their grid, the class is 0. Classes
    are processed one by one, so that only one of them is held as float32.
    """
    # Resample the background minus 1: this is 0 outside of the grid, so background is 1 there.
    best = torch.ones(to.shape)
    winner = torch.zeros(to.shape, dtype=torch.uint8)
    given = torch.as_tensor(probabilities)
    background = given[0]
    lacking = _resample_reached(
        background, occupied_box((background < 1).numpy()), to, less=1.0
    )
    if lacking is not None:
        values, reached = lacking
        best[reached] += values
    # The largest of K probabilities that sum to 1 is at least 1/K, so a smaller one never wins.
    # Rounding to float16 takes up to a thousandth off the sum.
    least = 0.99 / len(probabilities)
    boxes = _boxes_of_classes(given, least)
    for k in range(1, len(given)):
        found = _resample_reached(given[k], boxes[k], to)
        if found is None:
            continue
        values, reached = found
        leads = values > best[reached]
        best[reached] = torch.where(leads, values, best[reached])
        winner[reached].masked_fill_(leads, k)
    return np.asarray(winner.numpy())


def _boxes_of_classes(probabilities: Tensor, least: float) -> list[Box]:
    """Return, for each class, the smallest box around its voxels with at least this probability.

    `probabilities` are (K, X, Y, Z). All classes are processed in one pass: if classes are
    innermost in memory, reading one of them is no faster than reading all.
    """
    classes, *shape = probabilities.shape
    lines = [torch.zeros(length, classes, dtype=torch.uint8) for length in shape]
    along_x, along_y, along_z = lines
    for x in range(shape[0]):
        # The maximum of bytes, with the classes last, takes a tenth of the time of `any`.
        plane = probabilities[:, x].movedim(0, -1) >= least
        matters = plane.view(torch.uint8)
        of_plane = matters.amax(0)
        along_x[x] = of_plane.amax(0)
        along_y |= matters.amax(1)
        along_z |= of_plane
    return [box_between([line[:, k].numpy() for line in lines]) for k in range(classes)]


def _resample_reached(
    values: Tensor,
    occupied: Box,
    to: GridMap,
    less: float = 0.0,
) -> tuple[Tensor, Box] | None:
    """Resample values (X, Y, Z) to the part of the target to which they contribute.

    `occupied` is the box of the values to resample, and `less` is subtracted from them before.
    Returns the resampled values, float32, and their box in the target; None if nothing contributes.
    """
    # Add a voxel on each side, because its values count in the interpolation.
    inside = grown(occupied, values.shape)
    reached = to.reach(inside)
    if is_empty(occupied) or is_empty(reached):
        return None
    part = values[inside].float() - less
    part_map = to.cut(inside, reached)
    copied = _copy_reordered(part.numpy(), part_map)
    if copied is not None:
        return torch.from_numpy(copied), reached
    return interpolate(part, part_map), reached


def _rank_labels(data: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int16]:
    """Return the rank of each voxel's label, that is its index in the sorted array `names`.

    `names` must contain all labels of `data` (X, Y, Z).
    """
    if data.dtype.kind == "f" or names[0] < 0 or names[-1] > _TABLE_LENGTH:
        return names.searchsorted(data).astype(np.int16)
    table = np.zeros(int(names[-1]) + 1, np.int16)
    table[names] = np.arange(len(names))
    # In the data's own memory order: C order would require a transposition.
    ranks: NDArray[np.int16] = table[data]
    return ranks


def _copy_reordered(data: NDArray[Any], to: GridMap) -> NDArray[Any] | None:
    """Return the data reordered, flipped, cropped and padded, if the map needs no interpolation.

    Returns None if it does.
    """
    sources = to.reordering
    if sources is None:
        return None
    axes = [(axis, direction) for axis, direction, _ in sources]
    source = turned(data, axes)
    out = np.zeros(to.shape, data.dtype)
    taken = []
    filled = []
    for (_, direction, start), length, size in zip(
        sources, source.shape, to.shape, strict=True
    ):
        # Along a flipped axis, voxels are counted from its other end.
        first = start if direction > 0 else length - 1 - start
        low = max(0, -first)
        high = min(size, length - first)
        if low >= high:
            return out
        filled.append(slice(low, high))
        taken.append(slice(low + first, high + first))
    out[tuple(filled)] = source[tuple(taken)]
    return out


class _LabelVotes:
    """Votes for the label of a position in a label map, by the eight voxels around it.

    A label is given by its rank among all labels of the map: `ranks` (X, Y, Z), int16, from 0 to
    `count` - 1. The map is surrounded by the rank `background`. A cell is the cube between eight
    neighbouring voxels. If all of these have one label, no vote is necessary in the cell.
    """

    def __init__(self, ranks: Tensor, background: int, count: int) -> None:
        self._labels = pad(ranks, (1,) * 6, value=background)
        self._count = count
        self._cells = _cell_labels(self._labels)

    def elect(self, to: GridMap) -> Tensor:
        """Return the label of each target voxel, as its rank, int16, in the shape of `to`.

        Most voxels have a single label around them and need no vote. For the others, votes are
        counted in blocks, so that memory use is bounded.
        """
        out = torch.empty(to.shape, dtype=torch.int16)
        points = sample_points(to)
        # Voxels are counted from the first one that the map touches in an unbounded target, so that
        # padding or cropping the target changes no voxel.
        border = 2
        whole_map = whole([length - border for length in self._labels.shape])
        lowest, _ = to.target_range(whole_map)
        first = torch.from_numpy(np.floor(lowest + _ROUNDING)).long()
        for rows in slabs(to.shape):
            agreed = self._unanimous_label(to, rows, points)
            out[rows] = agreed
            undecided = (agreed == _MIXED).nonzero()
            undecided[:, 0] += rows.start
            for start in range(0, len(undecided), _VOTE_VOXELS):
                voxels = undecided[start : start + _VOTE_VOXELS]
                out[tuple(voxels.T)] = self._tally(to, voxels, points, first)
        return out

    def _unanimous_label(self, to: GridMap, rows: slice, points: list[Point]) -> Tensor:
        """Return the rank of the only label around each voxel of a slab; `_MIXED` for several.

        `rows` is the slab, a part of the first target axis; `points` are the sample points of a
        voxel.
        """
        first, *others = points
        agreed = self._label_around(to, rows, first)
        for point in others:
            found = self._label_around(to, rows, point)
            agreed = torch.where(agreed == found, found, _MIXED)
        return agreed

    def _label_around(self, to: GridMap, rows: slice, point: Point) -> Tensor:
        """Return the rank of the only label at the corners of the cell around a point, or `_MIXED`.

        The result has a rank for each target voxel of the slab `rows`, a part of the first target
        axis; `point` is the sample point of these voxels.
        """
        cell, _ = self._locate(source_positions(to, rows, point))
        return self._cells.take(_flat_index(cell, self._cells.shape))

    def _locate(self, positions: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the first corner of the cell around each position, and the offset in the cell.

        Positions and results are an array for each axis. Positions are indices of the map without
        its border; corners are indices of the map with the border. Offsets are from 0 to 1.
        """
        cells = []
        parts = []
        for position, size in zip(positions, self._labels.shape, strict=True):
            inside = (position + 1).clamp_(0, size - 1)
            cell = inside.floor().clamp_(max=size - 2)
            cells.append(cell.long())
            parts.append(inside - cell)
        return cells, parts

    def _tally(
        self, to: GridMap, voxels: Tensor, points: list[Point], first: Tensor
    ) -> Tensor:
        """Return the label with the most votes at each of M target voxels, as its rank (M,).

        `voxels` (M, 3) are indices of the target grid of `to`. At each of the sample `points` of a
        voxel, the eight source voxels around it vote for their labels with their shares in linear
        interpolation. To break ties, positions are shifted a little, alternating from voxel to
        voxel as on a chessboard that starts at voxel `first` (3,).
        """
        matrix = torch.from_numpy(to.matrix)
        # Alternate the offset of voxels as on a chessboard: 1 or -1, (M, 1).
        is_odd = (voxels - first).sum(dim=1, keepdim=True) % 2
        side = 1 - 2 * is_odd
        nudge = torch.tensor(_NUDGE_VOXELS, dtype=torch.float64)
        origins = matrix[:3, 3] + side * nudge
        # Offsets from a cell's first corner to its eight corners in the flattened map, (8,).
        steps = []
        for corner in product((0, 1), repeat=3):
            index = [torch.tensor(step) for step in corner]
            steps.append(_flat_index(index, self._labels.shape))
        corner_steps = torch.stack(steps)
        votes = torch.zeros(len(voxels), self._count)
        for point in points:
            shifted = voxels + torch.tensor(point, dtype=torch.float64)
            positions = shifted @ matrix[:3, :3].T + origins
            cell, part = self._locate(list(positions.T))
            first_corner = _flat_index(cell, self._labels.shape)
            corners = first_corner[:, None] + corner_steps
            labels = self._labels.take(corners)
            votes.scatter_add_(1, labels.long(), _corner_shares(part))
        # Rounded, so that ties are equal.
        whole_votes = (votes / (len(points) * _TIE)).round_()
        # The first of equal maxima is the lowest label.
        return whole_votes.argmax(dim=1).to(torch.int16)


def _cell_labels(labels: Tensor) -> Tensor:
    """Return the label rank of each cell of eight voxels if all have the same, else `_MIXED`."""
    lowest = labels
    highest = labels
    # Reduce each cell to the extremes of its eight corners, axis by axis.
    for axis in range(3):
        lowest = torch.minimum(*_neighbours(lowest, axis))
        highest = torch.maximum(*_neighbours(highest, axis))
    return torch.where(lowest == highest, lowest, _MIXED)


def _neighbours(values: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the values without the last index along an axis, and without the first; both views.

    Equal indices in the two results are neighbouring voxels.
    """
    count = values.shape[axis] - 1
    return values.narrow(axis, 0, count), values.narrow(axis, 1, count)


def _corner_shares(part: list[Tensor]) -> Tensor:
    """Return the weights of a cell's eight corners at a point, (M, 8), the last axis fastest.

    `part` has the offset of the point in the cell along each axis, (M,) each, from 0 to 1.
    """
    # Shares of the near and the far side along each axis: (M, 2).
    near_and_far = []
    for along_axis in part:
        both = torch.stack([1 - along_axis, along_axis], dim=1)
        near_and_far.append(both.float())
    x, y, z = near_and_far
    along_x = x[:, :, None, None]
    along_y = y[:, None, :, None]
    along_z = z[:, None, None, :]
    shares = along_x * along_y * along_z
    return shares.reshape(-1, 8)


def _flat_index(index: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Convert an index along each of three axes to one index of the flattened array."""
    x, y, z = index
    return (x * shape[1] + y) * shape[2] + z
