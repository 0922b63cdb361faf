"""Checks of image quality: contrast, saturation, noise, bands, edges, continuity.

All but the last are measured in white matter and cortex as labelled. Brightness is 0 in the
background and about 1 in the brightest tissue: an affine function of the scan's own values, so that
equal values stay equal. Effects of some millimetres are measured in blocks of 2 mm, which are an
eighth of the voxels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.inference.checks.evidence import (
    Evidence,
)
from trinat.segmentation.inference.checks.findings import (
    Finding,
    above,
    below,
)
from trinat.segmentation.inference.checks.limits import Limits

Floats = NDArray[np.float32]

BLOCK = 2
VOXELS = BLOCK**3
# Least difference between white matter and cortex that other differences are divided by.
_LEAST_DIFFERENCE = 1e-3
# Least number of voxels of white matter, or of pairs of neighbours in white matter and cortex, to
# measure in.
_ENOUGH_VOXELS = 1000
# In standard deviations: the median of absolute values of a normal distribution, and the standard
# deviation of a voxel minus the mean of its six neighbours, if all are independent.
_NORMAL_MEDIAN = 0.6745
_OF_NEIGHBOURS = (1 + 1 / 6) ** 0.5
# Bands are the difference between two Gaussian means of these standard deviations, in blocks.
_NARROW = 2.0
_WIDE = 4.0
# Least number of voxels of white matter, of eight, in a block that counts as white matter.
_MOST_VOXELS = 6


def check_contrast(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a scan whose white matter is hardly brighter than cortex, unlike in T1."""
    contrast = tissue_contrast(evidence)
    if contrast is None:
        return []
    reason = (
        f"white matter {contrast:.2f} times as bright as cortex: not T1-weighted? "
        "then use the model any"
    )
    return below(contrast, limits.contrast, reason)


def tissue_contrast(evidence: Evidence) -> float | None:
    """Return the median brightness of white matter divided by that of cortex.

    None if there are too few voxels of either.
    """
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    return white / max(cortex, 1e-6)


