"""Asymmetry of all tissue and of each structure, with volumes by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.evidence import evidence

from trinat.segmentation.inference.checks.anatomy import check_sides, check_symmetry
from trinat.segmentation.inference.checks.limits import LIMITS

NOTHING = np.zeros((4, 4, 4), np.uint8)


def given(**volumes_mm3: float):
    names = {name.replace("_", " "): volume for name, volume in volumes_mm3.items()}
    return evidence(NOTHING, volumes_mm3=names)


def test_symmetry_is_of_tissue_and_not_of_ventricles() -> None:
    alike = given(
        left_nucleus=5e5, right_nucleus=5e5, left_ventricle=1.5e5, right_ventricle=2e4
    )
    assert check_symmetry(alike, LIMITS) == []
    unlike = given(left_nucleus=5e5, right_nucleus=2.5e5)
    (finding,) = check_symmetry(unlike, LIMITS)
    assert finding.rejects
    assert finding.reason == "one side has 50% of the other"


@pytest.mark.parametrize(
    ("left", "right", "is_found"),
    [(4000, 2700, False), (4000, 2500, True), (2500, 4000, True), (900, 100, False)],
    ids=["alike", "right smaller", "left smaller", "too small to say"],
)
def test_a_structure_much_smaller_than_its_partner_is_named(
    left, right, is_found
) -> None:
    assert (
        bool(check_sides(given(left_nucleus=left, right_nucleus=right), LIMITS))
        is is_found
    )


@pytest.mark.parametrize(("left", "right"), [(4000, 0), (0, 4000)])
def test_a_pair_with_an_empty_side_is_not_compared(left: float, right: float) -> None:
    assert check_sides(given(left_nucleus=left, right_nucleus=right), LIMITS) == []


def test_the_smaller_side_is_the_subject_and_both_are_looked_at() -> None:
    (finding,) = check_sides(given(left_nucleus=4000, right_nucleus=1000), LIMITS)
    assert not finding.rejects
    assert finding.reason == "right nucleus has 25% of the volume of left nucleus"
    assert set(finding.structures) == {"left nucleus", "right nucleus"}


def test_ventricles_may_differ_more_than_tissue() -> None:
    assert check_sides(given(left_ventricle=9000, right_ventricle=5000), LIMITS) == []
    assert check_sides(given(left_ventricle=9000, right_ventricle=3000), LIMITS)


def test_a_structure_that_the_model_does_not_know_has_no_sides() -> None:
    assert check_sides(given(left_nucleus=4000), LIMITS) == []
