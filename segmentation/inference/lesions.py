"""Lesions of white matter: numbered, measured and graded.

A network (`lesion_network.py`) gives the probability of lesion, which is restored to the scan's own
space. Likely voxels that touch are one lesion there, and the structures of the model show its
region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.inference.checks.limits import GradeName
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import LesionRegion
from trinat.segmentation.labels.lesions import (
    SMALLEST_MM3,
    NumberedLesions,
    number_lesions,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.morphology import TOUCHING

# A voxel with at least this probability is lesion.
LIKELY = 0.5
# A lesion with a voxel this near to a ventricle is periventricular, one this near to the cortex is
# juxtacortical. A voxel that shares a face with them is near, however thick slices are.
_NEAR_VENTRICLE_MM = 2.0
_NEAR_CORTEX_MM = 1.5
# Smaller components of ventricles and cortex are lesions that the model of structures mislabelled.
_LARGE_PART_MM3 = 300.0
# FreeSurfer numbers.
_WHITE_MATTER = (2, 41)
_LATERAL_VENTRICLES = (4, 5, 43, 44)
_CORTEX = (3, 42)
_INFRATENTORIAL = (7, 8, 15, 16, 46, 47)
_SUPRATENTORIAL = (2, 3, 4, 10, 11, 12, 13, 41, 42, 43, 49, 50, 51, 52)
# Limits of the grade. A person should look at lesions that fill more than the first share of the
# white matter; above the second they are rejected (28 patients with multiple sclerosis have at most
# 52 ml, about a tenth). From the last volume on, lesions in a single slice or on a single side are
# implausible.
_MANY_OF_WHITE = 0.05
_MOST_OF_WHITE = 0.25
_MANY_MM3 = 1000.0


@dataclass(frozen=True)
class Lesion:
    """One lesion of white matter.

    `number` is its value in the map of lesions, `centroid_mm` its centre of gravity in RAS mm,
    `region` the part of the brain that it lies in, and `probability` the mean probability of lesion
    over its voxels.
    """

    number: int
    volume_mm3: float
    centroid_mm: tuple[float, float, float]
    region: LesionRegion
    probability: float


@dataclass(frozen=True, eq=False)
class Lesions:
    """Lesions of a scan, the largest first.

    `numbers` is a map in the scan's own space, int32: the number of the lesion that each voxel
    belongs to, 0 outside of lesions. `grade` is pass, look or reject, and `reasons` says why the
    lesions are doubtful.
    """

    numbers: Volume
    lesions: tuple[Lesion, ...]
    grade: GradeName
    reasons: tuple[str, ...]

    @property
    def mask(self) -> Volume:
        """Map of all lesions in the scan's own space: 0 and 1, uint8."""
        found = self.numbers
        mask = (found.data > 0).astype(np.uint8)
        return Volume(mask, found.affine, found.codes, found.notes)

    @property
    def count(self) -> int:
        """Number of lesions."""
        return len(self.lesions)

    @property
    def volume_mm3(self) -> float:
        """Total volume of all lesions, in mm³."""
        return sum(lesion.volume_mm3 for lesion in self.lesions)


def find_lesions(
    probability: Volume,
    structures: Volume,
    scheme: LabelScheme,
    *,
    is_flair: bool,
    is_too_thin: bool = False,
    is_searched: bool = True,
    smallest_mm3: float = SMALLEST_MM3,
) -> Lesions:
    """Find the lesions of a scan; measure and grade them.

    `probability` is the probability of lesion, and `structures` has the class of `scheme` of each
    voxel; both are on the scan's own grid. Lesions smaller than `smallest_mm3` are left out.
    `is_flair` is True if grey matter is brighter than white matter, as in FLAIR. `is_too_thin` is
    True if the network that found the probability is unreliable in slices as thin as these.
    `is_searched` is False if it could not run: the result without lesions is then rejected.
    """
    grid = probability.grid
    is_likely = probability.data >= LIKELY
    found = number_lesions(is_likely, grid.voxel_mm3, smallest_mm3)
    numbers = found.numbers
    [regions] = regions_of([found], structures, scheme)
    every = np.arange(1, found.count + 1)
    probabilities = ndimage.mean(probability.data, numbers, every)
    lesions = []
    boxes = ndimage.find_objects(numbers)
    for number, box in enumerate(boxes, start=1):
        places = np.argwhere(numbers[box] == number)
        middle = places.mean(axis=0) + [side.start for side in box]
        x, y, z = (grid.affine[:3, :3] @ middle + grid.affine[:3, 3]).tolist()
        lesions.append(
            Lesion(
                number=number,
                volume_mm3=float(found.volumes_mm3[number - 1]),
                centroid_mm=(x, y, z),
                region=regions[number - 1],
                probability=float(probabilities[number - 1]),
            )
        )
    volume = Volume(numbers, probability.affine, structures.codes, structures.notes)
    grade, reasons = _grade(lesions, numbers, structures, scheme, is_flair, is_too_thin)
    if not is_searched:
        grade = "reject"
        reasons = ("too little white matter or cortex to search for lesions",)
    return Lesions(volume, tuple(lesions), grade, reasons)


