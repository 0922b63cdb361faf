"""Labels on another grid: the label whose indicator, interpolated linearly, is largest.

To interpolate an indicator for each of many labels would take long. Almost all voxels have one
label all around them; votes are counted only where labels meet.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from trinat.segmentation.grid import whole
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import (
    Point,
    sample_points,
    slabs,
    source_positions,
)

# Votes that differ by less are a tie.
_TIE = 2.0**-16
# How far to one side a voxel is looked at, so that points just between labels are no ties.
_NUDGE_VOXELS = (1.0e-3, 1.3e-3, 1.7e-3)
# A place that is a whole voxel but for its last digits.
_ROUNDING = 1e-6
_MIXED = -1
# Voxels whose votes are counted at a time: each has a count for each label.
_VOTE_VOXELS = 2**14


class LabelVotes:
    """Votes of the labels around a point in a label map.

    The map holds ranks of labels (X, Y, Z), int16, from 0 to `count` - 1. Beyond its edge is
    the rank `background`. A cell is the cube between eight neighbouring voxels; where all eight
    agree there is nothing to count.
    """

    def __init__(self, ranks: Tensor, background: int, count: int) -> None:
        self._labels = pad(ranks, (1,) * 6, value=background)
        self._count = count
        self._cells = _cell_labels(self._labels)

    def elect(self, to: GridMap) -> Tensor:
        """Winning ranks on the target grid, int16.

        The result has the shape of `to`. Most voxels have one label around them and need no vote;
        the others are counted in pieces, so that memory stays bounded.
        """
        out = torch.empty(to.shape, dtype=torch.int16)
        points = sample_points(to)
        first = self._first_touched(to)
        for rows in slabs(to.shape):
            agreed = self._agreed(to, rows, points)
            out[rows] = agreed
            undecided = (agreed == _MIXED).nonzero()
            undecided[:, 0] += rows.start
            for start in range(0, len(undecided), _VOTE_VOXELS):
                voxels = undecided[start : start + _VOTE_VOXELS]
                out[tuple(voxels.T)] = self._tally(to, voxels, points, first)
        return out

    def _first_touched(self, to: GridMap) -> Tensor:
        """The first target voxel that the map touches, int64 (3,), were the target any larger.

        Voxels are counted from it: what is padded around a target or cut off changes no voxel.
        """
        border = 2
        whole_map = whole([length - border for length in self._labels.shape])
        lowest, _ = to.touched(whole_map)
        return torch.from_numpy(np.floor(lowest + _ROUNDING)).long()

    def _agreed(self, to: GridMap, rows: slice, points: list[Point]) -> Tensor:
        """The one label around all sample points of each voxel of a slab, or _MIXED."""
        first, *others = points
        agreed = self._label_around(to, rows, first)
        for point in others:
            found = self._label_around(to, rows, point)
            agreed = torch.where(agreed == found, found, _MIXED)
        return agreed

    def _label_around(self, to: GridMap, rows: slice, point: Point) -> Tensor:
        """The one label at all corners of the cell of each voxel's point, or _MIXED."""
        cell, _ = self._locate(source_positions(to, rows, point))
        return self._cells.take(_flat_index(cell, self._cells.shape))

    def _locate(self, positions: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """First corner of the cell around each position, and how far into it that is, 0 to 1.

        Positions are indices of the map without its border; cells count from the border.
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
        """Winners (M,) at target voxels (M, 3), by counting every corner's share."""
        matrix = torch.from_numpy(to.matrix)
        # Voxels are nudged to either side in turn, as on a chessboard: 1 or -1, (M, 1).
        is_odd = (voxels - first).sum(dim=1, keepdim=True) % 2
        side = 1 - 2 * is_odd
        nudge = torch.tensor(_NUDGE_VOXELS, dtype=torch.float64)
        origins = matrix[:3, 3] + side * nudge
        corner_steps = self._corner_steps()
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

    def _corner_steps(self) -> Tensor:
        """From a cell's first corner to each of its eight, in the flat map: (8,)."""
        steps = []
        for corner in product((0, 1), repeat=3):
            index = [torch.tensor(step) for step in corner]
            steps.append(_flat_index(index, self._labels.shape))
        return torch.stack(steps)


def _cell_labels(labels: Tensor) -> Tensor:
    """The label of each cell of a map (X, Y, Z) whose corners agree, else _MIXED."""
    lowest = labels
    highest = labels
    # Along one axis after the other, each cell gets the extremes of its eight corners.
    for axis in range(3):
        lowest = torch.minimum(*_neighbours(lowest, axis))
        highest = torch.maximum(*_neighbours(highest, axis))
    return torch.where(lowest == highest, lowest, _MIXED)


def _neighbours(values: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The first and the second of each two neighbours along an axis; views, one shorter."""
    count = values.shape[axis] - 1
    return values.narrow(axis, 0, count), values.narrow(axis, 1, count)


def _corner_shares(part: list[Tensor]) -> Tensor:
    """The weight of each of a cell's eight corners at a point: (M, 8), the last axis fastest.

    `part` is how far into the cell the point is along each axis, three times (M,).
    """
    # Along each axis the shares of the near and the far side: (M, 2).
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
    """Indices along three axes as one index of the flattened array."""
    x, y, z = index
    return (x * shape[1] + y) * shape[2] + z
