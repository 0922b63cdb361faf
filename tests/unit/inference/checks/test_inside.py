"""When the space inside the skull can be measured, on a ball of brain in a ball of fluid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.evidence import ball

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.evidence import Evidence
from trinat.segmentation.inference.checks.field import check_field_of_view, find_cut
from trinat.segmentation.inference.checks.inside import (
    empty_share_outside,
    why_not_measured,
)
from trinat.segmentation.inference.checks.limits import LIMITS
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

SCHEME = load_scheme("quicknat33")
SHAPE = (80, 80, 80)
INSIDE = ball(SHAPE, 25)
CSF = SCHEME.names.index("CSF")


def head(skull: float = 1.0) -> Evidence:
    """A brain of 20 mm in fluid of 25 mm, in a head that is as bright as `skull` outside."""
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


def test_a_whole_head_can_be_measured() -> None:
    assert empty_share_outside(head(), INSIDE) == 0
    assert why_not_measured(head(), INSIDE, LIMITS) == ""


def test_a_stripped_scan_cannot() -> None:
    assert empty_share_outside(head(skull=0.0), INSIDE) == 1
    why = why_not_measured(head(skull=0.0), INSIDE, LIMITS)
    assert why == "the scan shows no skull"


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
