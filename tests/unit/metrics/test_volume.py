"""Volumes and centroids by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segmentation.metrics.volume import (
    centroid_distance_mm,
    volume_difference_percent,
    volumes_mm3,
)


def test_volumes_are_in_cubic_millimetres() -> None:
    assert volumes_mm3(np.array([0, 4]), (0.5, 2.0, 3.0)).tolist() == [0, 12]


def test_volume_difference_is_relative_to_the_truth_and_signed() -> None:
    truth, prediction = np.array([10.0, 10.0, 0.0, 5.0]), np.array([12.0, 5.0, 3.0, 0.0])
    expected = [20, -50, np.nan, -100]
    assert volume_difference_percent(truth, prediction) == pytest.approx(expected, nan_ok=True)


def test_centroid_distance_is_in_millimetres() -> None:
    truth, prediction = np.zeros((2, 6, 6, 6), bool)
    truth[1:3, 2, 3] = True  # centre (1.5, 2, 3)
    prediction[2:4, 4, 3] = True  # centre (2.5, 4, 3)
    distance = centroid_distance_mm(truth, prediction, (3.0, 2.0, 1.0))
    assert distance == pytest.approx(math.hypot(3, 4))


def test_an_empty_mask_has_no_centroid() -> None:
    mask = np.ones((2, 2, 2), bool)
    assert math.isnan(centroid_distance_mm(mask, ~mask, (1.0, 1.0, 1.0)))
    assert math.isnan(centroid_distance_mm(~mask, mask, (1.0, 1.0, 1.0)))
