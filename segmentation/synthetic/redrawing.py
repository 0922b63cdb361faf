"""Random redrawing of heads: structures that are up to a voxel larger or smaller.

Programs and raters disagree on borders of structures, and twenty heads do not cover the variation
between people. A network trained on them alone draws borders by habit where a noisy scan shows
none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.grid import occupied_box
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_SURROUNDINGS,
)

# FreeSurfer numbers. In a pair the left side comes first; both sides change in the same direction.
_DEEP_AND_CEREBELLUM = (
    (10, 49),  # thalamus
    (11, 50),  # caudate
    (12, 51),  # putamen
    (13, 52),  # pallidum
    (17, 53),  # hippocampus
    (18, 54),  # amygdala
    (26, 58),  # accumbens
    (28, 60),  # ventral diencephalon
    (4, 43),  # lateral ventricle
    (5, 44),  # inferior lateral ventricle
    (7, 46),  # cerebellum white matter
    (14,),  # third ventricle
    (15,),  # fourth ventricle
    (16,),  # brain stem
)
_WHITE_MATTER_AND_CORTEX = ((2, 3), (41, 42))
_VENTRICLES = frozenset({4, 5, 14, 15, 43, 44})
# Tissue that a structure other than a ventricle may grow into: white matter, cortices, lateral
# ventricles with their linings, and fluid, but no other deep structure.
_MAY_BE_TAKEN = (2, 41, 3, 42, 7, 8, 46, 47, 136, 137, 163, 164, 4, 43, 24)
# Smaller structures are not changed.
_MIN_VOXELS = 50
# Borders move only in patches: where smooth noise, with knots at this distance, exceeds a level.
# This is the case in some 78 % of the head.
_DEEP_PATCH_MM = 10
_CORTEX_PATCH_MM = 20
_LEVEL = -0.4
# Margin in voxels around a structure.
_MARGIN = 3
_FACES = ndimage.generate_binary_structure(3, 1)

Head = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def redraw(head: Head, numbers: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Vary the structures of a head (X, Y, Z) of RAS axes and 1 mm, in place.

    `head` has a tissue number from 0 to E - 1 in each voxel, and `numbers` (E,) the FreeSurfer
    number of each. Each structure grows by a voxel, shrinks by one, or stays as it is, with equal
    probability.
    """
    is_moved = _patches(rng, head.shape, _DEEP_PATCH_MM)
    for structure in rng.permutation(len(_DEEP_AND_CEREBELLUM)):
        direction = int(rng.integers(-1, 2))
        for number in _DEEP_AND_CEREBELLUM[structure]:
            _change(head, numbers, number, direction, is_moved)
    direction = int(rng.integers(-1, 2))
    is_moved = _patches(rng, head.shape, _CORTEX_PATCH_MM)
    if direction > 0:
        _thicken_cortex(head, numbers, is_moved)
    if direction < 0:
        _thin_cortex(head, numbers, is_moved)


def is_outside_brain(numbers: NDArray[np.int64]) -> Mask:
    """Return which tissues (E,) are air, fluid around the brain, or outside of the brain.

    `numbers` (E,) are their FreeSurfer numbers.
    """
    is_air_or_fluid = np.isin(numbers, (0, GENERATION_SURROUNDINGS))
    return np.asarray(is_air_or_fluid | (numbers >= GENERATION_FIRST_OUTSIDE))


def _change(
    head: Head,
    numbers: NDArray[np.int64],
    number: int,
    direction: int,
    is_moved: Mask,
) -> None:
    """Grow a structure of `head` by a voxel, or shrink it by one, in place.

    `head` (X, Y, Z) has tissue numbers, and `numbers` (E,) the FreeSurfer number of each. `number`
    is the FreeSurfer number of the structure. It grows if `direction` is positive, and shrinks if
    it is negative. Its border changes only where `is_moved` (X, Y, Z).
    """
    entry = _entry_of(numbers, number)
    if entry is None or not direction:
        return
    own = head == entry
    if np.count_nonzero(own) < _MIN_VOXELS:
        return
    x, y, z = occupied_box(own)
    box = (_widened(x), _widened(y), _widened(z))
    part = head[box]
    own = own[box]
    if direction > 0:
        # The structure grows by one voxel. A ventricle may grow into all of the brain.
        may_be_taken = np.isin(numbers, _MAY_BE_TAKEN)
        if number in _VENTRICLES:
            may_be_taken = ~is_outside_brain(numbers)
        near = ndimage.binary_dilation(own, _FACES) & ~own
        part[near & is_moved[box] & may_be_taken[part]] = entry
    else:
        # The outermost voxels of the structure get the entry of the nearest voxel outside of it.
        edge = own & ~ndimage.binary_erosion(own, _FACES) & is_moved[box]
        nearest = ndimage.distance_transform_edt(
            own, return_distances=False, return_indices=True
        )
        part[edge] = part[tuple(axis[edge] for axis in nearest)]


def _widened(extent: slice) -> slice:
    """Extend a range of voxels by a margin on both sides, but not below 0."""
    return slice(max(0, extent.start - _MARGIN), extent.stop + _MARGIN)


def _thin_cortex(head: Head, numbers: NDArray[np.int64], is_moved: Mask) -> None:
    """Replace the outermost voxel of the cortex by fluid where `is_moved` (X, Y, Z), in place.

    `head` (X, Y, Z) has tissue numbers, and `numbers` (E,) the FreeSurfer number of each.
    """
    entry_of_fluid = _entry_of(numbers, GENERATION_SURROUNDINGS)
    if entry_of_fluid is None:
        return
    cortices = [cortex for _, cortex in _WHITE_MATTER_AND_CORTEX]
    is_outside = is_outside_brain(numbers)[head]
    near_outside = ndimage.binary_dilation(is_outside, _FACES)
    is_cortex = np.isin(numbers, cortices)[head]
    head[is_cortex & near_outside & is_moved] = entry_of_fluid


def _thicken_cortex(head: Head, numbers: NDArray[np.int64], is_moved: Mask) -> None:
    """Let the cortex grow by a voxel into the white matter where `is_moved` (X, Y, Z), in place.

    `head` (X, Y, Z) has tissue numbers, and `numbers` (E,) the FreeSurfer number of each.
    """
    for white_matter, cortex in _WHITE_MATTER_AND_CORTEX:
        entry_of_cortex = _entry_of(numbers, cortex)
        entry_of_white = _entry_of(numbers, white_matter)
        if entry_of_cortex is None or entry_of_white is None:
            continue
        near_cortex = ndimage.binary_dilation(head == entry_of_cortex, _FACES)
        is_white = head == entry_of_white
        head[is_white & near_cortex & is_moved] = entry_of_cortex


def _entry_of(numbers: NDArray[np.int64], number: int) -> int | None:
    """Return the first index of a FreeSurfer number in the table `numbers` (E,), or None."""
    entries = np.flatnonzero(numbers == number)
    return int(entries[0]) if len(entries) else None


def _patches(rng: np.random.Generator, shape: Sequence[int], spacing_mm: int) -> Mask:
    """Draw a mask (X, Y, Z) of the patches in which borders move.

    `spacing_mm` is the distance of the noise's knots, and so the scale of the patches.
    """
    knots = rng.normal(size=[length // spacing_mm + 3 for length in shape])
    noise = ndimage.zoom(knots, spacing_mm, order=1)
    within = tuple(slice(length) for length in shape)
    return np.asarray(noise[within] > _LEVEL)
