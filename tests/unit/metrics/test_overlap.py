"""Overlap, worked out by hand on maps of ten voxels."""

from __future__ import annotations

import numpy as np
import pytest

from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.metrics.overlap import (
    dice,
    generalised_dice,
    iou,
    joint_histogram,
    precision,
    recall,
    side_swap,
    volume_difference_percent,
    volumes_mm3,
)

# Ten voxels in a row. Class 1: four in the truth, five in the prediction, three in common.
# Class 2: two in the truth, missed. Class 3: invented.
TRUTH = np.array([0, 0, 1, 1, 1, 1, 2, 2, 0, 0], np.uint8).reshape(1, 1, 10)
PREDICTION = np.array([0, 1, 1, 1, 1, 0, 1, 0, 3, 0], np.uint8).reshape(1, 1, 10)


@pytest.fixture
def joint() -> np.ndarray:
    return joint_histogram(TRUTH, PREDICTION, 5)


def test_joint_histogram_counts_each_pair_of_classes(joint: np.ndarray) -> None:
    expected = [
        [2, 1, 0, 1, 0],
        [1, 3, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert joint.tolist() == expected


def test_joint_histogram_of_the_last_classes_does_not_overflow_a_byte() -> None:
    truth = np.full((2, 2, 2), 32, np.uint8)
    assert joint_histogram(truth, truth, 33)[32, 32] == 8


def test_dice(joint: np.ndarray) -> None:
    # Class 1: 2 * 3 / (4 + 5). Class 4 is absent from both: undefined, not perfect.
    assert dice(joint)[1:] == pytest.approx([6 / 9, 0, 0, np.nan], nan_ok=True)


def test_iou(joint: np.ndarray) -> None:
    assert iou(joint)[1:] == pytest.approx([3 / 6, 0, 0, np.nan], nan_ok=True)


def test_precision_is_undefined_where_nothing_was_predicted(joint: np.ndarray) -> None:
    assert precision(joint)[1:] == pytest.approx(
        [3 / 5, np.nan, 0, np.nan], nan_ok=True
    )


def test_recall_is_undefined_where_nothing_was_there(joint: np.ndarray) -> None:
    assert recall(joint)[1:] == pytest.approx([3 / 4, 0, np.nan, np.nan], nan_ok=True)


def test_generalised_dice_weighs_by_inverse_squared_volume(joint: np.ndarray) -> None:
    # Weights 1/16 and 1/4; the invented class 3 and the absent class 4 get the largest, 1/4.
    # 2 (3/16) / (9/16 + 2/4 + 1/4)
    assert generalised_dice(joint) == pytest.approx((6 / 16) / (9 / 16 + 2 / 4 + 1 / 4))


def test_generalised_dice_of_an_empty_truth_is_undefined() -> None:
    assert np.isnan(generalised_dice(np.array([[4, 2], [0, 0]])))


PARTNERS = np.array([0, 2, 1, 3])


def test_side_swap_of_a_mirrored_prediction_is_one() -> None:
    joint = np.diag([9, 5, 7, 2])[:, [0, 2, 1, 3]]
    assert side_swap(joint, PARTNERS) == pytest.approx(
        [np.nan, 1, 1, np.nan], nan_ok=True
    )


def test_side_swap_counts_both_sides_of_a_pair() -> None:
    joint = np.array([[9, 0, 0, 0], [0, 6, 2, 0], [0, 1, 7, 0], [0, 0, 0, 3]])
    expected = 3 / 16
    assert side_swap(joint, PARTNERS)[1:3] == pytest.approx([expected, expected])


def test_maps_of_different_shape_are_refused() -> None:
    with pytest.raises(EvaluationError, match="voxels"):
        joint_histogram(TRUTH, PREDICTION[:, :, 1:], 5)


@pytest.mark.parametrize("bad", [4, -1])
def test_an_index_outside_the_scheme_is_refused(bad: int) -> None:
    wrong = TRUTH.astype(np.int16)
    wrong[0, 0, 0] = bad
    with pytest.raises(EvaluationError, match="class indices"):
        joint_histogram(TRUTH, wrong, 4)


def test_volumes_are_in_cubic_millimetres() -> None:
    assert volumes_mm3(np.array([0, 4]), (0.5, 2.0, 3.0)).tolist() == [0, 12]


def test_volume_difference_is_relative_to_the_truth_and_signed() -> None:
    truth, prediction = (
        np.array([10.0, 10.0, 0.0, 5.0]),
        np.array([12.0, 5.0, 3.0, 0.0]),
    )
    expected = [20, -50, np.nan, -100]
    assert volume_difference_percent(truth, prediction) == pytest.approx(
        expected, nan_ok=True
    )
