"""From one grid of voxels to another: images, labels and probabilities by linear interpolation.

A target voxel that covers several source voxels is averaged over its own extent, at several
points that none of them is skipped: that is the low-pass that keeps thin structures from aliasing.
Beyond the source all is background: values fade to it over one voxel.

A point just between labels is decided as if it lay a thousandth of a voxel to one side, in turn
from voxel to voxel: were all ties to go to the lowest label, halving the spacing would cost a
small structure 5 % of its volume. What is a tie even so goes to the lowest label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import Box, grown, is_empty, to_box
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import interpolate, sharpened
from trinat.segmentation.space.label_votes import LabelVotes
from trinat.segmentation.space.views import turned

_TABLE_LENGTH = 2**16
# Every voxel of a vote has a count for each label. FreeSurfer's largest maps have some hundreds.
_MOST_LABELS = 4096


def resample_image(
    data: NDArray[Any], to: GridMap, *, stay_sharp: bool = False
) -> NDArray[np.float32]:
    """Image (X, Y, Z) on another grid, float32; beyond its edge it is 0.

    With `stay_sharp` it is sharpened first by what interpolation blurs: near strong edges values
    may then go a little beyond those of the image.
    """
    copied = _reordered(data, to)
    if copied is not None:
        return copied.astype(np.float32, copy=False)
    # A copy, for the same reason as in `occupied_box`; in one order, in which sums round alike.
    image = torch.from_numpy(np.array(data, np.float32, order="C"))
    if stay_sharp:
        image = sharpened(image, to)
    return np.asarray(interpolate(image, to).numpy())


def resample_labels(data: NDArray[Any], to: GridMap) -> NDArray[Any]:
    """Labels (X, Y, Z) on another grid: in each voxel the label whose indicator weighs most.

    That is the argmax of all labels' indicators, each interpolated linearly, but only where labels
    meet is anything interpolated. Beyond the edge is label 0. Raises LabelError for thousands
    of different labels: that is no label map.
    """
    copied = _reordered(data, to)
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
    ranks = torch.from_numpy(_ranks(part, names))
    background = int(names.searchsorted(0))
    votes = LabelVotes(ranks, background, len(names))
    winners = votes.elect(to.cut(inside, reached)).numpy()
    out[reached] = names.astype(data.dtype)[winners]
    return out


def resample_probabilities(
    probabilities: NDArray[Any] | Tensor, to: GridMap
) -> NDArray[np.uint8]:
    """Most probable class on another grid of probabilities (K, X, Y, Z) that sum to 1, or to 0.

    Class by class, so that no more than one class is held as float32; beyond the edge is class 0.
    """
    # Class 0 is counted by what it lacks of 1, so that beyond the edge it lacks nothing.
    best = torch.ones(to.shape)
    winner = torch.zeros(to.shape, dtype=torch.uint8)
    given = torch.as_tensor(probabilities)
    background = given[0]
    lacking = _resampled_part(background, occupied_box(background < 1), to, less=1.0)
    if lacking is not None:
        values, reached = lacking
        best[reached] += values
    # The largest of K that sum to 1 is at least 1/K: where a class has less, another one wins.
    # Rounding to float16 takes up to a thousandth off the sum.
    least = 0.99 / len(probabilities)
    boxes = _boxes_of_classes(given, least)
    for k in range(1, len(given)):
        found = _resampled_part(given[k], boxes[k], to)
        if found is None:
            continue
        values, reached = found
        leads = values > best[reached]
        best[reached] = torch.where(leads, values, best[reached])
        winner[reached].masked_fill_(leads, k)
    return np.asarray(winner.numpy())


def _boxes_of_classes(probabilities: Tensor, least: float) -> list[Box]:
    """The smallest box around where each class has at least this probability, (K, X, Y, Z).

    In one pass: where classes are innermost in memory, one of them is read no faster than all.
    """
    classes, *shape = probabilities.shape
    lines = [torch.zeros(length, classes, dtype=torch.uint8) for length in shape]
    along_x, along_y, along_z = lines
    for x in range(shape[0]):
        # Bytes, with the classes last: their maxima take a tenth of the time of `any`.
        plane = probabilities[:, x].movedim(0, -1) >= least
        matters = plane.view(torch.uint8)
        of_plane = matters.amax(0)
        along_x[x] = of_plane.amax(0)
        along_y |= matters.amax(1)
        along_z |= of_plane
    return [_box_between([line[:, k] for line in lines]) for k in range(classes)]


def _resampled_part(
    values: Tensor,
    occupied: Box,
    to: GridMap,
    less: float = 0.0,
) -> tuple[Tensor, Box] | None:
    """Values (X, Y, Z), minus `less`, on the part of the target that a box of them reaches.

    Returns them, float32, with the box of the target that they fill. None if it is empty.
    """
    # A voxel more on each side: what the values are there counts between the two.
    inside = grown(occupied, values.shape)
    reached = to.reach(inside)
    if is_empty(occupied) or is_empty(reached):
        return None
    part = values[inside].float() - less
    part_map = to.cut(inside, reached)
    copied = _reordered(part.numpy(), part_map)
    if copied is not None:
        return torch.from_numpy(copied), reached
    return interpolate(part, part_map), reached


def occupied_box(mask: NDArray[np.bool_] | Tensor) -> Box:
    """The smallest box (X, Y, Z) around all that is set; empty slices if nothing is.

    `mask` (X, Y, Z) of any memory order, on any device.
    """
    # A copy in the array's own order has no negative strides, which torch does not know.
    flags = mask if isinstance(mask, Tensor) else torch.from_numpy(mask.copy("K"))
    plane = flags.any(dim=2)
    along_x = plane.any(dim=1)
    along_y = plane.any(dim=0)
    along_z = flags.any(dim=0).any(dim=0)
    return _box_between([along_x, along_y, along_z])


def _box_between(lines: Sequence[Tensor]) -> Box:
    """The box from the first to the last that is set along each axis; empty if nothing is."""
    sides = []
    for line in lines:
        occupied = line.nonzero().flatten()
        if not len(occupied):
            return slice(0, 0), slice(0, 0), slice(0, 0)
        first = int(occupied[0])
        last = int(occupied[-1])
        sides.append(slice(first, last + 1))
    return to_box(sides)


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
    """The data with axes exchanged, turned round, cut and padded, if the map asks no more.

    None if anything must be interpolated.
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
        # Of an axis that is turned round, voxels are counted from its other end.
        first = start if direction > 0 else length - 1 - start
        low = max(0, -first)
        high = min(size, length - first)
        if low >= high:
            return out
        filled.append(slice(low, high))
        taken.append(slice(low + first, high + first))
    out[tuple(filled)] = source[tuple(taken)]
    return out