def _grade(
    lesions: list[Lesion],
    numbers: NDArray[np.int32],
    structures: Volume,
    scheme: LabelScheme,
    is_flair: bool,
    is_too_thin: bool,
) -> tuple[GradeName, tuple[str, ...]]:
    """Return the grade of the lesions and its reasons.

    `numbers` (X, Y, Z) is the map of lesions; `structures` has classes of `scheme` on the same
    grid.
    """
    grade: GradeName = "look"
    reasons = []
    if not is_flair:
        reasons.append("found without FLAIR, which shows lesions best")
    if is_too_thin:
        reasons.append("lesions are unreliable in slices as thin as these")
    total_mm3 = sum(lesion.volume_mm3 for lesion in lesions)
    white = [scheme.find(number).index for number in _WHITE_MATTER]
    white_voxels = np.count_nonzero(np.isin(structures.data, white))
    white_mm3 = white_voxels * structures.grid.voxel_mm3
    if total_mm3 > _MANY_OF_WHITE * white_mm3:
        reasons.append(
            f"lesions fill {total_mm3 / max(white_mm3, 1):.0%} of the white matter"
        )
    if total_mm3 > _MOST_OF_WHITE * white_mm3:
        grade = "reject"
    if total_mm3 >= _MANY_MM3:
        reasons += _implausible_places(numbers, structures, white)
    return grade if reasons else "pass", tuple(reasons)


def _implausible_places(
    numbers: NDArray[np.int32], structures: Volume, white: Sequence[int]
) -> list[str]:
    """Return the reasons to doubt lesions that lie in one slice only, or on one side only.

    `numbers` (X, Y, Z) is the map of lesions; `structures` has classes on the same grid, of which
    `white` are left and right white matter.
    """
    reasons = []
    x, y, z = np.nonzero(numbers)
    if any(len(np.unique(axis)) == 1 for axis in (x, y, z)):
        reasons.append("all lesions lie in one slice")
    # A voxel is on the side whose white matter is nearer, and on no side if both are equally near.
    is_left = structures.data == white[0]
    is_right = structures.data == white[1]
    if is_left.any() and is_right.any():
        spacing_mm = structures.grid.spacing_mm
        from_left = ndimage.distance_transform_edt(~is_left, spacing_mm)
        from_right = ndimage.distance_transform_edt(~is_right, spacing_mm)
        on_left = (from_left < from_right)[x, y, z]
        on_right = (from_right < from_left)[x, y, z]
        if on_left.any() != on_right.any():
            reasons.append("all lesions lie on one side")
    return reasons


def regions_of(
    masks: Sequence[NumberedLesions], structures: Volume, scheme: LabelScheme
) -> list[list[LesionRegion]]:
    """Return the region of each lesion of each mask, in the order of their numbers.

    `structures` has the class of `scheme` of each voxel, on the same grid as all masks.
    """
    if not any(lesions.count for lesions in masks):
        return [[] for _ in masks]
    is_lesion = np.any([lesions.numbers > 0 for lesions in masks], axis=0)
    from_ventricle = _distance_mm(_LATERAL_VENTRICLES, is_lesion, structures, scheme)
    from_cortex = _distance_mm(_CORTEX, is_lesion, structures, scheme)
    below = _distance_mm(_INFRATENTORIAL, is_lesion, structures, scheme)
    above = _distance_mm(_SUPRATENTORIAL, is_lesion, structures, scheme)
    is_below = below < above
    by_ventricle = _is_near(from_ventricle, _NEAR_VENTRICLE_MM)
    by_cortex = _is_near(from_cortex, _NEAR_CORTEX_MM)
    found = []
    for lesions in masks:
        every = np.arange(1, lesions.count + 1)
        is_periventricular = ndimage.maximum(by_ventricle, lesions.numbers, every)
        is_juxtacortical = ndimage.maximum(by_cortex, lesions.numbers, every)
        share_below = ndimage.mean(is_below, lesions.numbers, every)
        regions: list[LesionRegion] = []
        for lesion in range(lesions.count):
            if share_below[lesion] > 0.5:
                regions.append("infratentorial")
            elif is_periventricular[lesion]:
                regions.append("periventricular")
            elif is_juxtacortical[lesion]:
                regions.append("juxtacortical")
            else:
                regions.append("deep")
        found.append(regions)
    return found


def _distance_mm(
    numbers: tuple[int, ...],
    is_lesion: NDArray[np.bool_],
    structures: Volume,
    scheme: LabelScheme,
) -> NDArray[np.float64]:
    """Return the distance from each voxel to the nearest of some structures, (X, Y, Z), in mm.

    `numbers` are the FreeSurfer numbers of these structures, and `structures` has the class of
    `scheme` of each voxel. Voxels in the mask `is_lesion` (X, Y, Z) and small components of the
    structures are ignored. The distance is infinite if nothing else is left of the
    structures.
    """
    classes = [label.index for label in scheme.labels if label.fs_id in numbers]
    mask = np.isin(structures.data, classes) & ~is_lesion
    parts, _ = ndimage.label(mask, TOUCHING)
    sizes_mm3 = np.bincount(parts.ravel()) * structures.grid.voxel_mm3
    is_large = sizes_mm3 >= _LARGE_PART_MM3
    is_large[0] = False
    mask = is_large[parts]
    if not mask.any():
        return np.full(mask.shape, np.inf)
    spacing_mm = structures.grid.spacing_mm
    found: NDArray[np.float64] = ndimage.distance_transform_edt(~mask, spacing_mm)
    return found


def _is_near(distance_mm: NDArray[np.float64], limit_mm: float) -> NDArray[np.bool_]:
    """Return the mask (X, Y, Z) of voxels within a distance of a structure or touching it.

    `distance_mm` (X, Y, Z) are distances between centres of voxels, 0 in the structure. Voxels that
    share a face touch.
    """
    touches = ndimage.binary_dilation(distance_mm == 0)
    return np.asarray((distance_mm <= limit_mm) | touches)
