"""Scans to the working grid, and what was found there back to the scan's own grid.

The working grid has RAS axes along the world's, 1 mm apart. Whatever needs no interpolation gets
none: a scan of 1 mm whose axes are only ordered otherwise keeps every voxel, there and back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import FormatError, GeometryError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.grid import Box, Grid, Shape, is_empty, to_shape
from trinat.segmentation.space.resample import (
    GridMap,
    occupied_box,
    resample_image,
    resample_labels,
    resample_probabilities,
)

_GRID_MM = 1.0
_DEFAULT_SHAPE = (256, 256, 256)
_LARGEST = 256
# Four times halved, as the networks do it, a side of this many voxels stays whole.
_SIDE_MULTIPLE = 16
_SAME_MM = 1e-3
# Intensities are looked at every 2 mm or so: the same figures to a thousandth, in an eighth of the
# time.
_SAMPLE_MM = 2.0
# Vessels and fat beside a surface coil go beyond 1; what goes beyond 2 is an artefact.
_BRIGHTEST = 2.0
# Around the head: some scalp and air above the highest brain.
_MARGIN_MM = 10.0
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


@dataclass(frozen=True, eq=False)
class ConformPlan:
    """A scan's own grid, with the codes of its header, and the working grid it was brought to."""

    scan: Grid
    codes: tuple[int, int]
    working: Grid

    def cropped(self, box: Box) -> ConformPlan:
        """The plan of a part of the working grid: what is found there restores by itself."""
        return replace(self, working=self.working.cut(box))


@dataclass(frozen=True, eq=False)
class Conformed:
    """A volume on the working grid, and the plan that takes it back."""

    volume: Volume
    plan: ConformPlan


def conform(
    volume: Volume,
    *,
    labels: bool = False,
    plan: ConformPlan | None = None,
    shape: Shape | None = _DEFAULT_SHAPE,
) -> Conformed:
    """Bring a scan, or with `labels` a label map, to the working grid.

    A scan becomes float32: 0 in empty background, about 1 at the bright end of the tissue, at most
    2. Labels keep their type and numbers; the plan of their scan brings them to the very same grid.
    With `shape` None the grid is only as large as the head's box, in multiples of 16.
    """
    if plan is None:
        plan = _plan(volume, labels, shape)
    else:
        _require(volume, plan.scan, "the scan that its plan was made for")
    to = GridMap.between(volume.grid, plan.working)
    data = (
        resample_labels(volume.data, to)
        if labels
        else resample_image(_scaled(volume), to)
    )
    return Conformed(
        Volume(data, plan.working.affine, volume.codes, volume.notes), plan
    )


def restore(volume: Volume, plan: ConformPlan, *, labels: bool) -> Volume:
    """Bring labels, or with `labels` False one map of values, back to the scan's own grid.

    Beyond the working grid all is 0. Values come back as float32.
    """
    _require(volume, plan.working, "the working grid of its plan")
    back = GridMap.between(plan.working, plan.scan)
    data = (
        resample_labels(volume.data, back)
        if labels
        else resample_image(volume.data, back)
    )
    return Volume(data, plan.scan.affine, plan.codes, volume.notes)


def restore_probabilities(probabilities: NDArray[Any], plan: ConformPlan) -> Volume:
    """Most probable class (uint8) on the scan's own grid, of probabilities (K, X, Y, Z).

    Probabilities are interpolated, not labels, one class after another. They sum to 1, or to 0
    where nothing is known, which becomes class 0, as all does beyond the working grid.
    """
    if probabilities.shape[1:] != plan.working.shape:
        raise GeometryError(
            f"probabilities of {probabilities.shape[1:]} voxels on a grid of {plan.working.shape}",
            remedy="restore them with the plan that they were made by",
        )
    back = GridMap.between(plan.working, plan.scan)
    classes = resample_probabilities(probabilities, back)
    return Volume(classes, plan.scan.affine, plan.codes)


