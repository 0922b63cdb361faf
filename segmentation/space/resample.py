"""From one grid of voxels to another: images, labels and probabilities by linear interpolation.

A target voxel that covers several source voxels is averaged over its own extent, at several
points that none of them is skipped: that is the low-pass that keeps thin structures from aliasing.
Beyond the source all is background: values fade to it over one voxel.

A point just between labels is decided as if it lay a thousandth of a voxel to one side, in turn
from voxel to voxel: were all ties to go to the lowest label, halving the spacing would cost a
small structure 5 % of its volume. What is a tie even so goes to the lowest label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from trinat.segmentation.errors import LabelError
from trinat.segmentation.space.grid import Box, Grid, Shape, grown, is_empty, moved
from trinat.segmentation.space.views import turned

# Positions that differ by less, in voxels, are the same: affines in files are rounded to float32.
_SAME_VOXELS = 0.01
# A step of up to this many source voxels is left to linear interpolation alone.
_STEP_OF_ONE_POINT = 1.25
# Votes that differ by less are a tie.
_TIE = 2.0**-16
_NUDGE_VOXELS = (1.0e-3, 1.3e-3, 1.7e-3)
_MIXED = -1
_SLAB_VOXELS = 2**20
_VOTE_VOXELS = 2**14
_TABLE_LENGTH = 2**16
# Every voxel of a vote has a count for each label. FreeSurfer's largest maps have some hundreds.
_MOST_LABELS = 4096


@dataclass(frozen=True, eq=False)
class GridMap:
    """A grid of `shape` voxels, and where each of them lies in the source: index -> index."""

    matrix: NDArray[np.float64]  # (4, 4)
    shape: Shape

    @classmethod
    def between(cls, source: Grid, target: Grid) -> GridMap:
        return cls(
            np.asarray(np.linalg.solve(source.affine, target.affine)), target.shape
        )

    def cut(self, source: Box, target: Box) -> GridMap:
        """The same map for parts of both grids."""
        start = np.array([s.start for s in target])
        matrix = self.matrix.copy()
        matrix[:3, 3] += matrix[:3, :3] @ start - [s.start for s in source]
        x, y, z = (s.stop - s.start for s in target)
        return GridMap(matrix, (x, y, z))

    def reach(self, source: Box) -> Box:
        """The target voxels that any voxel of this part of the source touches."""
        inverse = np.linalg.inv(self.matrix)
        touched = moved(
            list(product(*((s.start - 1, s.stop) for s in source))), inverse
        )
        # A voxel's extent is half a voxel to either side.
        first = np.floor(touched.min(axis=0) - 0.5).astype(int)
        last = np.ceil(touched.max(axis=0) + 0.5).astype(int)
        x, y, z = (
            slice(min(max(a, 0), n), max(min(b + 1, n), 0))
            for a, b, n in zip(first.tolist(), last.tolist(), self.shape, strict=True)
        )
        return x, y, z

    @property
    def source_axes(self) -> list[int] | None:
        """The source axis along each target axis, or None if the grids stand askew."""
        steps = np.abs(self.matrix[:3, :3])
        order = steps.argmax(axis=0).tolist()
        drift = steps * self.shape
        drift[order, range(3)] = 0
        return (
            order if sorted(order) == [0, 1, 2] and drift.max() < _SAME_VOXELS else None
        )

    @property
    def reordering(self) -> list[tuple[int, int, int]] | None:
        """Source axis, direction (1 or -1) and first source voxel along each target axis, if each
        voxel of the target is one of the source or lies beyond it."""
        order = self.source_axes
        if order is None:
            return None
        steps, starts = self.matrix[order, range(3)], self.matrix[order, 3]
        signs, whole = np.sign(steps), np.rint(starts)
        error = np.abs(steps - signs) * self.shape + np.abs(starts - whole)
        if error.max() >= _SAME_VOXELS:
            return None
        return [
            (a, int(b), int(c)) for a, b, c in zip(order, signs, whole, strict=True)
        ]

    @property
    def points(self) -> list[NDArray[np.float64]]:
        """Along each target axis, where between -0.5 and 0.5 a voxel is sampled."""
        steps = np.sqrt((self.matrix[:3, :3] ** 2).sum(axis=0))
        counts = np.maximum(1, np.ceil(steps - (_STEP_OF_ONE_POINT - 1))).astype(int)
        return [(np.arange(n) + 0.5) / n - 0.5 for n in counts]


def resample_image(data: NDArray[Any], to: GridMap) -> NDArray[np.float32]:
    """Image (X, Y, Z) on another grid, float32; beyond its edge it is 0."""
    moved = _reordered(data, to)
    if moved is not None:
        return moved.astype(np.float32, copy=False)
    # A copy, for the same reason as in `occupied_box`.
    return np.asarray(
        _interpolate(torch.from_numpy(data.astype(np.float32)), to).numpy()
    )


def resample_labels(data: NDArray[Any], to: GridMap) -> NDArray[Any]:
    """Labels (X, Y, Z) on another grid: in each voxel the label whose indicator weighs most.

    That is the argmax of all labels' indicators, each interpolated linearly, but only where labels
    meet is anything interpolated. Beyond the edge lies label 0.
    """
    moved = _reordered(data, to)
    if moved is not None:
        return moved
    out = np.zeros(to.shape, data.dtype)
    inside = occupied_box(data != 0)
    reached = to.reach(inside)
    if is_empty(inside) or is_empty(reached):
        return out
    part = data[inside]
    names = np.unique(np.append(np.unique(part), 0))
    if len(names) > _MOST_LABELS:
        raise LabelError(
            f"{len(names)} different labels, as no label map has",
            remedy="give a label map",
        )
    indices = _ranks(part, names)
    ballot = _Ballot(torch.from_numpy(indices), int(names.searchsorted(0)), len(names))
    winners = ballot.elect(to.cut(inside, reached)).numpy()
    out[reached] = names.astype(data.dtype)[winners]
    return out


def resample_probabilities(
    probabilities: NDArray[Any] | Tensor, to: GridMap
) -> NDArray[np.uint8]:
    """Most probable class on another grid of probabilities (K, X, Y, Z) that sum to 1, or to 0.

    Class by class, so that no more than one class is held as float32; beyond the edge lies class 0.
    """
    best = torch.ones(to.shape)
    winner = torch.zeros(to.shape, dtype=torch.uint8)
    # The largest of K that sum to 1 is at least 1/K: where a class has less, another one wins.
    # Rounding to float16 takes up to a thousandth off the sum.
    least = 0.99 / len(probabilities)
    for k, values in enumerate(probabilities):
        of_class = torch.as_tensor(values)
        found = occupied_box(of_class < 1 if k == 0 else of_class >= least)
        # A voxel more on each side: what the class has there counts between the two.
        inside = grown(found, of_class.shape)
        reached = to.reach(inside)
        if is_empty(found) or is_empty(reached):
            continue
        # Class 0 is counted by what it lacks, so that beyond the edge it lacks nothing.
        part = of_class[inside].float() - float(k == 0)
        local = to.cut(inside, reached)
        moved = _reordered(part.numpy(), local)
        part = _interpolate(part, local) if moved is None else torch.from_numpy(moved)
        if k == 0:
            best[reached] += part
            continue
        leads = part > best[reached]
        best[reached] = torch.where(leads, part, best[reached])
        winner[reached].masked_fill_(leads, k)
    return np.asarray(winner.numpy())


def occupied_box(mask: NDArray[np.bool_] | Tensor) -> Box:
    """The smallest box (X, Y, Z) around all that is set; empty slices if nothing is."""
    # A copy in the array's own order has no negative strides, which torch does not know.
    flags = mask if isinstance(mask, Tensor) else torch.from_numpy(mask.copy("K"))
    plane = flags.any(dim=2)
    lines = (plane.any(dim=1), plane.any(dim=0), flags.any(dim=0).any(dim=0))
    found = [line.nonzero().flatten() for line in lines]
    if not len(found[0]):
        return slice(0, 0), slice(0, 0), slice(0, 0)
    x, y, z = (slice(int(f[0]), int(f[-1]) + 1) for f in found)
    return x, y, z


def _ranks(data: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int16]:
    """The place of each value in `names`, which are in order and hold them all."""
    if data.dtype.kind == "f" or names[0] < 0 or names[-1] > _TABLE_LENGTH:
        return names.searchsorted(data).astype(np.int16)
    table = np.zeros(int(names[-1]) + 1, np.int16)
    table[names] = np.arange(len(names))
    # In the data's own memory order: C order would cost a transposition.
    ranks: NDArray[np.int16] = table[data]
    return ranks


def _reordered(data: NDArray[Any], to: GridMap) -> NDArray[Any] | None:
    """The data with axes exchanged, turned round, cut and padded, if the map asks no more."""
    way = to.reordering
    if way is None:
        return None
    source = turned(data, [(axis, sign) for axis, sign, _ in way])
    out = np.zeros(to.shape, data.dtype)
    taken, filled = [], []
    for (_, sign, start), length, size in zip(way, source.shape, to.shape, strict=True):
        # Of an axis that is turned round, voxels are counted from its other end.
        first = start if sign > 0 else length - 1 - start
        inside = slice(max(0, -first), min(size, length - first))
        if inside.start >= inside.stop:
            return out
        filled.append(inside)
        taken.append(slice(inside.start + first, inside.stop + first))
    out[tuple(filled)] = source[tuple(taken)]
    return out


# 256³ by linear interpolation, processor seconds of one thread: aligned 0.40 by matrices here, 0.27
# by sparse ones, 0.54 by scipy's affine_transform; askew 0.91 here, 0.98 by scipy. What is here
# shares its work out among threads; sparse matrices and scipy do not.
def _interpolate(source: Tensor, to: GridMap) -> Tensor:
    axes = to.source_axes
    return (
        _interpolate_askew(source, to)
        if axes is None
        else _interpolate_along(source, to, axes)
    )


def _interpolate_along(source: Tensor, to: GridMap, axes: list[int]) -> Tensor:
    """Grids with common axes: one small matrix for each."""
    values = source.permute(axes)
    for target, axis in enumerate(axes):
        step, start = to.matrix[axis, target], to.matrix[axis, 3]
        size, points = to.shape[target], to.points[target]
        weights = _weights(step, start, source.shape[axis], size, points)
        # (n, rest)ᵀ @ (n, m): the new axis comes last, so that after three turns all are in place.
        rest = values.shape[1:]
        values = (values.reshape(len(values), -1).T @ weights).reshape(*rest, -1)
    return values


def _weights(
    step: float, start: float, length: int, size: int, points: NDArray[np.float64]
) -> Tensor:
    """(length, size): the share of each source voxel in each target voxel, along one axis."""
    at = start + step * (np.arange(size)[:, None] + points)
    low = np.floor(at).astype(int)
    weights = np.zeros((length + 2, size))
    target = np.broadcast_to(np.arange(size)[:, None], at.shape)
    for voxel, share in ((low, low + 1 - at), (low + 1, at - low)):
        # Rows 0 and length + 1 take what lies beyond the edges.
        np.add.at(
            weights, (np.clip(voxel + 1, 0, length + 1), target), share / len(points)
        )
    return torch.from_numpy(weights[1:-1].astype(np.float32))


def _interpolate_askew(source: Tensor, to: GridMap) -> Tensor:
    """Any affine map, by torch's sampler, which shares its work out by batch item."""
    out = torch.zeros(to.shape)
    sizes = torch.tensor(source.shape, dtype=torch.float64)
    shifts = list(product(*to.points))
    whole = source.contiguous()[None, None]
    for rows in _slabs(to.shape):
        for shift in shifts:
            at = _positions(to, rows, shift)
            # Indices to torch's -1..1 between the first and the last voxel, last axis first.
            grid = torch.stack(
                [
                    2 * a / (n - 1) - 1
                    for a, n in zip(at, sizes.clamp(min=2), strict=True)
                ][::-1],
                -1,
            )
            count = len(grid)
            out[rows] += grid_sample(
                whole.expand(count, -1, -1, -1, -1), grid[:, None], align_corners=True
            )[:, 0, 0]
    return out.div_(len(shifts))


