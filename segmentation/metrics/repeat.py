"""Agreement of label maps of two scans of one participant after alignment of the scans.

The scans are aligned as when a participant's scans are segmented together: rigidly, in a space
halfway between them. Every label map is resampled once, into that space, so that both are
interpolated alike. Volumes are measured before resampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.grid import moved
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.longitudinal.participant import image_to_align
from trinat.segmentation.longitudinal.space import (
    ParticipantSpace,
    heads_of,
    participant_space,
)
from trinat.segmentation.metrics import overlap
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_labels
from trinat.segmentation.space.views import reoriented

__all__ = ["Agreement", "LaidMap", "TwoScans", "agreement", "lay", "two_scans"]


@dataclass(frozen=True, eq=False)
class TwoScans:
    """Two scans of one head in the space halfway between them.

    `likeness` is the correlation of the aligned scans, near 1 for one head. `turned_deg` is the
    angle by which the second head is rotated against the first, and `shifted_mm` the distance by
    which the middle of the scan moves. The second head is larger by `stretch_percent` along the
    axis with the largest difference; 0 means equal sizes.
    """

    space: ParticipantSpace
    likeness: float
    turned_deg: float
    shifted_mm: float
    stretch_percent: float


@dataclass(frozen=True, eq=False)
class LaidMap:
    """Label map that was resampled into the space halfway between two scans.

    `classes` (X, Y, Z) are class indices. `volumes_mm3` (K,) are the volumes of the classes before
    resampling.
    """

    classes: NDArray[np.uint8]
    volumes_mm3: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of two label maps, for each class, (K,).

    `dice` is NaN for a class in neither map. `difference_percent` is the second volume minus the
    first, in per cent of the mean of both; NaN if both are 0.
    """

    dice: NDArray[np.float64]
    difference_percent: NDArray[np.float64]


def two_scans(first: Volume, second: Volume) -> TwoScans:
    """Align two scans of one participant; return their common space, halfway between them.

    The result also has the correlation of the aligned scans, and by how much the second head is
    rotated, shifted and stretched. Raises EvaluationError if the scans do not show one head.
    """
    images = [image_to_align(first), image_to_align(second)]
    heads = heads_of(images)
    if len(heads) > 1:
        problem = "the two scans do not show one head"
        if any(head.is_mirrored for head in heads):
            problem = "left and right are exchanged in one of the two scans"
        raise EvaluationError(problem, remedy="check the participant of each scan")
    (head,) = heads
    matrix = head.alignments[1].matrix
    cosine = (np.trace(matrix[:3, :3]) - 1) / 2
    middle = images[0].grid.places((np.array(images[0].shape) - 1) / 2)
    shift = moved(middle, matrix) - middle
    return TwoScans(
        space=participant_space(images, head.alignments),
        likeness=head.alignments[1].likeness,
        turned_deg=float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
        shifted_mm=float(np.linalg.norm(shift)),
        stretch_percent=head.stretches_percent[1],
    )


def lay(
    labels: Volume, scheme: LabelScheme, space: ParticipantSpace, number: int
) -> LaidMap:
    """Resample the label map of one scan into the space of both scans.

    `labels` holds class indices of `scheme`. `number` says whose label map it is: 0 for the first
    scan, 1 for the second.
    """
    voxels = np.bincount(labels.data.ravel(), minlength=len(scheme))
    aligned = reoriented(labels, "RAS")
    to_space = GridMap.between(aligned.grid, space.in_scan(number))
    return LaidMap(
        resample_labels(aligned.data, to_space),
        overlap.volumes_mm3(voxels, labels.spacing_mm),
    )


def agreement(first: LaidMap, second: LaidMap) -> Agreement:
    """Compare two label maps in the same space."""
    joint = overlap.joint_histogram(
        first.classes, second.classes, len(first.volumes_mm3)
    )
    total_mm3 = first.volumes_mm3 + second.volumes_mm3
    difference_mm3 = second.volumes_mm3 - first.volumes_mm3
    percent = np.full(len(total_mm3), np.nan)
    np.divide(200 * difference_mm3, total_mm3, out=percent, where=total_mm3 > 0)
    return Agreement(overlap.dice(joint), percent)
