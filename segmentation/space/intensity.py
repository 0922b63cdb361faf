"""Intensities of a scan on one scale: nothing is 0, the bright end of the tissue about 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trinat.segmentation.errors import FormatError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import find_background

# Vessels and fat beside a surface coil go beyond 1; what goes beyond 2 is an artefact.
BRIGHTEST = 2.0


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
