"""Candidates for a new model, scored on held-out participants; settings for combining views."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from pydantic import JsonValue

from trinat.pipelines.models.scans_with_truth import ScanWithTruth
from trinat.segmentation.metrics.statistics import mean_interval
from trinat.segmentation.models.model_info import Fusion

# A smaller gain of mean Dice is not worth a change.
WORTHWHILE = 0.001
BEFORE = "as it was"
_MOST_FOLDS = 5

Data = TypeVar("Data")


@dataclass(frozen=True)
class Scores:
    """Dice of each scan with a model as it was, and with the candidates for a new model.

    `participants` and `scans` have the participant and the name of each scan. `dice` maps the name
    of each candidate to the mean Dice over structures of each scan. The first candidate (`BEFORE`)
    is the model as it was; candidates that change more come later. Each scan is scored with
    candidates that were fitted to other participants. With a single participant, `held_out` is
    False: candidates are scored on the scans that they were fitted to.
    """

    participants: tuple[str, ...]
    scans: tuple[str, ...]
    dice: Mapping[str, Sequence[float]]
    held_out: bool = True

    @property
    def chosen(self) -> str:
        """Name of the candidate with the best mean Dice, preferring small changes.

        A candidate that changes more is chosen only if its mean Dice is higher by `WORTHWHILE`.
        """
        chosen = BEFORE
        for name in self.dice:
            if np.mean(self.dice[name]) - np.mean(self.dice[chosen]) >= WORTHWHILE:
                chosen = name
        return chosen

    def gain(self, candidate: str) -> float:
        """Return the difference of the mean Dice over all scans: candidate minus `BEFORE`."""
        return float(np.mean(self.dice[candidate])) - float(np.mean(self.dice[BEFORE]))

    def mean_dice(self, candidate: str) -> dict[str, JsonValue]:
        """Return the mean Dice over all scans, before and with a candidate.

        Keys are `mean_dice_before` and `mean_dice_after`; they are written to `metrics` in
        model.yaml.
        """
        return {
            "mean_dice_before": round(float(np.mean(self.dice[BEFORE])), 4),
            "mean_dice_after": round(float(np.mean(self.dice[candidate])), 4),
        }

    def describe(self, candidate: str) -> str:
        """Return a line with the mean Dice before and with a candidate, and the gain's interval."""
        whom = "participants that it has not seen"
        if not self.held_out:
            whom = "the very participant that it was fitted to"
        before = np.asarray(self.dice[BEFORE])
        after = np.asarray(self.dice[candidate])
        line = (
            f"mean Dice of {whom} {before.mean():.3f} before, {after.mean():.3f} after"
        )
        gains = pd.Series(after - before).groupby(list(self.participants)).mean()
        if len(gains) < 2:
            return f"{line} (of one participant there is no interval)"
        low, high = mean_interval(gains.to_numpy()[:, None])[:, 0]
        return (
            f"{line}; gain {gains.mean():+.3f}, 95 % interval {low:+.3f} to {high:+.3f}, "
            f"{len(gains)} participants"
        )

    def table(self) -> list[str]:
        """Return the lines of a table: the Dice of each scan, with a column for each candidate."""
        judged = "fitted to this very participant"
        if self.held_out:
            judged = "fitted without its participant"
        table = pd.DataFrame(dict(self.dice), list(self.scans))
        table = table.rename_axis(columns="scan")
        table.loc["mean"] = table.mean()
        rows = table.to_string(float_format="{:.4f}".format).splitlines()
        return [f"Mean Dice over structures of each scan, {judged}:", *rows]


@dataclass(frozen=True, kw_only=True)
class FittedFusion(Scores):
    """Candidate settings for combining the views of a model, with their scores.

    `fusions` has the settings of each candidate, fitted to all scans; those of `BEFORE` are the
    model's own.
    """

    fusions: Mapping[str, Fusion]

    def figures(self, candidate: str) -> dict[str, JsonValue]:
        """Return the number of scans, and their mean Dice before and with a candidate."""
        return {"scans": len(self.scans), **self.mean_dice(candidate)}


def fit_held_out(
    scans: Sequence[ScanWithTruth],
    data: Sequence[Data],
    own: Fusion,
    fit: Callable[[Sequence[Data]], Mapping[str, Fusion]],
    score: Callable[[Data, Fusion], float],
) -> FittedFusion:
    """Fit candidate settings to all scans; score each scan with fits to other participants.

    Parameters
    ----------
    scans
        Scans and their label maps, with the participant of each.
    data
        Data of each scan, passed to `fit` and `score`.
    own
        The model's own settings for combining its views.
    fit
        Function that fits all candidates to the data of some scans, and returns them by name.
    score
        Function that returns the mean Dice over structures of a scan with a candidate.
    """
    participants = [scan.participant for scan in scans]
    fold_of_participant = folds_of(participants)
    fold_of = [fold_of_participant[participant] for participant in participants]
    fitted_to_all = fit(data)
    fitted_without = {}
    for fold in set(fold_of):
        others = [
            of_scan
            for of_scan, own_fold in zip(data, fold_of, strict=True)
            if own_fold != fold
        ]
        # A single participant has no others.
        fitted_without[fold] = fit(others) if others else fitted_to_all
    dice: dict[str, list[float]] = {name: [] for name in (BEFORE, *fitted_to_all)}
    for of_scan, fold in zip(data, fold_of, strict=True):
        dice[BEFORE].append(score(of_scan, own))
        for name, fusion in fitted_without[fold].items():
            dice[name].append(score(of_scan, fusion))
    return FittedFusion(
        participants=tuple(participants),
        scans=tuple(scan.title for scan in scans),
        dice=dice,
        fusions={BEFORE: own, **fitted_to_all},
        held_out=len(fitted_without) > 1,
    )


def folds_of(participants: Collection[str]) -> dict[str, int]:
    """Assign participants to at most five folds; return the number of each participant's fold."""
    different = sorted(set(participants))
    folds = min(len(different), _MOST_FOLDS)
    return {participant: number % folds for number, participant in enumerate(different)}
