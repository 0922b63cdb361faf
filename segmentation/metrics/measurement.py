"""What was measured of one truth and one prediction, by structure and by group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.counted import ALL_STRUCTURES, members_of_groups
from trinat.segmentation.metrics.definitions import (
    METRICS,
    NOT_PREDICTED,
    OTHER_CSF,
)

# Structures with such a note are in no mean, and no scan lacks them.
_NEVER = (NOT_PREDICTED, OTHER_CSF)

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Measurement:
    """One number: `structure` is a label's name, or `group:<name>` for a mean over a group.

    `fs_id` is None for groups. `value` is NaN where it is undefined; `note` says then why, or which
    policy for absent structures gave the value.
    """

    structure: str
    fs_id: int | None
    metric: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True, eq=False)
class PairMeasurements:
    """The measurements of one prediction, by class of a scheme.

    `joint` (K, K) counts voxels by true and predicted class; it has no voxel of a rejected
    structure in the prediction. `values[metric]` has one number per class, (K,), NaN where
    undefined. `notes` (K,) says why: an `Absence`, or why the structure does not count; else it is
    empty. `without_confusions` are true classes of which nobody asks what they were labelled as.
    """

    scheme: LabelScheme
    joint: NDArray[np.int64]
    values: dict[str, Values]
    generalised_dice: float
    notes: tuple[str, ...]
    without_confusions: frozenset[int]
    voxel_mm3: float

    def rows(self) -> list[Measurement]:
        """Everything in long form: per structure, per group, confusions."""
        return [*self._structures(), *self._groups(), *self._confusions()]

    def _structures(self) -> Iterator[Measurement]:
        """Every metric of every structure; those on the midline have no side to swap."""
        for label in self.scheme.labels[1:]:
            note = self.notes[label.index]
            for metric, values in self.values.items():
                if metric == "side_swap" and label.partner is None:
                    continue
                value = float(values[label.index])
                unit = METRICS[metric].unit
                yield Measurement(label.name, label.fs_id, metric, value, unit, note)

    def _groups(self) -> Iterator[Measurement]:
        """Plain means over the structures of a group; the note counts what has no value."""
        for group, members in members_of_groups(self.scheme).items():
            predicted = [
                label for label in members if self.notes[label.index] not in _NEVER
            ]
            # Structures on the midline have no other side.
            paired = [label for label in predicted if label.partner is not None]
            for metric, values in self.values.items():
                labels = paired if metric == "side_swap" else predicted
                if not METRICS[metric].averaged or not labels:
                    continue
                classes = [label.index for label in labels]
                mean, note = _mean_of_known(values[classes])
                unit = METRICS[metric].unit
                yield Measurement(f"group:{group}", None, metric, mean, unit, note)
        every = f"group:{ALL_STRUCTURES}"
        yield Measurement(every, None, "generalised_dice", self.generalised_dice, "")

    def _confusions(self) -> Iterator[Measurement]:
        """What each true class was labelled as, in mm3; background is a class here."""
        for true, predicted in np.argwhere(self.joint):
            if true == predicted == 0 or true in self.without_confusions:
                continue
            label = self.scheme.labels[true]
            metric = f"labelled_as:{self.scheme.names[predicted]}"
            value = float(self.joint[true, predicted] * self.voxel_mm3)
            yield Measurement(label.name, label.fs_id, metric, value, "mm3")


def _mean_of_known(values: Values) -> tuple[float, str]:
    """Mean of the values that are defined, NaN if none is, and a note where some are not."""
    known = values[~np.isnan(values)]
    note = ""
    if len(known) < len(values):
        note = f"mean of {len(known)} of {len(values)}"
    if not len(known):
        return float("nan"), note
    return float(known.mean()), note
