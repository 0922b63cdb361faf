"""Tissue separate from the brain: how much of it counts."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import CORTEX, LEFT, LEFT_VENTRICLE, WHITE, evidence

from trinat.segmentation.inference.checks.anatomy import check_pieces, find_apart
from trinat.segmentation.inference.checks.limits import LIMITS


def brain() -> np.ndarray:
    """Return white matter of 64,000 mm³ in one corner of the head."""
    labels = np.zeros((80, 80, 80), np.uint8)
    labels[:40, :40, :40] = WHITE
    return labels


def test_a_brain_in_one_piece_has_no_finding() -> None:
    labels = brain()
    labels[40, :40, :40] = CORTEX
    assert not find_apart(evidence(labels)).any()
    assert check_pieces(evidence(labels), LIMITS) == []


def test_without_tissue_there_is_no_finding() -> None:
    assert check_pieces(evidence(np.zeros((8, 8, 8), np.uint8)), LIMITS) == []


def test_what_lies_apart_is_counted_by_structure() -> None:
    labels = brain()
    # Voxels that share only an edge are not connected, so this piece is separate.
    labels[40:45, 40:45, :20] = CORTEX
    labels[60:65, 60:65, 60:62] = LEFT
    apart = find_apart(evidence(labels))
    assert apart[CORTEX] == 500
    assert apart[LEFT] == 50
    assert apart.sum() == 550


def test_fluid_apart_from_the_brain_does_not_count() -> None:
    labels = brain()
    labels[60:70, 60:70, 60:70] = LEFT_VENTRICLE
    assert check_pieces(evidence(labels), LIMITS) == []


@pytest.mark.parametrize(
    ("depth", "rejects"), [(5, None), (6, False), (40, False), (201, True)]
)
def test_specks_pass_more_is_looked_at_and_much_is_rejected(
    depth: int, rejects: bool | None
) -> None:
    """Each layer has 100 mm³: the limits are 0.5 and 20 ml."""
    labels = np.zeros((80, 80, 210), np.uint8)
    labels[:40, :40, :40] = WHITE
    labels[60:70, 60:70, :depth] = CORTEX
    found = check_pieces(evidence(labels), LIMITS)
    assert [finding.rejects for finding in found] == (
        [] if rejects is None else [rejects]
    )


def test_the_reason_says_how_much_of_what() -> None:
    labels = brain()
    labels[60:70, 60:70, 60:70] = CORTEX
    labels[60:64, 60:64, 70] = LEFT
    (finding,) = check_pieces(evidence(labels), LIMITS)
    assert finding.reason == "1.0 ml of tissue lie apart from the brain: cortex"
    assert finding.structures == ("cortex",)
