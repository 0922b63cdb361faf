"""Checks of image quality: contrast, saturation, noise, bands, edges, continuity.

All but the last are measured in white matter and cortex as labelled, on the working scale. This is
an affine function of the scan's own values, so that equal values stay equal. Effects of some
millimetres are measured in blocks of 2 mm, which are an eighth of the voxels.
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
# Least difference of white matter and cortex that can be compared with.
_LEAST_DIFFERENCE = 1e-3
# Least number of voxels of white matter, or of contacts with cortex.
_ENOUGH_VOXELS = 1000
# Median of absolute values of a normal distribution, and of a voxel minus the mean of its six
# neighbours, in standard deviations of one voxel.
_NORMAL_MEDIAN = 0.6745
_OF_NEIGHBOURS = (1 + 1 / 6) ** 0.5
# Bands are what differs between two widths of a Gaussian, in blocks.
_NARROW = 2.0
_WIDE = 4.0
# Least voxels of white matter in a block of white matter.
_MOST_VOXELS = 6


def check_contrast(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Check that white matter is brighter than cortex, as in T1."""
    contrast = tissue_contrast(evidence)
    if contrast is None:
        return []
    reason = (
        f"white matter {contrast:.2f} times as bright as cortex: not T1-weighted? "
        "then use the model any"
    )
    return below(contrast, limits.contrast, reason)


def tissue_contrast(evidence: Evidence) -> float | None:
    """Return the median brightness of white matter relative to cortex; None for too few voxels."""
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    return white / max(cortex, 1e-6)


def check_saturation(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Check for many voxels with the maximum value: saturation."""
    share = saturated_share(evidence)
    if share is None:
        return []
    reason = f"{share:.0%} of the white matter has the same greatest value: saturated"
    return above(share, limits.saturated, reason)


def saturated_share(evidence: Evidence) -> float | None:
    """Return the share of white matter with its maximum value."""
    white = evidence.image.data[evidence.white_matter]
    if len(white) < _ENOUGH_VOXELS:
        return None
    return float(np.mean(white == white.max()))


def check_noise(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Check for differences between neighbouring voxels of one tissue."""
    noise = noise_share(evidence)
    if noise is None:
        return []
    reason = f"noise of {noise:.0%} of the difference between white matter and cortex"
    return above(noise, limits.noise, reason)


def noise_share(evidence: Evidence) -> float | None:
    """Return the noise SD in white matter, relative to white matter minus cortex.

    None if there is too little to measure in, as for all shares here.
    """
    difference = _difference(evidence)
    inside = _inside(evidence)[1:-1, 1:-1, 1:-1]
    if difference is None or np.count_nonzero(inside) < _ENOUGH_VOXELS:
        return None
    apart = _apart_from_neighbours(evidence.image.data)[inside]
    noise = float(np.median(apart)) / _NORMAL_MEDIAN / _OF_NEIGHBOURS
    return noise / abs(difference)


def _apart_from_neighbours(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtract from each voxel the mean of its six neighbours; without the outermost voxels."""
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
    """Check for bright and dark bands in white matter, some millimetres wide.

    There is no finding if `band_share` has no value.
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
    """Return the standard deviation in white matter at 4 to 8 mm, relative to white minus cortex.

    A share: 0.1 is a tenth of the difference between white matter and cortex. None if there is too
    little white matter, or no difference from cortex.
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
    """Check the sharpness of the edge between white matter and cortex, along the worst axis."""
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
    """Return the relative step between neighbouring voxels of white matter and cortex.

    It is relative to the difference of both tissues: the mean along each axis, and the smallest
    of the three.
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
    """Return white matter minus cortex, negative in T2; None if it is too small to compare with."""
    if evidence.brightness is None:
        return None
    white, cortex = evidence.brightness
    if abs(white - cortex) < _LEAST_DIFFERENCE:
        return None
    return white - cortex


def _inside(evidence: Evidence) -> NDArray[np.bool_]:
    """Mark white matter whose six neighbours are white matter: no voxel is a mixture."""
    return np.asarray(ndimage.binary_erosion(evidence.white_matter))


def block_sums(values: NDArray[Any]) -> Floats:
    """Sum blocks of 2×2×2 voxels of an image (X, Y, Z).

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
    """Return weighted means over a Gaussian of `width` blocks (standard deviation).

    `sums` and `weights` are of the same blocks. Where there is no weight, the mean of all.
    """
    total = ndimage.gaussian_filter(sums, width, truncate=2.0)
    share = ndimage.gaussian_filter(weights, width, truncate=2.0)
    everywhere = sums.sum() / max(float(weights.sum()), 1.0)
    known = share > 1e-3
    divisor = np.where(known, share, 1)
    means = np.where(known, total / divisor, everywhere)
    return np.asarray(means, np.float32)


def check_continuity(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Check that changes between neighbouring slices of the brain are similar.

    It never rejects: most of the labels may be right.
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
