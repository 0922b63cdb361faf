"""Which side a voxel joins whose number has none: the one with the nearest voxel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError

# Distances that differ by less are equal.
_SAME_MM = 1e-6


@dataclass(frozen=True)
class SidelessNumbers:
    """Label numbers without a side, and the left and the right that their voxels may join.

    `targets` are the FreeSurfer numbers of the two sides and `classes` their class indices. Each
    of `sides` holds the numbers in a label map whose voxels make that side.
    """

    numbers: tuple[int, ...]
    targets: tuple[int, int]
    classes: tuple[int, int]
    sides: tuple[tuple[int, ...], tuple[int, ...]]


def join_nearest(
    kind: SidelessNumbers,
    array: NDArray[Any],
    indices: NDArray[np.uint8],
    spacing_mm: tuple[float, float, float],
    *,
    size: int,
    where: str | Path | None,
) -> None:
    """Give the sideless voxels of a label map the class of the nearer side, in `indices`.

    Every number in `array` is below `size`. Raises LabelError if neither side is there.
    """
    points = np.argwhere(_select(array, kind.numbers, size))
    if not len(points):
        return  # The sideless voxels of this map are of another kind.
    left_numbers, right_numbers = kind.sides
    left_mm = _distances_mm(points, _select(array, left_numbers, size), spacing_mm)
    right_mm = _distances_mm(points, _select(array, right_numbers, size), spacing_mm)
    if np.isinf(left_mm).all() and np.isinf(right_mm).all():
        left_target, right_target = kind.targets
        raise LabelError(
            f"{len(points)} voxels belong to the nearer of FreeSurfer's {left_target} and "
            f"{right_target}, and neither is there",
            where=where,
            remedy=f"map or ignore the numbers {', '.join(map(str, kind.numbers))}",
        )
    # As where labels are resampled, ties alternate from voxel to voxel: neither side gains.
    is_even = points.sum(axis=1) % 2 == 0
    # Two infinite distances have no difference. Rounding must not decide a tie.
    with np.errstate(invalid="ignore"):
        is_tie = np.abs(left_mm - right_mm) < _SAME_MM
    joins_left = np.where(is_tie, is_even, left_mm < right_mm)
    left_class, right_class = kind.classes
    chosen = np.where(joins_left, np.uint8(left_class), np.uint8(right_class))
    indices[tuple(points.T)] = chosen


def outer_rim(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Voxels outside `mask` that share a face with it, in the memory order of `mask`.

    `mask` (X, Y, Z) is not changed. Voxels at the border of the array have no neighbours outside
    it; an empty or full mask has an empty rim.
    """
    # Shifted slices take a twentieth of the time of scipy's binary_dilation, as long as both
    # arrays have one memory order.
    grown = mask.copy(order="K")
    for axis in range(mask.ndim):
        new = grown.swapaxes(0, axis)
        old = mask.swapaxes(0, axis)
        new[1:] |= old[:-1]
        new[:-1] |= old[1:]
    grown &= ~mask
    return grown


def _select(
    array: NDArray[Any], numbers: tuple[int, ...], size: int
) -> NDArray[np.bool_]:
    """Voxels that hold one of `numbers`; every voxel is below `size`."""
    flags = np.zeros(size, np.bool_)
    flags[[number for number in numbers if number < size]] = True
    selected: NDArray[np.bool_] = flags[array]
    return selected


def _distances_mm(
    points: NDArray[np.int64],
    mask: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> NDArray[np.float64]:
    """Distance from each point outside `mask` to its nearest voxel; infinite if it has none.

    Points are voxel indices (M, 3).
    """
    box = _box_around(mask)
    inside = mask[box]
    if not inside.size:
        return np.full(len(points), np.inf)
    # Imported here: class names and numbers, all that training wants, need no SciPy.
    from scipy.spatial import cKDTree

    # The nearest voxel is always on the mask's surface, which is a tenth of it: the voxels of the
    # mask that share a face with what is outside. The padding is one voxel outside.
    in_padded = np.argwhere(outer_rim(~np.pad(inside, 1)))
    surface = in_padded - 1 + [side.start for side in box]
    spacing = np.asarray(spacing_mm)
    tree = cKDTree(surface * spacing)
    distances: NDArray[np.float64]
    distances, _ = tree.query(points * spacing)
    return distances


def _box_around(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    """The smallest box around all that is set; empty slices if nothing is."""
    sides = []
    for axis in range(mask.ndim):
        other_axes = tuple(other for other in range(mask.ndim) if other != axis)
        occupied = np.flatnonzero(mask.any(axis=other_axes))
        if not len(occupied):
            sides.append(slice(0, 0))
            continue
        sides.append(slice(occupied[0], occupied[-1] + 1))
    return tuple(sides)
