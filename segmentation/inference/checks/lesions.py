"""Whether there is something in the brain that belongs to no structure: a dark or a bright place.

Brightness is measured against the white matter around, so that a coil's shading is no lesion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.inference.checks.blocks import (
    BLOCK,
    VOXELS,
    block_sums,
    smoothed,
)
from trinat.segmentation.inference.checks.evidence import (
    NO_TISSUE,
    Evidence,
    Finding,
    some,
)
from trinat.segmentation.inference.checks.limits import Limits

Mask = NDArray[np.bool_]

# White matter around: over a Gaussian of this standard deviation, in blocks.
_AROUND = 6.0
# Fissures up to twice this wide, in blocks, are inside the brain.
_FISSURE = 2
# In shares of the white matter around it. Fat, vessels and dura are as bright, but not inside.
_BRIGHT = 1.25
# Dark as fluid is: below cortex by so much of what white matter is above it.
_BELOW_CORTEX = 0.8
# Smaller places are vessels, widened spaces around them and folds: radii in blocks.
_BRIGHT_RADIUS, _DARK_RADIUS, _FLUID_RADIUS = 2, 1, 3
_NAMED = 2


@dataclass(frozen=True)
class Place:
    """Something that is too dark or too bright, and the structures that it is in."""

    mm3: float
    structures: tuple[str, ...] = ()


def check_lesions(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Dark places in white matter, fluid outside ventricles, and bright places anywhere."""
    findings = []
    for what, place in find_places(evidence).items():
        if place.mm3 > limits.lesion_mm3:
            where = some(place.structures) if place.structures else "the brain"
            reason = f"a {what} place of {place.mm3 / 1e3:.1f} ml in {where}: a lesion?"
            findings.append(Finding(False, reason, place.structures))
    return findings


def find_places(evidence: Evidence) -> dict[str, Place]:
    """The dark and the bright places in the brain, by what they are."""
    if evidence.brightness is None:
        return {}
    white, cortex = evidence.brightness
    if white <= 0:
        # Labels that lie on nothing: there is no brightness to compare with.
        return {}
    weights = block_sums(evidence.white_matter)
    sums = block_sums(
        np.where(evidence.white_matter, evidence.image.data, np.float32(0))
    )
    around = smoothed(sums, weights, _AROUND)
    image = block_sums(evidence.image.data) / VOXELS / np.maximum(around, 1e-3)
    brain = _inside(block_sums(evidence.indices.data > 0) > 0)
    fluid = block_sums(evidence.mask(NO_TISSUE - {"background"})) > 0
    dark = (image < cortex / white) & (weights == VOXELS)
    black = (
        brain & ~fluid & (image < (cortex - _BELOW_CORTEX * (white - cortex)) / white)
    )
    bright = brain & (image > _BRIGHT)
    dark_places = _opened(dark, _DARK_RADIUS) | _opened(black, _FLUID_RADIUS)
    return {
        "dark": _place(evidence, dark_places),
        "bright": _place(evidence, _opened(bright, _BRIGHT_RADIUS)),
    }


def _inside(labelled: Mask) -> Mask:
    """The brain with its fissures, and what it encloses."""
    closed = ndimage.binary_closing(np.pad(labelled, _FISSURE), iterations=_FISSURE)
    return np.asarray(ndimage.binary_fill_holes(closed))[
        _FISSURE:-_FISSURE, _FISSURE:-_FISSURE, _FISSURE:-_FISSURE
    ]


def _opened(mask: Mask, radius: int) -> Mask:
    """What of a mask balls of this radius in blocks reach, that lie wholly in it."""
    axes = np.ogrid[tuple(slice(-radius, radius + 1) for _ in range(3))]
    return np.asarray(
        ndimage.binary_opening(mask, sum(axis**2 for axis in axes) <= radius**2)
    )


def _place(evidence: Evidence, mask: Mask) -> Place:
    """How large it is, and the labels that most of it and of its rim have."""
    if not mask.any():
        return Place(0.0)
    rim = ndimage.binary_dilation(mask)
    voxels = rim.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)
    x, y, z = voxels.shape
    labels = evidence.indices.data[:x, :y, :z][voxels]
    counts = np.bincount(labels, minlength=len(evidence.scheme))
    counts[0] = 0
    largest_first = np.argsort(-counts, kind="stable")[:_NAMED]
    names = tuple(evidence.scheme.names[k] for k in largest_first if counts[k] > 0)
    return Place(float(np.count_nonzero(mask)) * VOXELS, names)