def _slabs(shape: Shape) -> Iterator[slice]:
    """Parts of the first axis of about a million voxels each."""
    step = max(1, _SLAB_VOXELS // (shape[1] * shape[2]))
    return (
        slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)
    )


def _positions(to: GridMap, rows: slice, shift: tuple[float, ...]) -> list[Tensor]:
    """Where in the source the voxels of a slab lie: three times (rows, Y, Z), float32.

    Where the grids share their axes each depends on one of them, and has length 1 along the others.
    """
    axes = to.source_axes
    limits = zip((rows.start, 0, 0), (rows.stop, *to.shape[1:]), shift, strict=True)
    along = np.ix_(*(np.arange(start, stop) + s for start, stop, s in limits))
    found = []
    for i in range(3):
        terms = [
            (to.matrix[i, target] * along[target]).astype(np.float32)
            for target in (range(3) if axes is None else [axes.index(i)])
        ]
        start = torch.tensor(to.matrix[i, 3], dtype=torch.float32)
        found.append(sum((torch.from_numpy(term) for term in terms), start))
    return found


class _Ballot:
    """Votes of the labels around a point. Ranks of labels (X, Y, Z), int16, of `count` labels.

    Where all eight corners of a cell of voxels agree there is nothing to count.
    """

    def __init__(self, ranks: Tensor, background: int, count: int) -> None:
        self.labels = pad(ranks, (1,) * 6, value=background)
        self.count = count
        low = high = self.labels
        for axis in range(3):
            last = low.shape[axis] - 1
            low = torch.minimum(low.narrow(axis, 0, last), low.narrow(axis, 1, last))
            high = torch.maximum(high.narrow(axis, 0, last), high.narrow(axis, 1, last))
        self.cells = torch.where(low == high, low, _MIXED)

    def elect(self, to: GridMap) -> Tensor:
        """Winners on the target grid, int16."""
        out = torch.empty(to.shape, dtype=torch.int16)
        shifts = list(product(*to.points))
        for rows in _slabs(to.shape):
            agreed: Tensor | None = None
            for shift in shifts:
                cell, _ = self._locate(_positions(to, rows, shift))
                found = self.cells.take(_flat(cell, self.cells.shape))
                agreed = (
                    found
                    if agreed is None
                    else torch.where(agreed == found, found, _MIXED)
                )
            assert agreed is not None
            undecided = (agreed == _MIXED).nonzero()
            undecided[:, 0] += rows.start
            out[rows] = agreed
            for start in range(0, len(undecided), _VOTE_VOXELS):
                voxels = undecided[start : start + _VOTE_VOXELS]
                out[tuple(voxels.T)] = self._tally(to, voxels, shifts)
        return out

    def _locate(self, at: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """First corner of the cell around each position, and how far into it that is, 0..1."""
        cells, parts = [], []
        for position, size in zip(at, self.labels.shape, strict=True):
            inside = (position + 1).clamp_(0, size - 1)
            cell = inside.floor().clamp_(max=size - 2)
            cells.append(cell.long())
            parts.append(inside - cell)
        return cells, parts

    def _tally(
        self, to: GridMap, voxels: Tensor, shifts: list[tuple[float, ...]]
    ) -> Tensor:
        """Winners (M,) at target voxels (M, 3)."""
        matrix = torch.from_numpy(to.matrix)
        votes = torch.zeros(len(voxels), self.count)
        corners = [torch.tensor(c) for c in product((0, 1), repeat=3)]
        steps = torch.stack([_flat(list(c), self.labels.shape) for c in corners])
        side = 1 - 2 * (voxels.sum(dim=1, keepdim=True) % 2)
        nudged = matrix[:3, 3] + side * torch.tensor(_NUDGE_VOXELS, dtype=torch.float64)
        for shift in shifts:
            at = (voxels + torch.tensor(shift, dtype=torch.float64)) @ matrix[:3, :3].T
            cell, part = self._locate(list((at + nudged).T))
            label = self.labels.take(_flat(cell, self.labels.shape)[:, None] + steps)
            x, y, z = (torch.stack([1 - p, p], dim=1).float() for p in part)
            # (M, 2, 2, 2), the last axis fastest, as the corners are listed.
            weight = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]
            votes.scatter_add_(1, label.long(), weight.reshape(-1, 8))
        # The first of equal maxima is the lowest label.
        return (votes / (len(shifts) * _TIE)).round_().argmax(dim=1).to(torch.int16)


def _flat(index: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    return (index[0] * shape[1] + index[1]) * shape[2] + index[2]
