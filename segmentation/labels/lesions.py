"""Lesions in masks: numbered, measured, counted by size, and matched between two masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.labels import LESION_REGIONS, LESION_SIZES_MM3, LesionRegion
from trinat.segmentation.space.morphology import TOUCHING

# Smaller components are not counted as lesions: three voxels of 1 mm.
SMALLEST_MM3 = 3.0
# Volumes of voxels are not exact.
_TOLERANCE_MM3 = 1e-6
# Names of the classes of size, in mm³: below 10, 10 to 100, and so on.
SIZE_NAMES = (
    f"below {LESION_SIZES_MM3[0]}",
    *(f"{low} to {high}" for low, high in pairwise(LESION_SIZES_MM3)),
    f"from {LESION_SIZES_MM3[-1]}",
)


@dataclass(frozen=True, eq=False)
class NumberedLesions:
    """Lesions of a mask, the largest first.

    `numbers` (X, Y, Z) has the number of the lesion of each voxel, from 1; 0 outside of lesions.
    `volumes_mm3` (L,) has the volume of each lesion, in the order of the numbers.
    """

    numbers: NDArray[np.int32]
    volumes_mm3: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of lesions."""
        return len(self.volumes_mm3)

    @property
    def size_classes(self) -> NDArray[np.int64]:
        """Index into `SIZE_NAMES` of each lesion, (L,), by its volume."""
        volumes_mm3 = self.volumes_mm3 + _TOLERANCE_MM3
        return np.searchsorted(LESION_SIZES_MM3, volumes_mm3, side="right")


def number_lesions(
    mask: NDArray[Any], voxel_mm3: float, smallest_mm3: float = SMALLEST_MM3
) -> NumberedLesions:
    """Find the connected components of a mask (X, Y, Z) and number them, the largest first.

    Voxels that share a face, an edge or a corner are connected. Components below `smallest_mm3` are
    left out. `voxel_mm3` is the volume of a voxel.
    """
    parts, _ = ndimage.label(mask != 0, TOUCHING)
    sizes = np.bincount(parts.ravel())
    kept = np.flatnonzero(sizes * voxel_mm3 >= smallest_mm3 - _TOLERANCE_MM3)
    kept = kept[kept > 0]
    # Lesions of equal size keep the order of the map.
    kept = kept[np.argsort(-sizes[kept], kind="stable")]
    numbers_of = np.zeros(len(sizes), np.int32)
    numbers_of[kept] = np.arange(1, len(kept) + 1)
    volumes_mm3 = np.asarray(sizes[kept] * voxel_mm3, np.float64)
    return NumberedLesions(numbers_of[parts], volumes_mm3)


def overlapping(first: NumberedLesions, second: NumberedLesions) -> NDArray[np.int32]:
    """Return the lesions of two masks that share a voxel: pairs of their numbers, (P, 2).

    Both masks are on one grid. One lesion may be in several pairs.
    """
    in_both = (first.numbers > 0) & (second.numbers > 0)
    pairs = np.stack([first.numbers[in_both], second.numbers[in_both]], axis=1)
    return np.unique(pairs, axis=0)


@dataclass(frozen=True)
class LesionCounts:
    """Numbers and volumes of true and predicted lesions, and how many of them match.

    `found` are the true lesions that share at least one voxel with a predicted lesion, and `right`
    the predicted lesions that share one with a true lesion. One predicted lesion may match several
    true lesions, and the other way round.
    """

    true: int = 0
    found: int = 0
    predicted: int = 0
    right: int = 0
    true_mm3: float = 0.0
    predicted_mm3: float = 0.0

    @property
    def recall(self) -> float:
        """Share of the true lesions that are found; NaN without true lesions."""
        return self.found / self.true if self.true else math.nan

    @property
    def precision(self) -> float:
        """Share of the predicted lesions that are right; NaN without predicted lesions."""
        return self.right / self.predicted if self.predicted else math.nan

    @property
    def f1(self) -> float:
        """Harmonic mean of recall and precision.

        It is 0 if there are only true or only predicted lesions, and NaN if there are none. It is
        also NaN if these lesions match lesions of another size or region only.
        """
        if not self.true and (self.right or not self.predicted):
            return math.nan
        if not self.predicted and self.found:
            return math.nan
        if not self.found or not self.right:
            return 0.0
        return 2 / (1 / self.recall + 1 / self.precision)

    def __add__(self, other: LesionCounts) -> LesionCounts:
        mine = astuple(self)
        return LesionCounts(*(a + b for a, b in zip(mine, astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class MatchedLesions:
    """Lesions of a true and of a predicted mask on one grid.

    `is_found` has a value for each true lesion, and `is_right` one for each predicted lesion, as in
    `LesionCounts`.
    """

    true: NumberedLesions
    predicted: NumberedLesions
    is_found: NDArray[np.bool_]
    is_right: NDArray[np.bool_]

    @classmethod
    def between(
        cls, truth: NDArray[Any], prediction: NDArray[Any], voxel_mm3: float
    ) -> MatchedLesions:
        """Match the lesions of two masks (X, Y, Z), without those below `SMALLEST_MM3`."""
        true = number_lesions(truth, voxel_mm3)
        predicted = number_lesions(prediction, voxel_mm3)
        pairs = overlapping(true, predicted)
        return cls(
            true,
            predicted,
            is_found=np.isin(np.arange(1, true.count + 1), pairs[:, 0]),
            is_right=np.isin(np.arange(1, predicted.count + 1), pairs[:, 1]),
        )

    @property
    def counts(self) -> LesionCounts:
        """Counts over all lesions."""
        every = slice(None)
        return self._counts(every, every)

    @property
    def counts_by_size(self) -> dict[str, LesionCounts]:
        """Counts in each class of size; each lesion counts in the class of its own volume."""
        true = self.true.size_classes
        predicted = self.predicted.size_classes
        return {
            name: self._counts(true == index, predicted == index)
            for index, name in enumerate(SIZE_NAMES)
        }

    def counts_by_region(
        self, true: Sequence[LesionRegion], predicted: Sequence[LesionRegion]
    ) -> dict[LesionRegion, LesionCounts]:
        """Return the counts by region, given the region of each true and each predicted lesion."""
        return {
            region: self._counts(
                np.array([each == region for each in true], bool),
                np.array([each == region for each in predicted], bool),
            )
            for region in LESION_REGIONS
        }

    def _counts(
        self, true: slice | NDArray[np.bool_], predicted: slice | NDArray[np.bool_]
    ) -> LesionCounts:
        """Return the counts of some of the lesions, chosen by masks over their numbers."""
        is_found = self.is_found[true]
        is_right = self.is_right[predicted]
        return LesionCounts(
            true=len(is_found),
            found=int(is_found.sum()),
            predicted=len(is_right),
            right=int(is_right.sum()),
            true_mm3=float(self.true.volumes_mm3[true].sum()),
            predicted_mm3=float(self.predicted.volumes_mm3[predicted].sum()),
        )
