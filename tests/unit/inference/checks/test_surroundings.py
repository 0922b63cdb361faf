"""The layer just outside the brain: dark fluid, or cortex without a label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.evidence import CORTEX, WHITE, evidence

from trinat.segmentation.inference.checks.anatomy import (
    check_surroundings,
    share_like_cortex,
)
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.inference.quality import grade, limits_of
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.zoo import find_model


def brain(brightness_outside: float, columns: int = 40) -> Evidence:
    """Return a cube of 20 voxels with cortex at 0.7 around white matter.

    The surroundings have one brightness in the first `columns` planes of the head.
    """
    labels = np.zeros((40, 40, 40), np.uint8)
    labels[10:30, 10:30, 10:30] = CORTEX
    labels[14:26, 14:26, 14:26] = WHITE
    image = np.array([0.0, 1.0, 0.7])[labels]
    outside = labels == 0
    outside[columns:] = False
    image[outside] = brightness_outside
    found: Evidence = evidence(labels, image)
    return found


@pytest.mark.parametrize(
    ("brightness", "share"),
    [(0.0, 0.0), (0.2, 0.0), (0.55, 0.0), (0.6, 1.0), (0.9, 1.0), (0.95, 0.0)],
)
def test_cortex_is_between_0_8_and_1_3_of_its_median(
    brightness: float, share: float
) -> None:
    assert share_like_cortex(brain(brightness)) == share


def test_the_second_layer_counts_alone() -> None:
    found = brain(0.7)
    # The first layer is dark, and so is everything beyond the second.
    image = found.image.data.copy()
    around = np.zeros(image.shape, bool)
    around[8:32, 8:32, 8:32] = True
    image[~around] = 0
    around[9:31, 9:31, 9:31] = False
    image[(found.indices.data == 0) & ~around] = 0
    seen = replace(found, image=replace(found.image, data=image))
    assert share_like_cortex(seen) == 1


def test_a_part_is_a_share() -> None:
    """The layer is a shell of 24 voxels around one of 22: of 24 planes the first 12 are half."""
    assert share_like_cortex(brain(0.7, columns=20)) == pytest.approx(0.5)


def test_much_like_cortex_is_looked_at_and_never_rejected() -> None:
    assert check_surroundings(brain(0.2), LIMITS) == []
    (finding,) = check_surroundings(brain(0.7), LIMITS)
    assert not finding.rejects
    assert finding.reason == (
        "100% of what is just outside the brain is as bright as cortex: cortex missing?"
    )
    assert finding.reason in grade(brain(0.7)).reasons


def test_without_cortex_there_is_no_finding() -> None:
    found = evidence(np.zeros((8, 8, 8), np.uint8))
    assert share_like_cortex(found) is None
    assert check_surroundings(found, LIMITS) == []


def test_fluid_may_be_as_bright_as_cortex_for_a_model_for_any_contrast() -> None:
    limits = limits_of(read_info(find_model("any")))
    assert check_surroundings(brain(0.7), limits) == []