def _plan(volume: Volume, labels: bool, shape: Shape | None) -> ConformPlan:
    """Lay a grid over a scan: over its field of view if that fits, else over its head.

    Grid and scan share a face, so that equal spacings need no interpolation and halves nest.
    """
    grid = volume.grid
    low, high = grid.extent_mm(grid.box)
    face = low
    box = low, high
    if shape is None or (high - low > np.array(shape) * _GRID_MM + _SAME_MM).any():
        content = occupied_box(volume.data != 0) if labels else head_box(volume)
        box = grid.extent_mm(grid.box if is_empty(content) else content)
    if shape is None:
        sides = (
            np.ceil((box[1] - box[0]) / _GRID_MM / _SIDE_MULTIPLE - _SAME_MM)
            * _SIDE_MULTIPLE
        )
        shape = to_shape(np.minimum(sides, _LARGEST).astype(int))
        low, high = box
    size = np.array(shape) * _GRID_MM
    fits = high - low <= size + _SAME_MM
    centre = np.where(fits, (low + high) / 2, (box[0] + box[1]) / 2)
    # Nothing of the brain is at the lower end of a scan that is too tall: it is the top that stays.
    if box[1][2] - box[0][2] > size[2]:
        centre[2] = box[1][2] - size[2] / 2
    # Halves are rounded down always, not as the last digit has it.
    shift = np.rint((centre - size / 2 - face) / _GRID_MM - 1e-6) * _GRID_MM
    origin = face + shift + _GRID_MM / 2
    affine = np.diag([_GRID_MM, _GRID_MM, _GRID_MM, 1.0])
    affine[:3, 3] = origin
    return ConformPlan(grid, volume.codes, Grid(shape, affine))


def _scaled(volume: Volume) -> NDArray[np.float32]:
    """Intensities on the working scale, on the scan's own grid.

    Not MONAI's ScaleIntensityRangePercentiles: its percentiles count the background, so that the
    same head comes out darker in a wider field of view.
    """
    steps = [max(1, round(_SAMPLE_MM / s)) for s in volume.spacing_mm]
    sample = volume.data[:: steps[0], :: steps[1], :: steps[2]]
    low, bright = foreground(
        sample, float(np.prod(np.multiply(steps, volume.spacing_mm)))
    )
    # Smaller differences have no inverse in single precision.
    if bright - low < np.finfo(np.float32).tiny:
        raise FormatError(
            "nothing stands out from its background", remedy="give a scan of a head"
        )
    values = volume.data.astype(np.float32)
    if low:
        values -= np.float32(low)
    values *= np.float32(1 / (bright - low))
    np.clip(values, 0, _BRIGHTEST, out=values)
    # Files with such voxels are not read, but arrays from elsewhere may hold them.
    if np.isnan(values.min()):
        raise FormatError("voxels are NaN or infinite", remedy="set them to 0 before")
    return values


def _require(volume: Volume, grid: Grid, what: str) -> None:
    """Refuse a volume that does not lie on a grid, to a thousandth of a millimetre."""
    apart_mm = volume.grid.apart_mm(grid)
    if apart_mm > _SAME_MM:
        raise GeometryError(
            f"its grid of {volume.shape} voxels is not that of {what}, {grid.shape}"
            + (
                f", but up to {apart_mm:.3g} mm off"
                if volume.shape == grid.shape
                else ""
            ),
            remedy="give volumes that belong together",
        )


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
        dark = ranked[
            : ranked.searchsorted(floor + _TISSUE * (bright - floor), "right")
        ]
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


def head_box(volume: Volume, *, margin_mm: float = _MARGIN_MM) -> Box:
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
    x, y, z = volume.affine[2, :3] * steps
    i, j, k = np.ogrid[tuple(slice(n) for n in head.shape)]
    heights = x * i + y * j + z * k
    top = heights[head].max()
    return np.asarray(head & (heights > top - _HEAD_HEIGHT_MM))
