"""Size of the brain and of voxels, and missing structures."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import evidence

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.checks.anatomy import (
    check_brain_size,
    check_missing,
    check_resolution,
    total_brain_mm3,
)
from trinat.segmentation.inference.checks.limits import LIMITS

NOTHING = np.zeros((4, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("litres", "rejects"),
    [(0.4, [True]), (0.7, [False]), (1.2, []), (2.0, [False]), (2.5, [True])],
)
def test_a_brain_is_neither_too_small_nor_too_large(litres, rejects) -> None:
    findings = check_brain_size(
        evidence(NOTHING, volumes_mm3={"white": litres * 1e6}), LIMITS
    )
    assert [finding.rejects for finding in findings] == rejects


def test_the_brain_is_tissue_without_ventricles() -> None:
    volumes = {"white": 3.0, "cortex": 4.0, "left ventricle": 5.0}
    assert total_brain_mm3(evidence(NOTHING).scheme, volumes) == 7


@pytest.mark.parametrize(
    ("slice_mm", "rejects"), [(1.5, []), (2.0, [False]), (7.0, [True])]
)
def test_thick_slices_are_looked_at(slice_mm, rejects) -> None:
    scan = Grid((4, 4, 4), np.diag([1.0, 1.0, slice_mm, 1.0]))
    findings = check_resolution(evidence(NOTHING, scan=scan), LIMITS)
    assert [finding.rejects for finding in findings] == rejects


def test_between_thick_slices_small_structures_are_looked_at() -> None:
    volumes = {"white": 2_000, "left nucleus": 1_999}
    scan = Grid((4, 4, 4), np.diag([2.0, 2.0, 2.0, 1.0]))
    (finding,) = check_resolution(
        evidence(NOTHING, scan=scan, volumes_mm3=volumes), LIMITS
    )
    assert finding.structures == ("left nucleus",)


def test_what_was_not_found_is_named() -> None:
    (finding,) = check_missing(
        evidence(NOTHING, volumes_mm3={"white": 0, "cortex": 1}), LIMITS
    )
    assert (finding.rejects, finding.reason) == (False, "not found: white")
