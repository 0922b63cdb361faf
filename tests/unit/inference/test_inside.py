"""Conditions for measuring the space inside the skull, on a ball of brain in a ball of fluid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.evidence import ball

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.field import check_field_of_view, find_cut
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.inference.measuring import (
    skull_shares,
    why_not_measured,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
SHAPE = (80, 80, 80)
INSIDE = ball(SHAPE, 25)
CSF = SCHEME.names.index("CSF")


def head(skull: float = 1.0) -> Evidence:
    """Return a brain of 20 mm in fluid of 25 mm, in a head of brightness `skull` outside."""
    labels = np.where(INSIDE, CSF, 0).astype(np.uint8)
    labels[ball(SHAPE, 20)] = 1
    image = np.where(INSIDE, 0.5, skull).astype(np.float32)
    affine = np.eye(4)
    return Evidence(
        Volume(image, affine),
        Volume(labels, affine),
        Grid(SHAPE, affine),
        SCHEME,
        {"Left-Cerebral-White-Matter": 1.0, "CSF": 1.0},
        None,
        "intracranial",
    )


def with_image(image: np.ndarray) -> Evidence:
    return replace(head(), image=Volume(image.astype(np.float32), np.eye(4)))


def test_a_whole_head_can_be_measured() -> None:
    np.testing.assert_array_equal(skull_shares(head(), INSIDE), 1)
    assert why_not_measured(head(), INSIDE, LIMITS) == ""


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.05])
def test_a_stripped_scan_cannot_whatever_its_background_is(noise: float) -> None:
    drawn = np.random.default_rng(0).rayleigh(noise, SHAPE)
    stripped = with_image(np.where(INSIDE, 0.5, drawn))
    assert skull_shares(stripped, INSIDE).max() < 0.02
    assert why_not_measured(stripped, INSIDE, LIMITS) == "the scan shows no skull"


def test_neither_can_a_scan_that_was_stripped_on_one_side() -> None:
    image = head().image.data.copy()
    image[:30][~INSIDE[:30]] = 0
    why = why_not_measured(with_image(image), INSIDE, LIMITS)
    assert why == "the scan does not show the skull on all sides"


def test_neither_can_one_that_was_stripped_with_a_margin() -> None:
    image = np.where(ball(SHAPE, 28), 0.5, 0)
    why = why_not_measured(with_image(image), INSIDE, LIMITS)
    assert why == "the scan shows no skull"


def test_neither_can_one_that_lost_slices() -> None:
    # Each slice is brighter than the one below it.
    sound = head().image.data + 0.004 * np.arange(80)
    assert why_not_measured(with_image(sound), INSIDE, LIMITS) == ""
    lost = np.concatenate(
        [sound[:, :, :40], sound[:, :, 47:], sound[:, :, -7:]], axis=2
    )
    why = why_not_measured(with_image(lost), INSIDE, LIMITS)
    assert why == "slices are lost, repeated or shifted"


def scalp_over_skull() -> np.ndarray:
    """Return fluid, dark bone of 4 mm, and a scalp that is 3 mm thick in front and 11 mm behind."""
    image = np.where(np.roll(ball(SHAPE, 36), -4, axis=1), 1.0, 0.0)
    image[ball(SHAPE, 29)] = 0
    return np.where(INSIDE, 0.5, image)


def test_a_scalp_ends_here_and_there() -> None:
    assert why_not_measured(with_image(scalp_over_skull()), INSIDE, LIMITS) == ""


@pytest.mark.parametrize("margin_mm", [2, 4, 6, 7, 8])
def test_neither_can_one_that_was_stripped_with_some_scalp(margin_mm: int) -> None:
    image = np.where(ball(SHAPE, 25 + margin_mm), scalp_over_skull(), 0)
    why = why_not_measured(with_image(image), INSIDE, LIMITS)
    assert why in (
        "the scan shows no skull",
        "the scan does not show the skull on all sides",
        "the tissue around the brain ends at a mask, not at a scalp",
    )
    # Some of the scalp is bright.
    has_scalp = skull_shares(with_image(image), INSIDE).min() > LIMITS.skull
    assert has_scalp == (margin_mm >= 6)


def test_fluid_alone_is_no_brain() -> None:
    fluid = np.where(INSIDE, CSF, 0).astype(np.uint8)
    found = replace(head(), indices=Volume(fluid, np.eye(4)))
    assert why_not_measured(found, INSIDE, LIMITS) == "no brain was found"


def test_a_defaced_head_can_be_measured() -> None:
    image = head().image.data.copy()
    image[:, 55:, :35] = 0  # in front, below the middle
    assert why_not_measured(with_image(image), INSIDE, LIMITS) == ""


@pytest.mark.parametrize("level", [0.0, 0.001, 0.05])
def test_a_top_that_is_missing_is_one_in_the_scans_own_array(level: float) -> None:
    gone = np.zeros(SHAPE, bool)
    gone[:, :, 55:] = True
    image = np.where(gone, level, head().image.data)
    labels = np.where(gone, 0, head().indices.data).astype(np.uint8)
    cut = replace(with_image(image), indices=Volume(labels, np.eye(4)))
    why = why_not_measured(cut, labels > 0, LIMITS)
    assert why == (
        "the field of view ends inside the skull, in CSF, Left-Cerebral-White-Matter"
    )
    assert [finding.rejects for finding in check_field_of_view(cut, LIMITS)] == [False]


def test_neither_can_a_scan_that_ends_inside_the_skull() -> None:
    # Fluid and brain reach from 14.5 to 64.5.
    cut = replace(head(), scan=Grid((80, 80, 55), np.eye(4)))
    labels = cut.indices.data.copy()
    labels[:, :, 55:] = 0
    cut = replace(cut, indices=Volume(labels, np.eye(4)))
    why = why_not_measured(cut, labels > 0, LIMITS)
    assert why == (
        "the field of view ends inside the skull, in CSF, Left-Cerebral-White-Matter"
    )


@pytest.mark.parametrize(
    "changes", [{"csf": "region"}, {"volumes_mm3": {"Brain-Stem": 1.0}}]
)
def test_a_model_without_all_fluid_never_measures_it(
    changes: dict[str, object],
) -> None:
    without = replace(head(), **changes)  # type: ignore[arg-type]
    why = why_not_measured(without, INSIDE, LIMITS)
    assert why == "the model does not find the fluid around the brain"


def test_a_stripped_scan_may_end_in_fluid_as_it_likes() -> None:
    cut = replace(head(skull=0.0), scan=Grid((80, 80, 61), np.eye(4)))
    labels = cut.indices.data.copy()
    # Above the brain, which ends at 59.5.
    labels[:, :, 61:] = 0
    cut = replace(cut, indices=Volume(labels, np.eye(4)))
    assert find_cut(cut, with_fluid=True)[0] > LIMITS.cut_mm2[0]
    assert check_field_of_view(cut, LIMITS) == []


def test_nothing_inside_has_no_volume() -> None:
    assert (
        why_not_measured(head(), np.zeros(SHAPE, bool), LIMITS) == "no brain was found"
    )
