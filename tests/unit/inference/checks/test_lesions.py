"""Dark and bright places in a ball of white matter."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import (
    CORTEX,
    LEFT,
    LEFT_VENTRICLE,
    WHITE,
    ball,
    evidence,
)

from trinat.segmentation.inference.checks.lesions import check_lesions, find_regions
from trinat.segmentation.inference.checks.limits import LIMITS

SHAPE = (64, 64, 64)
BRAIN = np.where(ball(SHAPE, 28), CORTEX, 0).astype(np.uint8)
BRAIN[ball(SHAPE, 24)] = WHITE
SOUND = np.array([0.0, 1.0, 0.7])[BRAIN]
BLOB = ball(SHAPE, 8)
# 4/3 pi 8³ mm³, in blocks of 2 mm.
BLOB_MM3 = pytest.approx(4 / 3 * np.pi * 512, rel=0.35)


def test_a_sound_brain_has_no_such_places() -> None:
    assert check_lesions(evidence(BRAIN, SOUND), LIMITS) == []


@pytest.mark.parametrize(
    ("value", "what"), [(0.3, "dark"), (1.6, "bright")], ids=["dark", "bright"]
)
def test_a_place_that_is_labelled_as_white_matter_is_found_and_named(
    value, what
) -> None:
    given = evidence(BRAIN, np.where(BLOB, value, SOUND))
    assert find_regions(given)[what].mm3 == BLOB_MM3
    (finding,) = check_lesions(given, LIMITS)
    assert finding.reason.startswith(f"a {what} place of ")
    assert finding.structures[0] == "white"


@pytest.mark.parametrize("label", [0, CORTEX], ids=["background", "cortex"])
def test_fluid_that_is_labelled_as_none_is_found(label: int) -> None:
    found = np.where(BLOB, label, BRAIN).astype(np.uint8)
    given = evidence(found, np.where(BLOB, 0.2, SOUND))
    assert find_regions(given)["dark"].mm3 == BLOB_MM3


def test_a_ventricle_is_no_lesion() -> None:
    found = np.where(BLOB, LEFT_VENTRICLE, BRAIN).astype(np.uint8)
    assert check_lesions(evidence(found, np.where(BLOB, 0.2, SOUND)), LIMITS) == []


def test_shading_is_no_lesion() -> None:
    shading = np.exp(np.linspace(-0.5, 0.5, SHAPE[0]))[:, None, None]
    assert check_lesions(evidence(BRAIN, SOUND * shading), LIMITS) == []


def test_white_matter_without_any_brightness_is_compared_with_nothing() -> None:
    assert find_regions(evidence(BRAIN, np.where(BRAIN == WHITE, 0, SOUND))) == {}


def test_where_cortex_is_the_brighter_one_nothing_is_compared() -> None:
    given = evidence(BRAIN, np.where(BLOB, 0.3, np.array([0.0, 0.7, 1.0])[BRAIN]))
    assert find_regions(given) == {}


# As large relative to its white matter as a mass of 20 mm in a brain.
MASS = ball(SHAPE, 16)


def test_a_large_bright_mass_is_measured_against_what_is_beyond_its_edge() -> None:
    """It is labelled as white matter, so the mean around it is as bright as the mass."""
    given = evidence(BRAIN, np.where(MASS, 1.25, SOUND))
    (finding,) = check_lesions(given, LIMITS)
    assert finding.reason.startswith("a bright place of ")
    assert finding.structures[0] == "white"


def test_shading_without_an_edge_is_no_mass() -> None:
    shading = np.exp(np.linspace(-0.55, 0.55, SHAPE[0]))[:, None, None]
    assert find_regions(evidence(BRAIN, SOUND * shading))["bright"].mm3 == 0


@pytest.mark.parametrize(
    ("label", "name"), [(CORTEX, "cortex"), (WHITE, "white")], ids=["cortex", "white"]
)
def test_a_grey_mass_is_found_whatever_its_label(label: int, name: str) -> None:
    found = np.where(MASS, label, BRAIN).astype(np.uint8)
    (finding,) = check_lesions(evidence(found, np.where(MASS, 0.72, SOUND)), LIMITS)
    assert finding.reason.startswith("a grey place of ")
    assert name in finding.structures


def test_a_nucleus_that_is_as_grey_is_no_mass() -> None:
    found = np.where(MASS, LEFT, BRAIN).astype(np.uint8)
    given = evidence(found, np.where(MASS, 0.7, SOUND))
    assert find_regions(given)["grey"].mm3 == 0
