"""Find the head in a scan: a cheap estimate, which is too wide rather than too narrow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segmentation.io.volume import Volume
from segmentation.space.grid import Box
from segmentation.space.resample import occupied_box

# The scan is looked at through cells of about this size, in which noise averages out.
_CELL_MM = 4.0
# What is brighter than this share of the bright end is tissue. Cerebrospinal fluid, the darkest
# that matters, lies at a quarter; air at magnitude noise of a strong surface coil below a tenth.
_TISSUE = 0.15
_BRIGHT_PERCENTILE = 98
# The first guess at the bright end: what a tenth of a litre exceeds. Counted as a volume and not
# as a share, it is the same however much air there is.
_BRIGHT_MM3 = 1e5
# From the top of the scalp to the lowest brain: under 180 mm, in a head bent by 30° under 200.
_HEAD_HEIGHT_MM = 210.0


def foreground(values: NDArray[Any], voxel_mm3: float) -> tuple[float, float]:
    """Level of the empty background and bright end of the tissue, of samples of `voxel_mm3` each.

    The bright end is a percentile of what stands out from the background, found by repeating; its
    share in the scan does not matter, nor do some voxels that are far too bright.
    """
    ranked = np.sort(values, axis=None).astype(np.float64)
    few = min(round(_BRIGHT_MM3 / voxel_mm3), len(ranked) // 5) + 1
    bright = ranked[-few]
    low = 0.0
    if ranked[0] < 0:
        # Not magnitudes: normalised, or with the overshoot of a sharp filter. The background is
        # what most of the dark half holds.
        floor = ranked[min(few, len(ranked) // 100)]
        dark = ranked[: ranked.searchsorted(floor + _TISSUE * (bright - floor), "right")]
        low = min(0.0, float(dark[len(dark) // 2]))
    for _ in range(20):
        first = int(ranked.searchsorted(low + _TISSUE * (bright - low), "right"))
        if first == len(ranked):
            break
        last = bright
        bright = ranked[first + (len(ranked) - 1 - first) * _BRIGHT_PERCENTILE // 100]
        if bright == last:
            break
    return low, float(bright)


def head_box(volume: Volume, *, margin_mm: float = 10.0) -> Box:
    """Voxels (X, Y, Z) that hold the head and a margin, inside the scan; all of it if unsure.

    What reaches further down than any brain does, neck and shoulders, is left out.
    """
    spacing = np.array(volume.spacing_mm)
    steps = np.maximum(1, np.rint(_CELL_MM / spacing)).astype(int)
    cells = _block_means(volume.data, steps)
    low, bright = foreground(cells, float(np.prod(spacing * steps)))
    tissue = cells > low + _TISSUE * (bright - low)
    # One cell across is a wrap-around ghost, a marker or a nose, no head.
    solid = ndimage.binary_opening(np.pad(tissue, 1, mode="edge"))[1:-1, 1:-1, 1:-1]
    parts, count = ndimage.label(solid)
    if not count:
        return volume.grid.box
    head = parts == 1 + np.bincount(parts.ravel())[1:].argmax()
    # What opening took from the head's own surface comes back.
    head = ndimage.binary_dilation(head) & tissue
    found = occupied_box(_above_the_neck(head, volume, steps))
    margin = np.ceil(margin_mm / spacing).astype(int)
    x, y, z = (
        slice(max(int(s.start * step - m), 0), min(int(s.stop * step + m), n))
        for s, step, m, n in zip(found, steps, margin, volume.shape, strict=True)
    )
    return x, y, z


def _block_means(data: NDArray[Any], steps: NDArray[np.int_]) -> NDArray[np.float64]:
    """Means of blocks of `steps` voxels; the last of each axis may be smaller."""
    sums = data
    for axis, step in enumerate(steps):
        starts = np.arange(0, data.shape[axis], step)
        counts = np.diff(np.append(starts, data.shape[axis]))
        sums = np.add.reduceat(sums, starts, axis=axis, dtype=np.float64)
        sums = sums / np.expand_dims(counts, [a for a in range(3) if a != axis])
    return sums


def _above_the_neck(
    head: NDArray[np.bool_], volume: Volume, steps: NDArray[np.int_]
) -> NDArray[np.bool_]:
    """The part of a mask of cells that lies within a head's height of its top."""
    up = volume.affine[2, :3] * steps
    heights = np.zeros(head.shape)
    for axis, step in enumerate(up):
        heights += np.expand_dims(
            step * np.arange(head.shape[axis]), [a for a in range(3) if a != axis]
        )
    top = heights[head].max()
    return np.asarray(head & (heights > top - _HEAD_HEIGHT_MM))
