"""Changes of brightness between neighbouring slices.

Brightness changes by about the same amount everywhere in the brain. The change is larger where
slices are lost or two parts of a scan are shifted against each other, and 0 where a slice is
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.io.volume import Volume

# Slices along x, y and z of the world.
_SLICES = ("sagittal", "coronal", "axial")
_COORDINATES = ("x", "y", "z")
# Slices with less than this share of the brain voxels of the largest slice are not compared.
_LARGE = 0.25
# A change is compared with the changes between up to this many slices on either side, except the
# `_NEXT` changes next to it.
_NEAR = 8
_NEXT = 1
# Least number of slices to compare with.
_ENOUGH_SLICES = 6
# Least number of voxels of brain in both slices.
_ENOUGH_VOXELS = 1000


@dataclass(frozen=True)
class Step:
    """Change of brightness from one slice to the next.

    `ratio` is the change divided by the usual change between slices around it. `where` has the view
    of the slices, and the position between them in RAS mm.
    """

    ratio: float
    where: str


def find_steps(image: Volume, brain: NDArray[np.bool_]) -> list[Step]:
    """Return the changes between neighbouring slices of the brain, along all three axes.

    `brain` (X, Y, Z) is a mask on the grid of the image. A change is the mean absolute difference
    over voxels that are brain in both slices, divided by the median of the changes between the
    slices around.
    """
    grid = image.grid
    steps = []
    for axis in range(3):
        changes = _mean_changes(
            np.moveaxis(image.data, axis, 0), np.moveaxis(brain, axis, 0)
        )
        world = int(np.abs(grid.affine[:3, axis]).argmax())
        for number in np.flatnonzero(np.isfinite(changes)):
            around = np.concatenate(
                [
                    changes[max(number - _NEAR, 0) : max(number - _NEXT, 0)],
                    changes[number + 1 + _NEXT : number + 1 + _NEAR],
                ]
            )
            known = around[np.isfinite(around)]
            if len(known) < _ENOUGH_SLICES or not np.median(known) > 0:
                continue
            index = np.zeros(3)
            index[axis] = number + 0.5
            place_mm = grid.places(index)[world]
            where = f"{_SLICES[world]} at {_COORDINATES[world]} = {place_mm:.0f} mm"
            steps.append(Step(float(changes[number] / np.median(known)), where))
    return steps


def _mean_changes(image: NDArray[Any], brain: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the mean absolute difference between each slice and the next, (X - 1,).

    `image` and `brain` are (X, Y, Z), and slices are cut along the first axis. Only voxels that are
    brain in both slices are used. NaN for pairs of slices with little brain.
    """
    both = brain[1:] & brain[:-1]
    voxels = both.sum(axis=(1, 2))
    change = np.abs(image[1:] - image[:-1]) * both
    sums = change.sum(axis=(1, 2), dtype=np.float64)
    is_large = voxels >= max(_LARGE * voxels.max(initial=0), _ENOUGH_VOXELS)
    return np.where(is_large, sums / np.maximum(voxels, 1), np.nan)
