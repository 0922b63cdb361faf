"""Slices that are lost, repeated or shifted against each other, in a ball of texture."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import WHITE, ball, evidence
from scipy import ndimage

from trinat.segmentation.inference.checks.brightness import check_continuity
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.findings import Finding
from trinat.segmentation.inference.checks.limits import LIMITS

SHAPE = (90, 90, 90)
BRAIN = ball(SHAPE, 36)


def texture() -> np.ndarray:
    """Return structures of some millimetres, like folds."""
    noise = np.random.default_rng(0).normal(size=SHAPE)
    smooth = ndimage.gaussian_filter(noise, 2.5)
    return np.where(BRAIN, 0.8 + 0.2 * smooth / smooth.std(), 0)


def seen(image: np.ndarray, brain: np.ndarray = BRAIN) -> Evidence:
    return evidence(np.where(brain, WHITE, 0).astype(np.uint8), image)


def findings(image: np.ndarray, brain: np.ndarray = BRAIN) -> list[Finding]:
    return check_continuity(seen(image, brain), LIMITS)


def test_a_sound_scan_goes_on_also_with_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, SHAPE)
    assert findings(texture()) == []
    assert findings(texture() + noise) == []


@pytest.mark.parametrize("lost", [3, 8])
@pytest.mark.parametrize(
    ("axis", "view", "letter"),
    [(0, "sagittal", "x"), (1, "coronal", "y"), (2, "axial", "z")],
)
def test_slices_that_are_lost_are_found_where_they_were(
    axis: int, view: str, letter: str, lost: int
) -> None:
    gone = np.s_[40 : 40 + lost]
    (finding,) = findings(
        np.delete(texture(), gone, axis), np.delete(BRAIN, gone, axis)
    )
    assert not finding.rejects
    # Between slices 39 and 40, rounded to the even one.
    assert finding.reason.startswith(f"{view} at {letter} = 40 mm, slices differ ")
    assert finding.reason.endswith(": slices lost or shifted?")


def test_halves_that_are_shifted_against_each_other_are_found() -> None:
    image = texture()
    brain = BRAIN.copy()
    image[:45] = np.roll(image[:45], 8, axis=2)
    brain[:45] = np.roll(brain[:45], 8, axis=2)
    (finding,) = findings(image, brain)
    assert finding.reason.startswith("sagittal at x = 44 mm")


def test_repeated_slices_are_found() -> None:
    image = texture()
    image[:, :, 40:43] = image[:, :, 40:41]
    reasons = [finding.reason for finding in findings(image)]
    assert "axial at z = 40 mm, slices do not differ: repeated slices?" in reasons


def test_where_there_is_no_brain_nothing_is_said() -> None:
    assert findings(texture(), np.zeros(SHAPE, bool)) == []
