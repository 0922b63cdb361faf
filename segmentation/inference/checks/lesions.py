"""Check for dark, bright or grey places in the brain that belong to no structure.

Brightness is measured relative to the surrounding white matter, so that a coil's shading is no
lesion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import some
from trinat.segmentation.grid import grown, occupied_box
from trinat.segmentation.inference.checks.brightness import (
    BLOCK,
    VOXELS,
    Floats,
    block_sums,
    smoothed,
)
from trinat.segmentation.inference.checks.evidence import (
    NO_TISSUE,
    Evidence,
)
from trinat.segmentation.inference.checks.findings import (
    Finding,
)
from trinat.segmentation.inference.checks.limits import Limits

Mask = NDArray[np.bool_]

# Standard deviation of the Gaussian that defines surrounding white matter, in blocks.
_AROUND = 6.0
# Fissures up to twice this width, in blocks, are inside the brain.
_FISSURE = 2
# A block is bright from this brightness on, relative to the surrounding white matter. Fat, vessels
# and dura are as bright, but lie outside of the brain.
_BRIGHT = 1.25
# A block is as dark as fluid if it is darker than cortex by this share of the difference between
# white matter and cortex.
_BELOW_CORTEX = 0.8
# Radius, in blocks, of the smallest place of each kind. Smaller ones are vessels, widened spaces
# around vessels, and folds.
_BRIGHT_RADIUS = 2
_DARK_RADIUS = 1
_FLUID_RADIUS = 3
# A large bright place is brighter than this, relative to the whole brain's white matter, and its
# rim is brighter than the white matter just outside by the factor `_EDGE`.
_BRIGHT_MASS = 1.12
_EDGE = 1.15
_MASS_RADIUS = 3
# A block is as grey as cortex if it is darker than white matter by a share, between these two, of
# the difference between white matter and cortex. Cortex is never as thick as `_GREY_RADIUS` says,
# even where folds touch.
_GREY = (1.3, 0.6)
_GREY_RADIUS = 4
# Structures that are as grey as cortex, but thicker.
_GREY_STRUCTURES = NO_TISSUE | {"subcortical", "brainstem", "cerebellum"}
# At most this many structures are named.
_NAMED = 2


@dataclass(frozen=True)
class Region:
    """All parts of the brain that are unusually dark, or bright, or grey: one kind, in one scan.

    `mm3` is their volume in mm³. `structures` has the names of up to two structures that they lie
    in, and may be empty.
    """

    mm3: float
    structures: tuple[str, ...] = ()


def check_lesions(evidence: Evidence, limits: Limits) -> list[Finding]:
    """Report large regions of the brain that are too dark, too bright or grey: possible lesions.

    Regions as dark as fluid that are not labelled as fluid are among them. Returns a finding for
    each kind of region. Findings never reject: a lesion is a reason to look, and the segmentation
    around it may be good.
    """
    findings = []
    for what, place in find_regions(evidence).items():
        if place.mm3 > limits.lesion_mm3:
            where = "the brain"
            if place.structures:
                where = some(place.structures)
            reason = f"a {what} place of {place.mm3 / 1e3:.1f} ml in {where}: a lesion?"
            findings.append(Finding(False, reason, place.structures))
    return findings


def find_regions(evidence: Evidence) -> dict[str, Region]:
    """Return the volume of unusually dark, bright and grey parts of the brain, by kind.

    The keys are "dark", "bright" and "grey". Dark parts are white matter that is darker than
    cortex, and anything as dark as fluid that is not labelled as fluid. Grey parts are as grey as
    cortex, but thicker.

    The result is empty if there is too little white matter or cortex to compare with, or if white
    matter has no brightness. It is also empty if cortex is brighter than white matter, because the
    thresholds are for T1.
    """
    if evidence.brightness is None:
        return {}
    white, cortex = evidence.brightness
    if white <= 0 or cortex >= white:
        # White matter at 0 means that the labels do not lie on the head.
        return {}
    weights = block_sums(evidence.white_matter)
    # Brightness of blocks, relative to the surrounding white matter.
    white_matter = np.where(evidence.white_matter, evidence.image.data, np.float32(0))
    white_around = smoothed(block_sums(white_matter), weights, _AROUND)
    blocks = block_sums(evidence.image.data) / VOXELS
    image = np.asarray(blocks / np.maximum(white_around, 1e-3), np.float32)
    brain = _filled_brain(block_sums(evidence.brain) > 0)
    fluid = block_sums(evidence.mask(NO_TISSUE - {"background"})) > 0

    # White matter that is darker than cortex, and anything that is as dark as fluid.
    darker_than_cortex = (image < cortex / white) & (weights == VOXELS)
    fluid_brightness = cortex - _BELOW_CORTEX * (white - cortex)
    dark_as_fluid = brain & ~fluid & (image < fluid_brightness / white)
    dark_places = _opening(darker_than_cortex, _DARK_RADIUS)
    dark_places |= _opening(dark_as_fluid, _FLUID_RADIUS)
    # A mass that is labelled as white matter dominates its own surroundings. Large places are
    # therefore compared with the white matter of the whole brain, and must have an edge.
    means = np.asarray(blocks / white, np.float32)
    bright_places = _opening(brain & (image > _BRIGHT), _BRIGHT_RADIUS)
    masses = _opening(brain & (means > _BRIGHT_MASS), _MASS_RADIUS)
    bright_places |= _keep_with_edge(masses, means, weights, (_EDGE, np.inf))

    darkest, brightest = (1 - share * (1 - cortex / white) for share in _GREY)
    thick = block_sums(evidence.mask(_GREY_STRUCTURES - {"background"})) > 0
    around = brain & ~thick
    grey_places = _opening(
        around & (image > darkest) & (image < brightest), _GREY_RADIUS
    )
    masses = _opening(around & (means > darkest) & (means < brightest), _GREY_RADIUS)
    grey_places |= _keep_with_edge(masses, means, weights, (0, brightest))
    return {
        "dark": _region_of(evidence, dark_places),
        "bright": _region_of(evidence, bright_places),
        "grey": _region_of(evidence, grey_places),
    }


def _keep_with_edge(
    places: Mask, means: Floats, weights: Floats, ratios: tuple[float, float]
) -> Mask:
    """Keep the components of a mask of blocks that have an edge; return the remaining mask.

    `means` is the brightness of the blocks, `weights` their number of voxels of white matter. A
    component has an edge if the median brightness of its rim, divided by that of the white matter
    just outside, is between the two `ratios`. This excludes shading, which is as bright on either
    side.
    """
    parts, count = ndimage.label(places)
    found = np.zeros_like(places)
    for number in range(1, count + 1):
        part = parts == number
        rim = part & ~ndimage.binary_erosion(part, iterations=2)
        near = ndimage.binary_dilation(part)
        beyond = ndimage.binary_dilation(part, iterations=3) & ~near
        around = beyond & (weights == VOXELS)
        if not around.any():
            continue
        ratio = np.median(means[rim]) / max(np.median(means[around]), 1e-3)
        if ratios[0] < ratio < ratios[1]:
            found |= part
    return found


def _filled_brain(labelled: Mask) -> Mask:
    """Return the mask of the brain with its fissures and enclosed blocks filled."""
    padded = np.pad(labelled, _FISSURE)
    closed = ndimage.binary_closing(padded, iterations=_FISSURE)
    filled = np.asarray(ndimage.binary_fill_holes(closed))
    inner = slice(_FISSURE, -_FISSURE)
    return filled[inner, inner, inner]


def _opening(mask: Mask, radius: int) -> Mask:
    """Return the morphological opening of a mask by a ball of this radius, in blocks.

    It is the union of all such balls that lie inside the mask.
    """
    # The mask must extend by the radius from a ball's centre along each axis, which excludes most
    # of a brain at once.
    centres = mask
    for axis in range(3):
        centres = centres & ndimage.minimum_filter1d(
            mask, 2 * radius + 1, axis=axis, mode="constant"
        )
    opened = np.zeros_like(mask)
    if not centres.any():
        return opened
    side = slice(-radius, radius + 1)
    i, j, k = np.ogrid[side, side, side]
    ball = i**2 + j**2 + k**2 <= radius**2
    box = grown(occupied_box(centres), mask.shape, radius)
    opened[box] = ndimage.binary_opening(mask[box], ball)
    return opened


def _region_of(evidence: Evidence, mask: Mask) -> Region:
    """Return the volume of the blocks in a mask and the structures that fill most of them.

    Neighbouring blocks count for the structures, but not for the volume.
    """
    if not mask.any():
        return Region(0.0)
    rim = ndimage.binary_dilation(mask)
    voxels = rim
    for axis in range(3):
        voxels = voxels.repeat(BLOCK, axis=axis)
    x, y, z = voxels.shape
    labels = evidence.indices.data[:x, :y, :z][voxels]
    counts = np.bincount(labels, minlength=len(evidence.scheme))
    counts[0] = 0
    largest = np.argsort(-counts, kind="stable")[:_NAMED]
    names = tuple(evidence.scheme.names[k] for k in largest if counts[k] > 0)
    return Region(float(np.count_nonzero(mask)) * VOXELS, names)
