"""Padding a scan, or cropping it, changes no label within it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.placed import affine_of
from hypothesis import given, settings
from hypothesis import strategies as st

from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.conform import (
    ConformPlan,
    restore,
    restore_probabilities,
)

WORKING = Grid((32, 32, 32), np.diag([1.0, 1, 1, 1]))
SHAPE = (21, 18, 23)
# Spacing in mm and rotation in degrees: voxels that halve those of the working grid have most
# ties.
SCANS = {
    "halves": ((0.5, 0.5, 0.5), (0.0, 0.0, 0.0)),
    "double": ((2.0, 2.0, 2.0), (0.0, 0.0, 0.0)),
    "thick": ((1.0, 0.9, 2.5), (0.0, 0.0, 0.0)),
    "oblique": ((1.2, 0.8, 1.0), (14.0, -8.0, 5.0)),
}
WIDTHS = st.tuples(*[st.integers(0, 5)] * 6)


def plan_of(kind: str) -> ConformPlan:
    """Return a plan for a scan that begins within the labels, which extend beyond its end."""
    spacing, turn = SCANS[kind]
    affine = affine_of("RAS", spacing, SHAPE, turn)
    # The centre of the scan is that of the working grid.
    middle = affine[:3, :3] @ ((np.array(SHAPE) - 1) / 2)
    affine[:3, 3] = 15.5 - middle
    return ConformPlan(Grid(SHAPE, affine), (1, 1), WORKING)


def padded(
    plan: ConformPlan, before: tuple[int, ...], after: tuple[int, ...]
) -> ConformPlan:
    affine = plan.scan.affine.copy()
    affine[:3, 3] -= affine[:3, :3] @ before
    shape = tuple(np.add(np.add(plan.scan.shape, before), after).tolist())
    return ConformPlan(Grid(shape, affine), plan.codes, plan.working)


@pytest.mark.parametrize("kind", SCANS)
@settings(max_examples=10, deadline=None)
@given(widths=WIDTHS)
def test_labels_are_the_same_however_much_is_padded(
    kind: str, widths: tuple[int, ...]
) -> None:
    numbers = np.random.default_rng(2).integers(0, 4, WORKING.shape).astype(np.uint8)
    plan = plan_of(kind)
    before, after = widths[:3], widths[3:]
    wide = padded(plan, before, after)
    inner = tuple(
        slice(low, low + length) for low, length in zip(before, SHAPE, strict=True)
    )
    labels = Volume(numbers, WORKING.affine)
    wanted = restore(labels, plan, labels=True).data
    np.testing.assert_array_equal(
        restore(labels, wide, labels=True).data[inner], wanted
    )
    shares = np.stack([numbers == k for k in range(4)]).astype(np.float16)
    wanted = restore_probabilities(shares, plan).data
    np.testing.assert_array_equal(
        restore_probabilities(shares, wide).data[inner], wanted
    )
