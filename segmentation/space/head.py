"""Where in a scan the head is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.grid import Box, to_box
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.resample import occupied_box

Mask = NDArray[np.bool_]
# Along one axis, the first voxel of each cell and the end of the last, in ascending order.
Ends = NDArray[np.int_]

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
    tissue = image.data > TISSUE
    if not tissue.any():
        return image.grid.box
    bounds = [_cell_bounds(tissue, axis, int(step)) for axis, step in enumerate(steps)]
    head = _head_cells(image.data, bounds)
    if head is None:
        return image.grid.box
    cells = occupied_box(_above_the_neck(head, image, bounds))
    margins = np.ceil(margin_mm / spacing).astype(int)
    sides = []
    for cell_side, ends, margin in zip(cells, bounds, margins, strict=True):
        start = ends[cell_side.start] - margin
        stop = ends[cell_side.stop] + margin
        sides.append(slice(int(start), int(stop)))
    return to_box(sides)


def _cell_bounds(tissue: Mask, axis: int, step: int) -> Ends:
    """Where cells of `step` voxels begin along an axis, and where the last one ends.

    One begins at the plane that halves the tissue, so that cells hold the same voxels wherever the
    scan begins and ends. The first and the last may reach beyond it.
    """
    other_axes = tuple(other for other in range(3) if other != axis)
    counts = np.count_nonzero(tissue, axis=other_axes)
    running = np.cumsum(counts)
    middle = int(running.searchsorted(running[-1] / 2))
    first = -(-middle % step)
    return np.arange(first, tissue.shape[axis] + step, step)


def _head_cells(data: NDArray[Any], bounds: Sequence[Ends]) -> Mask | None:
    """Which cells are the largest piece of tissue; None if there is none."""
    tissue = _cell_means(data, bounds) > TISSUE
    # One cell across is a wrap-around ghost, a marker or a nose, no head.
    solid = ndimage.binary_opening(tissue)
    parts, count = ndimage.label(solid)
    if not count:
        return None
    sizes = np.bincount(parts.ravel())[1:]  # part 0 is what belongs to none
    largest = parts == 1 + sizes.argmax()
    # What opening took from the head's own surface comes back.
    return np.asarray(ndimage.binary_dilation(largest) & tissue)


def _cell_means(data: NDArray[Any], bounds: Sequence[Ends]) -> NDArray[np.float64]:
    """Means of cells with these bounds along each axis, as an array of cells.

    Beyond its end the image is 0.
    """
    means = data
    for axis, ends in enumerate(bounds):
        starts = np.maximum(ends[:-1], 0)
        sums = np.add.reduceat(means, starts, axis=axis, dtype=np.float64)
        means = sums / (ends[1] - ends[0])
    return means


def _above_the_neck(head: Mask, image: Volume, bounds: Sequence[Ends]) -> Mask:
    """The part of a mask of cells within a head's height of its top."""
    # The affine's third row gives a voxel's height; its offset does not matter here.
    up_x, up_y, up_z = image.affine[2, :3]
    i, j, k = np.ix_(*(ends[:-1] for ends in bounds))
    heights_mm = up_x * i + up_y * j + up_z * k
    top_mm = heights_mm[head].max()
    return np.asarray(head & (heights_mm > top_mm - _HEAD_HEIGHT_MM))
