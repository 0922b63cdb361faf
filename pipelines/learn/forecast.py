"""Forecast of a learning: what it can gain, and how long it takes, before anything is segmented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.common.text import count
from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.learn.corrected import Corrected
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.learn.training import recipe_changes
from trinat.pipelines.train.foresight import expected_seconds
from trinat.pipelines.train.from_python import as_overrides
from trinat.pipelines.train.run import find_device, plan_jobs, read_recipe
from trinat.segmentation.errors import TrinatError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.overlap import Counts, dice, joint_histogram
from trinat.segmentation.models.checkpoint import Model

# Label maps are read at a second or two a scan, and the forecast is to be there in half a minute.
_MOST_READ = 10
# A painted correction moves the borders of its neighbours, too. A structure of which less than
# this share was changed is a neighbour: a new model is not judged by it.
_CHANGED_SHARE = 0.02
# Factors gain this share of the size gap: 0.016 of 0.10 on the labelling challenge
# (docs/notes/learning.md).
_GAIN_OF_SIZE_GAP = 1 / 6
# Models that are judged after a training, beside the one before: averaged and trained.
_CANDIDATES = 2


@dataclass(frozen=True)
class Agreement:
    """Agreement of the results with the corrections.

    `changed` are the classes of which a correction changed a substantial share. `dice` is the mean
    Dice over the compared classes, `size_gap` the part of the missing Dice that follows from sizes
    that differ in the same way in all scans, which factors of structures mend in part.
    """

    scans: int
    changed: frozenset[int]
    dice: float
    size_gap: float

    def __str__(self) -> str:
        gain = _GAIN_OF_SIZE_GAP * self.size_gap
        return (
            f"the results agree with the corrections by a mean Dice of {self.dice:.3f} "
            f"({count(self.scans, 'scan')} read): expect factors of structures to gain about "
            f"{gain:.3f}; training gains more where the labels differ alike in all scans, at most "
            f"{1 - self.dice:.3f}"
        )


def compare_with_results(
    corrected: Sequence[Corrected],
    scheme: LabelScheme,
    counted: Sequence[int],
    mapping: Mappings,
) -> Agreement | None:
    """Compare corrections with the results they correct; None if none can be compared.

    `counted` are the classes that the corrections speak of. Of painted corrections only the
    structures that were changed substantially are compared, with their other sides.
    """
    joints = []
    for each in _spread(corrected, _MOST_READ):
        if each.item.labels is None:
            continue
        try:
            joints.append(_count_pairs(each, each.item.labels, scheme, mapping))
        except (TrinatError, OSError):
            # Segmenting reads it again, and reports the reason.
            continue
    changed = set()
    for joint in joints:
        largest = np.maximum(joint.sum(0), joint.sum(1))
        share = 1 - joint.diagonal() / np.maximum(largest, 1)
        changed |= set(np.flatnonzero((largest > 0) & (share >= _CHANGED_SHARE)))
    partners = scheme.partner_permutation
    both_sides = changed | {int(partners[index]) for index in changed}
    compared = [index for index in counted if index > 0]
    is_painted = all(each.structures is not None for each in corrected)
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
    corrected: Corrected, result: Path, scheme: LabelScheme, mapping: Mappings
) -> Counts:
    """Count the voxels of a scan by corrected and resulting class, (K, K)."""
    labels = Volume.read(corrected.labels, labels=True)
    found, _ = on_grid_of(Volume.read(result, labels=True), labels)
    truth = scheme.from_freesurfer(
        labels.data,
        spacing_mm=labels.spacing_mm,
        extra=mapping.truth,
        fold=mapping.truth_numbering,
        where=corrected.labels,
    )
    classes = scheme.from_freesurfer(
        found.data, spacing_mm=labels.spacing_mm, where=result
    )
    return joint_histogram(truth, classes, len(scheme))


def _size_gap(joints: Sequence[Counts], compared: Sequence[int]) -> float:
    """Return the mean Dice that classes lose at least, as their sizes differ over all scans.

    Sets of a and b voxels have a Dice of 2 min(a, b) / (a + b) at most.
    """
    summed = np.sum(joints, axis=0)
    true: NDArray[np.int64] = summed.sum(1)[compared]
    found: NDArray[np.int64] = summed.sum(0)[compared]
    gaps = np.abs(true - found) / np.maximum(true + found, 1)
    return float(gaps[true > 0].mean()) if (true > 0).any() else 0.0


def _spread(corrected: Sequence[Corrected], most: int) -> list[Corrected]:
    """Choose at most so many, evenly over the list."""
    places = np.linspace(0, len(corrected) - 1, min(most, len(corrected)))
    return [corrected[round(place)] for place in places]


def learning_seconds(
    corrected: Sequence[Corrected],
    model: Model,
    settings: LearnSettings,
    *,
    trains: bool,
) -> float | None:
    """Estimate the seconds that a learning takes; None where nothing is known.

    Scans take as long as the ledger says they took. A training on a processor takes the time of
    its slices, measured here; on a GPU it is not known before its first steps.
    """
    timed = [
        sum(each.item.entry.timings_s.values())
        for each in corrected
        if each.item.entry.timings_s
    ]
    if not timed:
        return None
    scan_s = mean(timed)
    seconds = len(corrected) * scan_s
    if not trains:
        return seconds
    # About every fifth scan is left out, and judges each candidate.
    judged = max(1, len(corrected) // 5)
    seconds += _CANDIDATES * judged * scan_s
    if settings.seconds is not None:
        return seconds + settings.seconds
    if find_device(settings.device).type != "cpu":
        return None
    changes = recipe_changes(corrected, model, settings)
    recipe = read_recipe(settings.recipe, as_overrides(changes))
    views = [view for view in recipe.views if view in model.networks]
    jobs = plan_jobs(recipe, views)
    if any(job.stage.data.epoch_slices is None for job in jobs):
        return None
    return seconds + expected_seconds(recipe, jobs, processes=1)
