"""Whether a label map lies on its scan: labels that explain the scan better elsewhere do not."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

# Labels are tried so many voxels of 1 mm away along each axis.
_SHIFTS = (-6, -3, 3, 6)
# Every second voxel along each axis is looked at.
_STRIDE = 2


def shift_of_labels(
    image: NDArray[np.floating], classes: NDArray[np.integer]
) -> tuple[int, int, int] | None:
    """The shift (voxels along X, Y, Z) at which classes fit the image better; None where they fit.

    Both are (X, Y, Z) on the working grid. How well they fit is the share of the image's variance
    that lies between classes.
    """
    occupied = np.argwhere(classes > 0)
    if not len(occupied):
        return None
    most = max(_SHIFTS)
    low = np.maximum(occupied.min(axis=0) - most, most)
    high = np.minimum(occupied.max(axis=0) + most, np.array(classes.shape) - most)
    seen = image[_box(low, high, (0, 0, 0))].astype(np.float64).ravel()
    best = _explained(seen, classes[_box(low, high, (0, 0, 0))])
    found = None
    for axis, distance in product(range(3), _SHIFTS):
        shift = [0, 0, 0]
        shift[axis] = distance
        share = _explained(seen, classes[_box(low, high, shift)])
        if share > best:
            best = share
            # Classes are taken from there, so they belong the other way.
            found = [-step for step in shift]
    return None if found is None else (found[0], found[1], found[2])


def _box(
    low: NDArray[np.integer],
    high: NDArray[np.integer],
    shift: tuple[int, ...] | list[int],
) -> tuple[slice, ...]:
    """Every second voxel of a box that is moved by a shift."""
    return tuple(
        slice(int(first) + step, int(last) + step, _STRIDE)
        for first, last, step in zip(low, high, shift, strict=True)
    )


def _explained(values: NDArray[np.float64], classes: NDArray[np.integer]) -> float:
    """The share (0 to 1) of the variance of values (N,) that lies between classes; 0 of none."""
    groups = classes.ravel()
    counts = np.bincount(groups)
    sums = np.bincount(groups, values)
    there = counts > 0
    mean = values.mean()
    between = (sums[there] ** 2 / counts[there]).sum() - len(values) * mean**2
    total = ((values - mean) ** 2).sum()
    return float(between / total) if total > 0 else 0.0
