"""Fits are scored on held-out participants, and a candidate that changes less is preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from trinat.pipelines.models.held_out import BEFORE, Scores, fit_held_out
from trinat.pipelines.models.scans_with_truth import ScanWithTruth
from trinat.segmentation.models.model_info import Fusion


def scan_of(participant: str) -> ScanWithTruth:
    path = Path(f"{participant}.nii")
    return ScanWithTruth(participant, participant, path, path)


def fit(scans: Sequence[float]) -> Mapping[str, Fusion]:
    """Fit the odds of CSF to the largest of some numbers."""
    return {"largest": Fusion(csf_odds=max(scans))}


def score(scan: float, fusion: Fusion) -> float:
    return scan + fusion.csf_odds


def test_each_participant_is_scored_with_a_fit_to_the_others() -> None:
    scans = [scan_of(participant) for participant in "aab"]
    found = fit_held_out(scans, [1.0, 2.0, 5.0], Fusion(), fit, score)
    assert found.held_out
    assert found.dice[BEFORE] == [2, 3, 6]
    # Both scans of the first participant use 5, the scan of the second uses 2.
    assert found.dice["largest"] == [6, 7, 7]
    # The result is fitted to all scans.
    assert found.fusions["largest"].csf_odds == 5
    assert found.figures("largest") == {
        "scans": 3,
        "mean_dice_before": round(11 / 3, 4),
        "mean_dice_after": round(20 / 3, 4),
    }


def test_a_single_participant_is_scored_with_a_fit_to_itself() -> None:
    found = fit_held_out([scan_of("a"), scan_of("a")], [1.0, 2.0], Fusion(), fit, score)
    assert not found.held_out
    assert found.dice["largest"] == [3, 4]


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        # Each candidate must gain 0.001 over one that changes less.
        ((0.8, 0.8005, 0.8006, 0.8007), BEFORE),
        ((0.8, 0.82, 0.8205, 0.8205), "factors"),
        ((0.8, 0.82, 0.83, 0.8305), "averaged"),
        ((0.8, 0.82, 0.81, 0.83), "trained"),
    ],
)
def test_what_changes_less_is_taken_unless_more_is_gained(
    scores: tuple[float, ...], chosen: str
) -> None:
    names = (BEFORE, "factors", "averaged", "trained")
    # The mean over scans decides.
    of_scans = {
        name: (score - 0.1, score + 0.1)
        for name, score in zip(names, scores, strict=True)
    }
    assert Scores(("a", "b"), ("1", "2"), of_scans).chosen == chosen