def check_saturation(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a scan in which much white matter has the maximum value, as after saturation."""
    share = saturated_share(evidence)
    if share is None:
        return []
    reason = f"{share:.0%} of the white matter has the same greatest value: saturated"
    return above(share, limits.saturated, reason)


def saturated_share(evidence: Evidence) -> float | None:
    """Return the share of voxels of white matter that have its maximum value.

    None if there is too little white matter.
    """
    white = evidence.image.data[evidence.white_matter]
    if len(white) < _ENOUGH_VOXELS:
        return None
    return float(np.mean(white == white.max()))


def check_noise(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report noise, measured as differences between neighbouring voxels of white matter."""
    noise = noise_share(evidence)
    if noise is None:
        return []
    reason = f"noise of {noise:.0%} of the difference between white matter and cortex"
    return above(noise, limits.noise, reason)


def noise_share(evidence: Evidence) -> float | None:
    """Return the standard deviation of noise in white matter, as a share of the tissue difference.

    The tissue difference is the median brightness of white matter minus that of cortex. None if
    there are too few voxels to measure in, or no difference.
    """
    difference = _tissue_difference(evidence)
    inside = _pure_white_matter(evidence)[1:-1, 1:-1, 1:-1]
    if difference is None or np.count_nonzero(inside) < _ENOUGH_VOXELS:
        return None
    apart = _difference_from_neighbours(evidence.image.data)[inside]
    noise = float(np.median(apart)) / _NORMAL_MEDIAN / _OF_NEIGHBOURS
    return noise / abs(difference)


def _difference_from_neighbours(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the absolute difference of each voxel from the mean of its six neighbours.

    The result lacks the outermost voxels of the image (X, Y, Z).
    """
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
    """Report bright and dark bands in white matter that are some millimetres wide."""
    bands = band_share(evidence)
    if bands is None:
        return []
    reason = (
        f"white matter is uneven by {bands:.0%} of its difference from cortex: "
        "motion, a ghost image or a lesion?"
    )
    return above(bands, limits.bands, reason)


def band_share(evidence: Evidence) -> float | None:
    """Return the standard deviation of bands in white matter, as a share of the tissue difference.

    Bands are variations of brightness over 4 to 8 mm. The tissue difference is the median
    brightness of white matter minus that of cortex: 0.1 is a tenth of it. None if there is too
    little white matter, or no difference.
    """
    difference = _tissue_difference(evidence)
    if difference is None:
        return None
    inside = _pure_white_matter(evidence)
    image_inside = np.where(inside, evidence.image.data, np.float32(0))
    weights = block_sums(inside.astype(np.float32))
    sums = block_sums(image_inside)
    full = weights >= _MOST_VOXELS
    if np.count_nonzero(full) < _ENOUGH_VOXELS // VOXELS:
        return None
    apart = smoothed(sums, weights, _NARROW) - smoothed(sums, weights, _WIDE)
    return float(np.std(apart[full])) / abs(difference)


def check_edges(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report a blurred border between white matter and cortex, along the most blurred axis."""
    sharpness = edge_sharpness(evidence)
    if sharpness is None:
        return []
    # Negative if noise is stronger than the edges.
    shown = max(sharpness, 0.0)
    reason = (
        f"edges of white matter are {shown:.0%} sharp: blurred, thick slices or motion?"
    )
    return below(sharpness, limits.edges, reason)


def edge_sharpness(evidence: Evidence) -> float | None:
    """Return the step between neighbouring voxels of white matter and cortex, as a share.

    It is the mean step along an axis divided by the difference of the median brightness of both
    tissues, for the axis with the smallest step. None if there are too few such neighbours, or no
    difference.
    """
    difference = _tissue_difference(evidence)
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


def _tissue_difference(evidence: Evidence) -> float | None:
    """Return the median brightness of white matter minus that of cortex, which is negative in T2.

    None if the difference is too small to divide by, or there are too few voxels.
    """
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    if abs(white - cortex) < _LEAST_DIFFERENCE:
        return None
    return white - cortex


def _pure_white_matter(evidence: Evidence) -> NDArray[np.bool_]:
    """Return a mask of white matter whose six neighbours are white matter, too.

    These voxels are not mixed with other tissue.
    """
    return np.asarray(ndimage.binary_erosion(evidence.white_matter))


def block_sums(values: NDArray[Any]) -> Floats:
    """Return the sums of blocks of 2×2×2 voxels of an array (X, Y, Z), (X/2, Y/2, Z/2).

    Incomplete blocks at the ends are dropped.
    """
    x = values.shape[0] // BLOCK
    y = values.shape[1] // BLOCK
    z = values.shape[2] // BLOCK
    sums = values[: x * BLOCK, : y * BLOCK, : z * BLOCK].astype(np.float32)
    # Axis by axis takes a sixth of the time of all three at once.
    sums = sums[::2] + sums[1::2]
    sums = sums[:, ::2] + sums[:, 1::2]
    return np.asarray(sums[:, :, ::2] + sums[:, :, 1::2])


def smoothed(sums: Floats, weights: Floats, width: float) -> Floats:
    """Return the Gaussian-weighted mean value around each block.

    `sums` are the sums of values in each block, `weights` the number of values in it. `width` is
    the standard deviation of the Gaussian in blocks. Blocks without any value nearby get the mean
    of all values.
    """
    total = ndimage.gaussian_filter(sums, width, truncate=2.0)
    share = ndimage.gaussian_filter(weights, width, truncate=2.0)
    everywhere = sums.sum() / max(float(weights.sum()), 1.0)
    known = share > 1e-3
    divisor = np.where(known, share, 1)
    means = np.where(known, total / divisor, everywhere)
    return np.asarray(means, np.float32)


def check_continuity(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report slices that differ much more, or much less, from their neighbour than other slices do.

    Slices were lost or shifted where brightness jumps, and repeated where nothing changes. Returns
    up to two findings, one of either kind. They are reasons to look at the scan and never reject
    it, because most of the labels may be right.
    """
    steps = evidence.steps
    if not steps:
        return []
    largest = max(steps, key=lambda step: step.ratio)
    reason = (
        f"{largest.where}, slices differ {largest.ratio:.1f} times as much as around: "
        "slices lost or shifted?"
    )
    findings = above(largest.ratio, limits.jump, reason)
    smallest = min(steps, key=lambda step: step.ratio)
    if smallest.ratio < limits.still:
        reason = f"{smallest.where}, slices do not differ: repeated slices?"
        findings.append(Finding(False, reason))
    return findings
