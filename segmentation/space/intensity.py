"""Intensities of a scan: the level of its background, the bright end of its tissue, one scale."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError
from trinat.segmentation.io.volume import Volume

# Intensities in ascending order, (N,).
Ranked = NDArray[np.float64]

# Intensities are looked at every 2 mm or so: the same figures to a thousandth, in an eighth of the
# time.
_SAMPLE_MM = 2.0
# Vessels and fat beside a surface coil go beyond 1; what goes beyond 2 is an artefact.
BRIGHTEST = 2.0
# What is brighter than this share of the bright end is tissue. Cerebrospinal fluid, the darkest
# that matters, is at a quarter; air at magnitude noise of a strong surface coil below a tenth.
_TISSUE = 0.15
_BRIGHT_PERCENTILE = 98
# The first guess at the bright end: what a tenth of a litre exceeds. Counted as a volume and not
# as a share, it is the same however much air there is.
_BRIGHT_MM3 = 1e5
# The bright end settles within a few rounds; a scan in which it does not is cut off here.
_MOST_ROUNDS = 20


def on_working_scale(volume: Volume) -> NDArray[np.float32]:
    """Intensities with 0 in empty background and about 1 at the bright end, on the scan's grid.

    Raises FormatError where nothing stands out, and for voxels that are no numbers.

    Not MONAI's ScaleIntensityRangePercentiles: its percentiles count the background, so that the
    same head comes out darker in a wider field of view.
    """
    steps = [max(1, round(_SAMPLE_MM / spacing)) for spacing in volume.spacing_mm]
    x_step, y_step, z_step = steps
    sample = volume.data[::x_step, ::y_step, ::z_step]
    sample_mm3 = float(np.prod(np.multiply(steps, volume.spacing_mm)))
    low, bright = foreground(sample, sample_mm3)
    # Smaller differences have no inverse in single precision.
    if bright - low < np.finfo(np.float32).tiny:
        raise FormatError(
            "nothing stands out from its background", remedy="give a scan of a head"
        )
    values = volume.data.astype(np.float32)
    if low:
        values -= np.float32(low)
    values *= np.float32(1 / (bright - low))
    np.clip(values, 0, BRIGHTEST, out=values)
    # Files with such voxels are not read, but arrays from elsewhere may hold them.
    if np.isnan(values.min()):
        raise FormatError("voxels are NaN or infinite", remedy="set them to 0 before")
    return values


def foreground(values: NDArray[Any], voxel_mm3: float) -> tuple[float, float]:
    """Level of the empty background and bright end of the tissue, of samples of `voxel_mm3` each.

    The bright end is a percentile of what stands out from the background, found by repeating; its
    share in the scan does not matter, nor do some voxels that are far too bright.
    """
    ranked = np.sort(values, axis=None).astype(np.float64)
    few = min(round(_BRIGHT_MM3 / voxel_mm3), len(ranked) // 5) + 1
    first_guess = ranked[-few]
    low = 0.0
    if ranked[0] < 0:
        low = _background_level(ranked, first_guess, few)
    return low, _bright_end(ranked, low, first_guess)


def tissue_threshold(low: float, bright: float) -> float:
    """What is brighter than this is tissue, between a background and a bright end."""
    return low + _TISSUE * (bright - low)


def _background_level(ranked: Ranked, bright: float, few: int) -> float:
    """The background of intensities, in ascending order, that go below 0; at most 0.

    Such are not magnitudes: they were normalised, or have the overshoot of a sharp filter. The
    background is what most of the dark half holds. `few` of the darkest may be outliers.
    """
    floor = ranked[min(few, len(ranked) // 100)]
    dark_count = ranked.searchsorted(tissue_threshold(floor, bright), "right")
    dark = ranked[:dark_count]
    return min(0.0, float(dark[len(dark) // 2]))


def _bright_end(ranked: Ranked, low: float, first_guess: float) -> float:
    """The percentile of the tissue that tissue itself is measured by, in ascending intensities."""
    bright = first_guess
    for _ in range(_MOST_ROUNDS):
        first = int(ranked.searchsorted(tissue_threshold(low, bright), "right"))
        if first == len(ranked):
            break
        last_bright = bright
        last = len(ranked) - 1
        bright = ranked[first + (last - first) * _BRIGHT_PERCENTILE // 100]
        if bright == last_bright:
            break
    return float(bright)
