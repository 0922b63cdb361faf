"""Whether the scan looks as a scan should: contrast, saturation, noise, bands, sharp edges.

All are measured in white matter and cortex as they were labelled, on the working scale. That is the
scan's own but for a factor and an offset, so that equal values are equal there too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.inference.checks.blocks import VOXELS, block_sums, smoothed
from trinat.segmentation.inference.checks.evidence import (
    Evidence,
    Finding,
    above,
    below,
)
from trinat.segmentation.inference.checks.limits import Limits

# From here on white matter and cortex differ enough to compare with.
_LEAST_DIFFERENCE = 1e-3
# Less white matter, or fewer places where it meets cortex, say nothing.
_ENOUGH_VOXELS = 1000
# The median of absolute values of a normal distribution, and of a voxel less the mean of its six
# neighbours, as standard deviations of one voxel.
_NORMAL_MEDIAN = 0.6745
_OF_NEIGHBOURS = (1 + 1 / 6) ** 0.5
# Bands are looked for between two widths of a Gaussian, in blocks.
_NARROW = 2.0
_WIDE = 4.0
# A block with this many voxels of white matter is one of white matter.
_MOST_VOXELS = 6


def check_contrast(evidence: Evidence, limits: Limits) -> list[Finding]:
    """White matter is the brighter one in T1."""
    contrast = tissue_contrast(evidence)
    if contrast is None:
        return []
    reason = (
        f"white matter {contrast:.2f} times as bright as cortex: not T1-weighted? "
        "then use the model any"
    )
    return below(contrast, limits.contrast, reason)


def tissue_contrast(evidence: Evidence) -> float | None:
    """Median brightness of white matter, of that of cortex; None where there is too little."""
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    return white / max(cortex, 1e-6)


def check_saturation(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Many voxels with the greatest of all values: what was brighter is lost."""
    share = saturated_share(evidence)
    if share is None:
        return []
    reason = f"{share:.0%} of the white matter has the same greatest value: saturated"
    return above(share, limits.saturated, reason)


def saturated_share(evidence: Evidence) -> float | None:
    """Share of white matter that has its greatest value."""
    white = evidence.image.data[evidence.white_matter]
    if len(white) < _ENOUGH_VOXELS:
        return None
    return float(np.mean(white == white.max()))


def check_noise(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Differences from voxel to voxel, where there should be none."""
    noise = noise_share(evidence)
    if noise is None:
        return []
    reason = f"noise of {noise:.0%} of the difference between white matter and cortex"
    return above(noise, limits.noise, reason)


def noise_share(evidence: Evidence) -> float | None:
    """Standard deviation of noise inside white matter, of white matter less cortex.

    None where there is too little to measure in, as for all shares here.
    """
    difference = _difference(evidence)
    inside = _inside(evidence)[1:-1, 1:-1, 1:-1]
    if difference is None or np.count_nonzero(inside) < _ENOUGH_VOXELS:
        return None
    apart = _apart_from_neighbours(evidence.image.data)[inside]
    noise = float(np.median(apart)) / _NORMAL_MEDIAN / _OF_NEIGHBOURS
    return noise / abs(difference)


def _apart_from_neighbours(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far each voxel is from the mean of its six neighbours; without the outermost voxels."""
    middle = image[1:-1, 1:-1, 1:-1]
    around = np.zeros(middle.shape, np.float32)
    for axis in range(3):
        length = middle.shape[axis]
        # The neighbours before and after.
        for start in (0, 2):
            side = [slice(1, -1)] * 3
            side[axis] = slice(start, start + length)
            around += image[tuple(side)]
    return np.asarray(np.abs(middle - around / 6))


def check_bands(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Bright and dark places in white matter, some millimetres wide.

    Nothing is found where `band_share` has no value.
    """
    bands = band_share(evidence)
    if bands is None:
        return []
    reason = (
        f"white matter is uneven by {bands:.0%} of its difference from cortex: "
        "motion, a ghost image or a lesion?"
    )
    return above(bands, limits.bands, reason)


def band_share(evidence: Evidence) -> float | None:
    """Standard deviation inside white matter of what is 4 to 8 mm wide, of white less cortex.

    A share: 0.1 is a tenth of the difference between white matter and cortex. None where there is
    too little white matter to say, or no difference from cortex.
    """
    difference = _difference(evidence)
    if difference is None:
        return None
    inside = _inside(evidence)
    image_inside = np.where(inside, evidence.image.data, np.float32(0))
    weights = block_sums(inside.astype(np.float32))
    sums = block_sums(image_inside)
    full = weights >= _MOST_VOXELS
    if np.count_nonzero(full) < _ENOUGH_VOXELS // VOXELS:
        return None
    apart = smoothed(sums, weights, _NARROW) - smoothed(sums, weights, _WIDE)
    return float(np.std(apart[full])) / abs(difference)


def check_edges(evidence: Evidence, limits: Limits) -> list[Finding]:
    """How sharp the edge between white matter and cortex is, along the worst axis."""
    sharpness = edge_sharpness(evidence)
    if sharpness is None:
        return []
    # Below 0 where noise is stronger than the edges.
    shown = max(sharpness, 0.0)
    reason = (
        f"edges of white matter are {shown:.0%} sharp: blurred, thick slices or motion?"
    )
    return below(sharpness, limits.edges, reason)


def edge_sharpness(evidence: Evidence) -> float | None:
    """Step between neighbours of which one is white matter and one cortex, of the difference.

    The mean along each axis; the least of the three.
    """
    difference = _difference(evidence)
    if difference is None:
        return None
    steps = []
    for axis in range(3):
        image = np.moveaxis(evidence.image.data, axis, 0)
        white = np.moveaxis(evidence.white_matter, axis, 0)
        cortex = np.moveaxis(evidence.cortex, axis, 0)
        falls = white[:-1] & cortex[1:]
        rises = cortex[:-1] & white[1:]
        count = np.count_nonzero(falls) + np.count_nonzero(rises)
        if count < _ENOUGH_VOXELS:
            return None
        change = image[1:] - image[:-1]
        total = float(change[rises].sum() - change[falls].sum())
        steps.append(total / count / difference)
    return min(steps)


def _difference(evidence: Evidence) -> float | None:
    """White matter less cortex, below 0 in T2; None where that is nothing to compare with."""
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    if abs(white - cortex) < _LEAST_DIFFERENCE:
        return None
    return white - cortex


def _inside(evidence: Evidence) -> NDArray[np.bool_]:
    """White matter whose six neighbours are white matter: no voxel is a mixture."""
    return np.asarray(ndimage.binary_erosion(evidence.white_matter))
