"""Space of one participant, halfway between all scans, in which each scan is resampled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Grid, Shape, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.rigid import (
    Alignment,
    align,
    extents_mm,
    grid_around,
    is_mirrored,
    mean_pose,
    stretches,
)

Matrix = NDArray[np.float64]
# Factors along three axes, the largest first.
Factors = NDArray[np.float64]

# Lower limit of the likeness of two scans of one head. Measured: 0.98 and more for one participant,
# 0.47 and less for two (docs/notes/longitudinal.md).
SAME_HEAD = 0.75
_GRID_MM = 1.0
# Tolerance for lengths of one head in two scans: they differ by 0.4 mm in true pairs, and by 2.4 mm
# and more if one scan is 2 % too large (docs/longitudinal.md).
_SAME_SIZE_MM = 2.0
# Darker voxels are not in the head, on the working scale.
_HEAD = 0.2
# The networks halve a side four times, so it must be a multiple of this.
_SIDE_MULTIPLE = 16
_LARGEST = 256


@dataclass(frozen=True, eq=False)
class ParticipantSpace:
    """Space of a participant: a grid of 1 mm with RAS axes, and the pose of each scan in it.

    `poses` are rigid matrices (4, 4), one for each scan. They map RAS millimetres of the scan to
    RAS millimetres of the grid.
    """

    grid: Grid
    poses: tuple[Matrix, ...]

    def in_scan(self, number: int) -> Grid:
        """Return the grid in the world coordinates of a scan, where it may be oblique.

        `number` is the index of the scan.
        """
        return self.grid.moved_by(np.linalg.inv(self.poses[number]))


@dataclass(frozen=True, eq=False)
class Head:
    """Scans of one head: their indices, and the alignment of the first of them with each.

    `stretches_percent` says for each scan by how many percent the head is larger (or smaller, if
    negative) than in most of the scans, along the axis with the largest difference; it is 0 for an
    equal size. If two sizes are equally frequent, the first scan's size is the reference.
    `is_mirrored` is True if the head is the mirror image of another head.
    """

    scans: tuple[int, ...]
    alignments: tuple[Alignment, ...]
    stretches_percent: tuple[float, ...] = ()
    is_mirrored: bool = False


def heads_of(images: Sequence[Volume]) -> list[Head]:
    """Group images by the head that they show, the largest group first.

    Images have intensities of 0 in the background and about 1 in the brightest tissue, and voxels
    of about 1 mm.
    """
    found: list[dict[int, Alignment]] = []
    sizes: dict[int, Factors] = {}
    mirrored: set[int] = set()
    itself = Alignment(np.eye(4), 1.0)
    for number, image in enumerate(images):
        for members in found:
            first = images[next(iter(members))]
            aligned = align(first, image)
            if aligned.likeness < SAME_HEAD:
                continue
            if is_mirrored(first, image, aligned.matrix):
                mirrored.add(number)
                continue
            members[number] = aligned
            mirrored.discard(number)
            sizes[number] = stretches(first, image, aligned.matrix)
            break
        else:
            found.append({number: itself})
            sizes[number] = np.ones(3)
    heads = []
    for members in found:
        head = images[next(iter(members))]
        percents = _stretches_percent(head, [sizes[number] for number in members])
        is_mirror = not mirrored.isdisjoint(members)
        heads.append(Head(tuple(members), tuple(members.values()), percents, is_mirror))
    return sorted(heads, key=lambda head: -len(head.scans))


def _stretches_percent(first: Volume, sizes: Sequence[Factors]) -> tuple[float, ...]:
    """Return by how many percent the head is larger in each scan than in most scans.

    The axis with the largest difference counts; 0 means an equal size. `first` is the first scan of
    the head, and `sizes` has the factors along three axes, relative to it, of each scan.
    """
    head = np.argwhere(first.data > _HEAD)
    length_mm = float((np.ptp(head, axis=0) * first.spacing_mm).max())
    against_each = [
        tuple(_stretch_percent(size / usual, length_mm) for size in sizes)
        for usual in sizes
    ]
    return max(against_each, key=lambda percents: percents.count(0.0))


def _stretch_percent(factors: Factors, length_mm: float) -> float:
    """Return the largest of three changes of size in percent; 0 if it is too small to be certain.

    `factors` (3,) are 1 for equal sizes. `length_mm` is the length of the head, in which a change
    must exceed `_SAME_SIZE_MM`.
    """
    percents = 100 * (factors - 1)
    percent = float(percents[np.argmax(np.abs(percents))])
    return percent if abs(percent) / 100 * length_mm > _SAME_SIZE_MM else 0.0


def participant_space(
    images: Sequence[Volume],
    alignments: Sequence[Alignment],
    shape: Shape | None = None,
) -> ParticipantSpace:
    """Return the space halfway between all images.

    `alignments` are those of the first image with each image. The grid encloses all images, with
    sides in multiples of 16 voxels, or has the given `shape`.
    """
    from_first = [alignment.matrix for alignment in alignments]
    # Alignments map the first scan to each scan, so their mean maps it to the middle of all scans.
    middle = mean_pose(from_first)
    poses = [middle @ np.linalg.inv(matrix) for matrix in from_first]
    lows, highs = extents_mm(images, poses)
    low = lows.min(axis=0)
    high = highs.max(axis=0)
    if shape is None:
        multiples = np.ceil((high - low) / _GRID_MM / _SIDE_MULTIPLE)
        sides = multiples * _SIDE_MULTIPLE
        shape = to_shape(np.clip(sides, _SIDE_MULTIPLE, _LARGEST))
    grid = grid_around((low + high) / 2, shape, _GRID_MM)
    return ParticipantSpace(grid, tuple(poses))
