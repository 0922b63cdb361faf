"""Where a scan holds nothing and how bright its tissue is, and its intensities on one scale.

Both are found once, from the scan itself. No value means nothing by itself. A scan may be offset,
scaled, padded with any number, or set to one outside of a mask. So all that is said of it here
moves with its values: of a·x + c (a > 0) the same voxels are nothing, and the rest has the same
brightness between that and the bright end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import FormatError
from trinat.segmentation.grid import Box, grown, is_empty, to_box, whole
from trinat.segmentation.io.volume import Volume

Values = NDArray[Any]
# Intensities in ascending order, (N,).
Ranked = NDArray[np.float64]

# Intensities are looked at every millimetre: all voxels of most scans, so that neither padding nor
# the order of the axes decides which ones.
_SAMPLE_MM = 1.0
# What is brighter than this share of the bright end is tissue. Cerebrospinal fluid, the darkest
# that matters, is at a quarter; air at magnitude noise of a strong surface coil below a tenth.
TISSUE = 0.15
# What is darker than this share of it may be nothing but noise.
AIR = 0.1
_BRIGHT_PERCENTILE = 98
# The first guess at the bright end: what a tenth of a litre exceeds. Counted as a volume and not
# as a share, it is the same however much air there is.
_BRIGHT_MM3 = 1e5
# The bright end settles within a few rounds; a scan in which it does not is cut off here.
_MOST_ROUNDS = 20
# So many voxels each way are a corner of a scan; noise does not repeat a value in all of one.
_CORNER = 3
_CORNERS = 4
# The darkest voxels may be outliers: one in so many.
_OUTLIERS = 1000
# Air is more than this share of a scan in which a head is whole. Dark tissue is less.
_LEAST_AIR = 0.2
# Noise of magnitudes ends at nothing: its values lie closer there than between a twentieth and
# the middle, by this factor (Rayleigh's 3.1, a normal distribution 1.1).
_ONE_SIDED = 2.0
# A brain begins above what it was cut out with, as its fluid is not black: by up to this share of
# what its brightness spans (24 stripped scans: up to 0.19). What is darker by more is a number that
# stands for nothing, such as -1000.
_FURTHEST_BELOW = 0.35

# Vessels and fat beside a surface coil go beyond 1; what goes beyond 2 is an artefact.
BRIGHTEST = 2.0


@dataclass(frozen=True, eq=False)
class Background:
    """The brightness of nothing and the bright end of the tissue, in the scan's own values.

    Beyond `box` the scan was padded. `fill` is what the outside of the head was set to, where that
    is not as dark as nothing: z-scores have 0 there, which is as bright as grey matter.
    """

    level: float
    bright: float
    box: Box
    fill: float | None = None

    def is_filled(self, data: Values) -> NDArray[np.bool_]:
        """Where the voxels of `box`, (X, Y, Z), are outside of the head and have its value."""
        if self.fill is None:
            return np.zeros(data.shape, bool)
        has_value = data == self.fill
        # What has it by chance inside of the head does not reach the surface.
        parts, _ = ndimage.label(np.pad(has_value, 1, constant_values=True))
        return np.asarray(parts[1:-1, 1:-1, 1:-1] == parts[0, 0, 0])


def find_background(volume: Volume) -> Background:
    """What is nothing in a scan, from its border, the values at it, and the noise of its air."""
    box = _without_padding(volume.data)
    inside = volume.data[box]
    fill = _value_that_fills(inside)
    x_step, y_step, z_step = (
        max(1, round(_SAMPLE_MM / spacing)) for spacing in volume.spacing_mm
    )
    sample = inside[::x_step, ::y_step, ::z_step]
    voxel_mm3 = volume.grid.voxel_mm3 * x_step * y_step * z_step
    if fill is not None:
        sample = sample[sample != fill]
    if not sample.size:
        return Background(float(fill or 0), float(fill or 0), box)
    # Small numbers sort three times as fast by radix, which NumPy calls stable.
    is_small = sample.dtype.itemsize <= 2
    ranked = np.sort(sample, axis=None, stable=is_small).astype(np.float64)
    few = min(round(_BRIGHT_MM3 / voxel_mm3), len(ranked) // 5) + 1
    first_guess = float(ranked[-few])
    level, has_air = _level_of(ranked, first_guess)
    bright = _bright_end(ranked, level, first_guess)
    if fill is None:
        return Background(level, bright, box)
    is_near = abs(fill - level) <= TISSUE * (bright - level)
    if (
        has_air
        and not is_near
        and not _is_air_around(inside, fill, ranked, first_guess)
    ):
        # What is dark is tissue, as white matter in a stripped T2 scan.
        level, has_air = _darkest(ranked), False
        bright = _bright_end(ranked, level, first_guess)
    span = bright - level
    # Tissue of one value has no span that could say how far below it is too far.
    furthest = _FURTHEST_BELOW * span if span else np.inf
    is_below = 0 < level - fill <= furthest
    if is_near or (is_below and not has_air):
        bright = _bright_end(ranked, fill, first_guess)
        return Background(fill, bright, box)
    return Background(level, bright, box, fill)


def tissue_threshold(level: float, bright: float) -> float:
    """What is brighter than this is tissue, between nothing and a bright end."""
    return level + TISSUE * (bright - level)


def _without_padding(data: Values) -> Box:
    """The part of an array that no plane of one value is around, however often it was padded."""
    box = whole(data.shape)
    while True:
        smaller = box
        for axis in range(3):
            sides = list(smaller)
            sides[axis] = _without_even_planes(data, smaller, axis)
            smaller = to_box(sides)
            if is_empty(smaller):
                # The tissue is of one value: what is around it is shown by a plane of that.
                return grown(box, data.shape)
        if smaller == box:
            return box
        box = smaller


def _without_even_planes(data: Values, box: Box, axis: int) -> slice:
    """One side of a box without the planes at its ends that have one value each."""
    planes = np.moveaxis(data[box], axis, 0)
    first = 0
    last = len(planes)
    while first < last and _is_even(planes[first]):
        first += 1
    while last > first and _is_even(planes[last - 1]):
        last -= 1
    return slice(box[axis].start + first, box[axis].start + last)


def _is_even(plane: Values) -> bool:
    """Whether a plane has one value everywhere."""
    return bool((plane == plane.flat[0]).all())


def _value_that_fills(data: Values) -> float | None:
    """The value that half of the eight corners were set to; None where they have noise or tissue.

    Where a scan was turned, or all but a head set to one value, that value is in the corners.
    """
    values = []
    for i, j, k in product((slice(_CORNER), slice(-_CORNER, None)), repeat=3):
        corner = data[i, j, k]
        if _is_even(corner):
            values.append(float(corner.flat[0]))
    if not values:
        return None
    value, corners = Counter(values).most_common(1)[0]
    if corners < _CORNERS:
        return None
    return value


def _is_air_around(
    data: Values, fill: float, ranked: Ranked, first_guess: float
) -> bool:
    """Whether most of what lies beside the voxels that were set to a value is as dark as air."""
    is_set = data == fill
    beside = data[ndimage.binary_dilation(is_set) & ~is_set]
    threshold = tissue_threshold(_darkest(ranked), first_guess)
    return bool(np.mean(beside <= threshold) > 0.5)


def _darkest(ranked: Ranked) -> float:
    """The darkest of ascending intensities, but for outliers."""
    return float(ranked[len(ranked) // _OUTLIERS])


def _level_of(ranked: Ranked, bright: float) -> tuple[float, bool]:
    """The level of the air in ascending intensities, and whether there is any.

    Without air it is the darkest tissue. Noise of magnitudes begins at the level; other noise has
    it in its middle.
    """
    darkest = _darkest(ranked)
    end = ranked.searchsorted(tissue_threshold(darkest, bright), "right")
    dark = ranked[:end]
    # Where all is equally bright, all of it is tissue.
    if len(dark) < _LEAST_AIR * len(ranked) or len(dark) == len(ranked):
        return darkest, False
    low = dark[len(dark) // 20]
    middle = dark[len(dark) // 2]
    if middle - low > _ONE_SIDED * (low - darkest):
        return darkest, True
    return float(middle), True


def _bright_end(ranked: Ranked, level: float, first_guess: float) -> float:
    """The percentile of the tissue that tissue itself is measured by, in ascending intensities.

    Its share in the scan does not matter, nor do some voxels that are far too bright.
    """
    bright = first_guess
    for _ in range(_MOST_ROUNDS):
        first = int(ranked.searchsorted(tissue_threshold(level, bright), "right"))
        if first == len(ranked):
            break
        last_bright = bright
        last = len(ranked) - 1
        bright = float(ranked[first + (last - first) * _BRIGHT_PERCENTILE // 100])
        if bright == last_bright:
            break
    return bright


def on_working_scale(volume: Volume) -> Volume:
    """A scan without its padding, with 0 where there is nothing and about 1 at its bright end.

    Raises FormatError where nothing stands out, and for voxels that are no numbers.

    Not MONAI's ScaleIntensityRangePercentiles: its percentiles count the background, so that the
    same head comes out darker in a wider field of view.
    """
    # Files with such voxels are not read, but arrays from elsewhere may hold them.
    extremes = [volume.data.min(), volume.data.max()]
    if not np.isfinite(extremes).all():
        raise FormatError("voxels are NaN or infinite", remedy="set them to 0 before")
    background = find_background(volume)
    level = background.level
    reach = background.bright - level
    # Smaller differences have no inverse in single precision.
    if reach < np.finfo(np.float32).tiny:
        raise FormatError(
            "nothing stands out from its background", remedy="give a scan of a head"
        )
    inside = volume.data[background.box]
    # Floats first: a difference of integers may be beyond their type.
    values = inside.astype(np.float32)
    if level:
        values -= np.float32(level)
    values *= np.float32(1 / reach)
    np.clip(values, 0, BRIGHTEST, out=values)
    if background.fill is not None:
        values[background.is_filled(inside)] = 0
    affine = volume.grid.cut(background.box).affine
    return replace(volume, data=values, affine=affine)
