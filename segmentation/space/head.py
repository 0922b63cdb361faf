"""Where in a scan the head is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.grid import Box, to_box
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.resample import occupied_box

Mask = NDArray[np.bool_]
# How many voxels a cell has along each axis, (3,).
Steps = NDArray[np.int_]

# Around the head: some scalp and air above the highest brain.
_MARGIN_MM = 10.0
# The scan is looked at through cells of about this size, in which noise averages out.
_CELL_MM = 4.0
# From the top of the scalp to the lowest brain: under 180 mm, in a head bent by 30° under 200.
_HEAD_HEIGHT_MM = 210.0


def head_box(image: Volume, *, margin_mm: float = _MARGIN_MM) -> Box:
    """Voxels (X, Y, Z) of the head and a margin, of an image on the working scale.

    The margin may reach beyond the image. All of the image if unsure. What reaches further down
    than any brain does, neck and shoulders, is left out.
    """
    spacing = np.array(image.spacing_mm)
    nearest = np.rint(_CELL_MM / spacing)
    steps = np.maximum(1, nearest).astype(int)
    head = _head_cells(image, steps)
    if head is None:
        return image.grid.box
    cells = occupied_box(_above_the_neck(head, image, steps))
    margins = np.ceil(margin_mm / spacing).astype(int)
    sides = []
    for cell_side, step, margin in zip(cells, steps, margins, strict=True):
        start = cell_side.start * step - margin
        stop = cell_side.stop * step + margin
        sides.append(slice(int(start), int(stop)))
    return to_box(sides)


def _head_cells(image: Volume, steps: Steps) -> Mask | None:
    """Which cells of `steps` voxels are the largest piece of tissue; None if there is none."""
    tissue = _block_means(image.data, steps) > TISSUE
    # One cell across is a wrap-around ghost, a marker or a nose, no head.
    padded = np.pad(tissue, 1, mode="edge")
    opened = ndimage.binary_opening(padded)
    solid = opened[1:-1, 1:-1, 1:-1]
    parts, count = ndimage.label(solid)
    if not count:
        return None
    sizes = np.bincount(parts.ravel())[1:]  # part 0 is what belongs to none
    largest = parts == 1 + sizes.argmax()
    # What opening took from the head's own surface comes back.
    return np.asarray(ndimage.binary_dilation(largest) & tissue)


def _block_means(data: NDArray[Any], steps: Steps) -> NDArray[np.float64]:
    """Means of blocks of `steps` voxels (3,), as an array of blocks.

    The last block of each axis may be smaller: it is what is left of the array.
    """
    means = data
    for axis, step in enumerate(steps):
        length = data.shape[axis]
        starts = np.arange(0, length, step)
        counts = np.diff(starts, append=length)
        sums = np.add.reduceat(means, starts, axis=axis, dtype=np.float64)
        other_axes = [other for other in range(3) if other != axis]
        means = sums / np.expand_dims(counts, other_axes)
    return means


def _above_the_neck(head: Mask, image: Volume, steps: Steps) -> Mask:
    """The part of a mask of cells within a head's height of its top."""
    # The affine's third row gives a voxel's height; its offset does not matter here.
    x, y, z = image.affine[2, :3] * steps
    x_count, y_count, z_count = head.shape
    i, j, k = np.ogrid[:x_count, :y_count, :z_count]
    heights_mm = x * i + y * j + z * k
    top_mm = heights_mm[head].max()
    return np.asarray(head & (heights_mm > top_mm - _HEAD_HEIGHT_MM))
