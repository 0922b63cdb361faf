"""Forecast of `trinat learn`: the expected gain, before any scan is segmented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.common.text import count
from trinat.pipelines.learn.corrected import Corrected
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.overlap import Counts, dice, joint_histogram

# Maximum number of scans whose imported label maps are read, at a second or two each: the forecast
# should take half a minute at most. All painted ones are read, since a structure may be corrected
# in a few of them only.
_MOST_IMPORTED = 10
# Painting a structure also moves the borders of its neighbours. Structures of which less than this
# share of voxels was changed count as such neighbours: a new model is not judged by them.
_CHANGED_SHARE = 0.02
# Factors gain this share of the size gap: 0.016 of 0.10 on the labelling challenge
# (docs/notes/learning.md).
_GAIN_OF_SIZE_GAP = 1 / 6


@dataclass(frozen=True)
class Agreement:
    """Agreement of the results with the corrections of the same scans.

    `scans` is the number of scans read. `changed` are the classes (indices) that are compared.
    `dice` is the mean Dice over these classes and scans. `size_gap` is the part of 1 - Dice that is
    due to structures being too large or too small over all scans together; factors that multiply
    the probability of each structure correct it in part.
    """

    scans: int
    changed: frozenset[int]
    dice: float
    size_gap: float

    def __str__(self) -> str:
        gain = _GAIN_OF_SIZE_GAP * self.size_gap
        return (
            f"mean Dice of results and corrections: {self.dice:.3f} ({count(self.scans, 'scan')} "
            f"read); expected gain: about {gain:.3f} from factors of structures, more from "
            f"training if all scans were corrected in the same way, {1 - self.dice:.3f} at most"
        )


def compare_with_results(
    corrected: Sequence[Corrected],
    scheme: LabelScheme,
    counted: Sequence[int],
    numbering: FoldingTable | None,
) -> Agreement | None:
    """Return the agreement of corrected label maps with the results that were corrected.

    `counted` are the classes (indices of `scheme`) to compare. If all corrections were painted in
    the viewer, structures of which only few voxels were changed are not compared. `numbering` maps
    the label numbers of imported label maps to FreeSurfer's; None if they have FreeSurfer's
    numbers; at most ten of them are read. Returns None if no label map can be read, or no class is
    in any of them.
    """
    is_painted = all(each.structures is not None for each in corrected)
    read = corrected
    if not is_painted and len(corrected) > _MOST_IMPORTED:
        # Evenly spaced over the study.
        places = np.linspace(0, len(corrected) - 1, _MOST_IMPORTED)
        read = [corrected[round(place)] for place in places]
    joints = []
    for each in read:
        if each.scan.labels is None:
            continue
        try:
            joints.append(_count_pairs(each, each.scan.labels, scheme, numbering))
        except (TrinatError, OSError):
            # Segmentation reads the label map again later, and reports the reason then.
            continue
    changed = set()
    for joint in joints:
        largest = np.maximum(joint.sum(0), joint.sum(1))
        share = 1 - joint.diagonal() / np.maximum(largest, 1)
        changed |= set(np.flatnonzero((largest > 0) & (share >= _CHANGED_SHARE)))
    partners = scheme.partner_permutation
    both_sides = changed | {int(partners[index]) for index in changed}
    compared = [index for index in counted if index > 0]
    if is_painted and both_sides & set(compared):
        compared = [index for index in compared if index in both_sides]
    scores = np.array([dice(joint)[compared] for joint in joints])
    known = np.isfinite(scores)
    if not known.any():
        return None
    return Agreement(
        scans=len(joints),
        changed=frozenset(compared),
        dice=float(np.mean(scores[known])),
        size_gap=_size_gap(joints, compared),
    )


def _count_pairs(
    corrected: Corrected,
    result: Path,
    scheme: LabelScheme,
    numbering: FoldingTable | None,
) -> Counts:
    """Count the voxels of a scan by their class in the correction and in the result, (K, K).

    `result` is the path of the label map before the correction; where a rater painted nothing, it
    counts as equal to the correction. K is the number of classes of `scheme`. `numbering` maps the
    label numbers of the correction to FreeSurfer's; None if they are FreeSurfer's.
    """
    labels = Volume.read(corrected.labels, labels=True)
    found, _ = on_grid_of(Volume.read(result, labels=True), labels)
    truth = scheme.from_freesurfer(
        labels.data,
        spacing_mm=labels.spacing_mm,
        fold=numbering,
        where=corrected.labels,
    )
    classes = scheme.from_freesurfer(
        found.data, spacing_mm=labels.spacing_mm, where=result
    )
    correction = corrected.scan.correction
    if corrected.structures is not None and correction is not None:
        # A later run may have replaced the result: only painted voxels differ by correction.
        classes = np.where(correction.changed(), classes, truth)
    return joint_histogram(truth, classes, len(scheme))


def _size_gap(joints: Sequence[Counts], compared: Sequence[int]) -> float:
    """Return the part of 1 - Dice that follows from wrong sizes of structures alone, 0 to 1.

    Two sets of a and b voxels have a Dice of at most 2 min(a, b) / (a + b). The gap of a class is 1
    minus this bound; the result is the mean over the classes in `compared`. `joints` has for each
    scan the numbers of voxels by corrected class and result class, (K, K); they are summed over the
    scans. Returns 0 if the corrections have no voxel of these classes.
    """
    summed = np.sum(joints, axis=0)
    true: NDArray[np.int64] = summed.sum(1)[compared]
    found: NDArray[np.int64] = summed.sum(0)[compared]
    gaps = np.abs(true - found) / np.maximum(true + found, 1)
    return float(gaps[true > 0].mean()) if (true > 0).any() else 0.0
