"""Lesions of small handwritten masks: numbers, sizes, and matches between two masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from trinat.segmentation.labels.lesions import (
    LesionCounts,
    MatchedLesions,
    number_lesions,
    overlapping,
)

Mask = NDArray[np.bool_]


def mask(*boxes: tuple[int, int]) -> Mask:
    """Return a mask of one row of voxels, in which each box is true from start to stop."""
    row = np.zeros((100, 1, 1), bool)
    for start, stop in boxes:
        row[start:stop] = True
    return row


def test_lesions_are_numbered_from_the_largest():
    lesions = number_lesions(mask((0, 4), (10, 20), (30, 32)), voxel_mm3=1.0)
    # The last has 2 mm³, which is below the smallest lesion of 3 mm³.
    assert lesions.volumes_mm3.tolist() == [10, 4]
    assert lesions.numbers[15, 0, 0] == 1
    assert lesions.numbers[2, 0, 0] == 2
    assert lesions.numbers[31, 0, 0] == 0


def test_voxels_that_share_a_corner_are_one_lesion():
    touching = np.zeros((4, 4, 4), bool)
    touching[0, 0, 0] = touching[1, 1, 1] = True
    assert number_lesions(touching, voxel_mm3=2.0).volumes_mm3.tolist() == [4]


def test_a_class_of_size_begins_with_its_lower_limit():
    lesions = number_lesions(mask((0, 1), (2, 12), (20, 29)), voxel_mm3=10.0)
    # 100, 90 and 10 mm³: from 100 to 1000, and twice from 10 to 100.
    assert lesions.size_classes.tolist() == [2, 1, 1]


def test_a_volume_that_rounding_makes_a_little_smaller_is_in_its_class():
    lesions = number_lesions(mask((0, 10)), voxel_mm3=1 - 5e-8)
    assert lesions.size_classes.tolist() == [1]


def test_pairs_of_lesions_that_share_a_voxel():
    first = number_lesions(mask((0, 10), (20, 25)), 1.0)
    second = number_lesions(mask((0, 4), (6, 12), (40, 50)), 1.0)
    # By volume, the lesions of the second mask are those at 40, at 6 and at 0.
    assert overlapping(first, second).tolist() == [[1, 2], [1, 3]]


def test_counts_of_two_masks():
    truth = mask((0, 10), (20, 24), (30, 34))
    prediction = mask((9, 12), (22, 40), (50, 60), (70, 73), (80, 82))
    counts = MatchedLesions.between(truth, prediction, 1.0).counts
    # One predicted lesion covers two true ones; two are invented; the last is too small to count.
    assert counts == LesionCounts(3, 3, 4, 2, true_mm3=18, predicted_mm3=34)
    assert counts.recall == 1
    assert counts.precision == 0.5
    # 2 · 1 · 0.5 / (1 + 0.5)
    assert counts.f1 == pytest.approx(2 / 3)


def test_a_lesion_is_not_found_by_a_speck():
    matched = MatchedLesions.between(mask((0, 10)), mask((0, 2)), 1.0)
    assert matched.counts == LesionCounts(1, 0, 0, 0, true_mm3=10, predicted_mm3=0)


def test_each_lesion_counts_in_the_class_of_its_own_volume():
    matched = MatchedLesions.between(mask((0, 9), (20, 29)), mask((0, 10)), 1.0)
    by_size = matched.counts_by_size
    # The true lesions have 9 mm³, and the predicted one has 10 mm³.
    assert by_size["below 10"] == LesionCounts(2, 1, 0, 0, 18, 0)
    assert by_size["10 to 100"] == LesionCounts(0, 0, 1, 1, 0, 10)
    assert by_size["100 to 1000"] == LesionCounts(0, 0, 0, 0, 0, 0)
    total = by_size["below 10"] + by_size["10 to 100"]
    assert total == matched.counts
    # Neither class has lesions of both masks, so recall or precision is unknown.
    assert math.isnan(by_size["below 10"].f1)
    assert math.isnan(by_size["10 to 100"].f1)


def test_counts_by_region():
    matched = MatchedLesions.between(mask((0, 9), (20, 25)), mask((0, 8)), 1.0)
    counts = matched.counts_by_region(["deep", "infratentorial"], ["deep"])
    assert counts["deep"] == LesionCounts(1, 1, 1, 1, 9, 8)
    assert counts["infratentorial"] == LesionCounts(1, 0, 0, 0, 5, 0)
    assert counts["periventricular"].true == 0


@pytest.mark.parametrize(
    ("truth", "prediction", "recall", "precision", "f1"),
    [
        (mask(), mask(), math.nan, math.nan, math.nan),
        (mask((0, 9)), mask(), 0, math.nan, 0),
        (mask(), mask((0, 9)), math.nan, 0, 0),
        (mask((0, 9)), mask((20, 29)), 0, 0, 0),
    ],
    ids=["both empty", "prediction empty", "truth empty", "no overlap"],
)
def test_masks_without_lesions_or_matches(
    truth: Mask, prediction: Mask, recall: float, precision: float, f1: float
):
    counts = MatchedLesions.between(truth, prediction, 1.0).counts
    found = [counts.recall, counts.precision, counts.f1]
    np.testing.assert_equal(found, [recall, precision, f1])
