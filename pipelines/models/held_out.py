"""Candidate settings for combining a model's views, fitted and scored on held-out participants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from pydantic import JsonValue

from trinat.pipelines.study.pairing import Pair
from trinat.segmentation.models.model_info import Fusion

# A smaller gain of mean Dice is not worth a change.
WORTHWHILE = 0.001
BEFORE = "as it was"
_MOST_FOLDS = 5

Scan = TypeVar("Scan")


@dataclass(frozen=True)
class FittedFusion:
    """Candidate settings for combining the views of a model, with the Dice of each scan.

    `participants` and `scans` have the participant and the name of each scan. Keys of `dice` and
    `fusions` are the names of candidates. The first candidate (`BEFORE`) has the model's own
    settings; candidates that change more come later. `fusions` were fitted to all scans. `dice` has
    the mean Dice over structures of each scan, measured with fits to the scans of other
    participants. With a single participant, `held_out` is False: the same scans are used for both.
    """

    participants: tuple[str, ...]
    scans: tuple[str, ...]
    dice: Mapping[str, Sequence[float]]
    fusions: Mapping[str, Fusion]
    held_out: bool

    @property
    def chosen(self) -> str:
        """Name of the candidate with the best mean Dice; see `choose`."""
        return choose(self.dice)

    def figures(self, candidate: str) -> dict[str, JsonValue]:
        """Return the number of scans, and their mean Dice before and with a candidate.

        Keys are `scans`, `mean_dice_before` and `mean_dice_after`; they are written to `metrics` in
        model.yaml.
        """
        return {
            "scans": len(self.scans),
            "mean_dice_before": round(float(np.mean(self.dice[BEFORE])), 4),
            "mean_dice_after": round(float(np.mean(self.dice[candidate])), 4),
        }

    def table(self) -> list[str]:
        """Return the lines of a table: the Dice of each scan, with a column for each candidate."""
        return dice_lines(self.dice, self.scans, held_out=self.held_out)


def fit_held_out(
    pairs: Sequence[Pair],
    scans: Sequence[Scan],
    own: Fusion,
    fit: Callable[[Sequence[Scan]], Mapping[str, Fusion]],
    score: Callable[[Scan, Fusion], float],
) -> FittedFusion:
    """Fit candidate settings to all scans; score each scan with fits to other participants.

    Parameters
    ----------
    pairs
        Scans and their label maps, with the participant of each.
    scans
        Data of each pair's scan, passed to `fit` and `score`.
    own
        The model's own settings for combining its views.
    fit
        Function that fits all candidates to some scans, and returns them by name.
    score
        Function that returns the mean Dice over structures of a scan with a candidate.
    """
    participants = [pair.truth.participant for pair in pairs]
    fold_of_participant = folds_of(participants)
    fold_of = [fold_of_participant[participant] for participant in participants]
    fitted_to_all = fit(scans)
    fitted_without = {}
    for fold in set(fold_of):
        others = [
            scan
            for scan, of_scan in zip(scans, fold_of, strict=True)
            if of_scan != fold
        ]
        # A single participant has no others.
        fitted_without[fold] = fit(others) if others else fitted_to_all
    dice: dict[str, list[float]] = {name: [] for name in (BEFORE, *fitted_to_all)}
    for scan, fold in zip(scans, fold_of, strict=True):
        dice[BEFORE].append(score(scan, own))
        for name, fusion in fitted_without[fold].items():
            dice[name].append(score(scan, fusion))
    return FittedFusion(
        participants=tuple(participants),
        scans=tuple(name_of(pair) for pair in pairs),
        dice=dice,
        fusions={BEFORE: own, **fitted_to_all},
        held_out=len(fitted_without) > 1,
    )


def choose(dice: Mapping[str, Sequence[float]]) -> str:
    """Return the name of the candidate with the best mean Dice, preferring small changes.

    `dice` maps the name of each candidate to the Dice of each scan. Candidates that change more
    come later; one of these is chosen only if its mean Dice is higher by `WORTHWHILE`.
    """
    names = list(dice)
    chosen = names[0]
    for name in names[1:]:
        if np.mean(dice[name]) - np.mean(dice[chosen]) >= WORTHWHILE:
            chosen = name
    return chosen


def folds_of(participants: Collection[str]) -> dict[str, int]:
    """Assign participants to at most five folds; return the number of each participant's fold."""
    different = sorted(set(participants))
    folds = min(len(different), _MOST_FOLDS)
    return {participant: number % folds for number, participant in enumerate(different)}


def dice_lines(
    dice: Mapping[str, Sequence[float]], scans: Sequence[str], *, held_out: bool
) -> list[str]:
    """Return the lines of a text table: the Dice of each scan, with a column for each candidate.

    `dice` maps the name of each candidate to the Dice of each of `scans`. With `held_out`, the
    heading says that candidates were fitted without the scan's participant.
    """
    judged = "fitted to this very participant"
    if held_out:
        judged = "fitted without its participant"
    table = pd.DataFrame(dict(dice), list(scans)).rename_axis(columns="scan")
    table.loc["mean"] = table.mean()
    rows = table.to_string(float_format="{:.4f}".format).splitlines()
    return [f"Mean Dice over structures of each scan, {judged}:", *rows]


def name_of(pair: Pair) -> str:
    """Return the name of a pair's scan in tables: participant and session."""
    return f"{pair.truth.participant} {pair.truth.session}".strip()
