"""Background and brightness of a scan, and its intensities on a common scale.

Both are estimated once, from the scan itself, because no value has a meaning of its own: a scan
may be offset, scaled, padded with any number, or set to one outside of a mask. All estimates
are equivariant: for a·x + c (a > 0) the same voxels are background, and the rest keeps its
relative brightness.
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

# Intensities are sampled every millimetre, which takes all voxels of most scans, so that neither
# padding nor the order of the axes matters.
_SAMPLE_MM = 1.0
# Tissue is brighter than this share of the bright end. Cerebrospinal fluid, the darkest relevant
# tissue, is at a quarter; air with the magnitude noise of a strong surface coil is below a tenth.
TISSUE = 0.15
# Voxels darker than this share of the bright end may be noise.
AIR = 0.1
_BRIGHT_PERCENTILE = 98
# The first guess of the bright end is the intensity that a tenth of a litre of the scan exceeds. It
# is a volume rather than a share, so that the amount of air does not matter.
_BRIGHT_MM3 = 1e5
# Most rounds in which the bright end is refined. It converges within a few rounds in most scans.
_MOST_ROUNDS = 20
# Side of a corner of the scan in voxels: in noise, not all voxels of a corner have one value. A
# value is the fill value if at least `_CORNERS` of the eight corners have it.
_CORNER = 3
_CORNERS = 4
# One in this many voxels may be a dark outlier.
_OUTLIERS = 1000
# In a scan of a whole head, more than this share is air. Dark tissue takes less.
_LEAST_AIR = 0.2
# Noise is magnitude noise, whose minimum is the background level, if the distance from the 5th
# percentile to the median is more than this multiple of the distance from the minimum to the 5th
# percentile (Rayleigh noise 3.1, normal noise 1.1).
_ONE_SIDED = 2.0
# The fluid of a stripped brain is not black, so its values begin above the background, by up to
# this share of their range (24 stripped scans: up to 0.19). Values that are lower by more are fill
# values such as -1000.
_FURTHEST_BELOW = 0.35

# Vessels and fat beside a surface coil exceed 1; values above 2 are artefacts.
BRIGHTEST = 2.0


@dataclass(frozen=True, eq=False)
class Background:
    """Background level and bright end of the tissue, in the scan's own values.

    Attributes
    ----------
    level : float
        Intensity of the background: of air or, without air, of the darkest tissue.
    bright : float
        Intensity of the bright end of the tissue.
    box : Box
        The part of the scan inside the padding.
    fill : float or None
        Value outside of the head if it is not the background level. In z-scores it is 0, which is
        as bright as grey matter.
    """

    level: float
    bright: float
    box: Box
    fill: float | None = None

    def is_filled(self, data: Values) -> NDArray[np.bool_]:
        """Return a mask of the voxels outside of the head that have the fill value, (X, Y, Z).

        `data` (X, Y, Z) are the voxels of `box`.
        """
        if self.fill is None:
            return np.zeros(data.shape, bool)
        has_value = data == self.fill
        # Voxels inside the head may have the value by chance, but are not connected to the surface.
        parts, _ = ndimage.label(np.pad(has_value, 1, constant_values=True))
        return np.asarray(parts[1:-1, 1:-1, 1:-1] == parts[0, 0, 0])


def find_background(volume: Volume) -> Background:
    """Estimate the background of a scan from its border, its fill value and its noise."""
    box = _without_padding(volume.data)
    inside = volume.data[box]
    fill = _corner_value(inside)
    x_step, y_step, z_step = (
        max(1, round(_SAMPLE_MM / spacing)) for spacing in volume.spacing_mm
    )
    sample = inside[::x_step, ::y_step, ::z_step]
    voxel_mm3 = volume.grid.voxel_mm3 * x_step * y_step * z_step
    if fill is not None:
        sample = sample[sample != fill]
    if not sample.size:
        return Background(float(fill or 0), float(fill or 0), box)
    # Radix sort, which NumPy calls stable, is three times as fast for small numbers.
    is_small = sample.dtype.itemsize <= 2
    ranked = np.sort(sample, axis=None, stable=is_small).astype(np.float64)
    few = min(round(_BRIGHT_MM3 / voxel_mm3), len(ranked) // 5) + 1
    first_guess = float(ranked[-few])
    level, has_air = _background_level(ranked, first_guess)
    bright = _bright_end(ranked, level, first_guess)
    if fill is None:
        return Background(level, bright, box)
    is_near = abs(fill - level) <= TISSUE * (bright - level)
    if (
        has_air
        and not is_near
        and not _is_air_around(inside, fill, ranked, first_guess)
    ):
        # The dark voxels are tissue, such as white matter in a stripped T2 scan.
        level, has_air = _darkest(ranked), False
        bright = _bright_end(ranked, level, first_guess)
    span = bright - level
    # Tissue of a single value has no range to compare with.
    furthest = _FURTHEST_BELOW * span if span else np.inf
    is_below = 0 < level - fill <= furthest
    if is_near or (is_below and not has_air):
        bright = _bright_end(ranked, fill, first_guess)
        return Background(fill, bright, box)
    return Background(level, bright, box, fill)


def tissue_threshold(level: float, bright: float) -> float:
    """Return the intensity above which a voxel counts as tissue.

    It lies between the background `level` and the `bright` end.
    """
    return level + TISSUE * (bright - level)


def _without_padding(data: Values) -> Box:
    """Return the box of an array inside its padding.

    Padding is all outer planes with a single value; it may be nested.
    """
    box = whole(data.shape)
    while True:
        smaller = box
        for axis in range(3):
            sides = list(smaller)
            sides[axis] = _without_constant_planes(data, smaller, axis)
            smaller = to_box(sides)
            if is_empty(smaller):
                # Keep one plane around tissue of a single value, which shows its background.
                return grown(box, data.shape)
        if smaller == box:
            return box
        box = smaller


def _without_constant_planes(data: Values, box: Box, axis: int) -> slice:
    """Return the side of a box along an axis, without the planes of a single value at its ends."""
    planes = np.moveaxis(data[box], axis, 0)
    first = 0
    last = len(planes)
    while first < last and _is_constant(planes[first]):
        first += 1
    while last > first and _is_constant(planes[last - 1]):
        last -= 1
    return slice(box[axis].start + first, box[axis].start + last)


def _is_constant(plane: Values) -> bool:
    """Return True if all voxels of a plane have the same value."""
    return bool((plane == plane.flat[0]).all())


def _corner_value(data: Values) -> float | None:
    """Return the value that fills at least half of the eight corners; None if there is none.

    Rotated scans and scans with a mask have the fill value in the corners. Otherwise corners hold
    noise or tissue.
    """
    values = []
    for i, j, k in product((slice(_CORNER), slice(-_CORNER, None)), repeat=3):
        corner = data[i, j, k]
        if _is_constant(corner):
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
    """Return True if most voxels next to voxels with the fill value are as dark as air.

    `ranked` (N,) are the other intensities in ascending order, `first_guess` is a guess of the
    bright end.
    """
    is_set = data == fill
    beside = data[ndimage.binary_dilation(is_set) & ~is_set]
    threshold = tissue_threshold(_darkest(ranked), first_guess)
    return bool(np.mean(beside <= threshold) > 0.5)


def _darkest(ranked: Ranked) -> float:
    """Return the lowest of intensities in ascending order, without outliers."""
    return float(ranked[len(ranked) // _OUTLIERS])


def _background_level(ranked: Ranked, bright: float) -> tuple[float, bool]:
    """Return the background level of intensities in ascending order, and True if there is air.

    Without air, the level is the darkest tissue. Magnitude noise begins at the level of the
    background; other noise is centred on it. `bright` is a guess of the bright end.
    """
    darkest = _darkest(ranked)
    end = ranked.searchsorted(tissue_threshold(darkest, bright), "right")
    dark = ranked[:end]
    # If everything is equally bright, all of it is tissue.
    if len(dark) < _LEAST_AIR * len(ranked) or len(dark) == len(ranked):
        return darkest, False
    low = dark[len(dark) // 20]
    middle = dark[len(dark) // 2]
    if middle - low > _ONE_SIDED * (low - darkest):
        return darkest, True
    return float(middle), True


def _bright_end(ranked: Ranked, level: float, first_guess: float) -> float:
    """Return the intensity of the bright end: a high percentile of the tissue's intensities.

    `ranked` (N,) are intensities in ascending order, `level` is the background level, and
    `first_guess` a guess of the result. The share of tissue in the scan does not matter, and
    neither do a few much brighter voxels.
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
    """Return a scan without padding, scaled to 0 in the background and about 1 at the bright end.

    Raises FormatError if nothing stands out from the background, or if voxels are not finite.

    MONAI's ScaleIntensityRangePercentiles includes the background in its percentiles, so the same
    head would get darker in a wider field of view.
    """
    # Files with such voxels are refused earlier, but arrays from other programs may hold them.
    extremes = [volume.data.min(), volume.data.max()]
    if not np.isfinite(extremes).all():
        raise FormatError(
            "voxels are NaN or infinite",
            remedy="set them to 0, or give fill_nonfinite=True",
        )
    background = find_background(volume)
    level = background.level
    reach = background.bright - level
    # Smaller differences have no inverse in single precision.
    if reach < np.finfo(np.float32).tiny:
        raise FormatError(
            "no head stands out from the background", remedy="give a scan of a head"
        )
    inside = volume.data[background.box]
    # Convert to float first: a difference of integers may overflow.
    values = inside.astype(np.float32)
    if level:
        values -= np.float32(level)
    values *= np.float32(1 / reach)
    np.clip(values, 0, BRIGHTEST, out=values)
    if background.fill is not None:
        values[background.is_filled(inside)] = 0
    affine = volume.grid.cut(background.box).affine
    return replace(volume, data=values, affine=affine)
