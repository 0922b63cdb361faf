"""Visits by code: what changes in them is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from helpers.visits import head_of

from bench._visits import Protocol, change_of, deformation, visit
from bench.longitudinal import differences, icc_interval, pooled, slope_of


def ball() -> np.ndarray:
    x, y, z = np.indices((40, 40, 40)) - 20
    return x**2 + y**2 + z**2 <= 8**2


@pytest.mark.parametrize("share", [-0.02, 0.03])
def test_a_structure_changes_by_the_share(share: float) -> None:
    assert change_of(ball(), deformation(ball(), share)) == pytest.approx(share)


def test_what_is_far_away_stays() -> None:
    field = deformation(ball(), -0.02)
    assert np.abs(field[:, 0, 0, 0]).max() < 0.1 * np.abs(field).max()


def test_a_visit_is_another_acquisition_each_time() -> None:
    draw = np.random.default_rng(0)
    head = head_of()
    head = type(head)(head.data / 200, head.affine)
    first, second = (visit(head, None, Protocol(), draw) for _ in range(2))
    assert first.shape != second.shape or not np.allclose(first.affine, second.affine)


def test_differences_are_of_the_mean_of_both_scans() -> None:
    persons = pd.DataFrame({"scan": ["a.nii.gz", "b.nii.gz"], "person": ["p", "p"]})
    volumes = pd.DataFrame({"Hippocampus": [95.0, 105.0]}, index=["a", "b"])
    assert differences(persons, volumes).loc["Hippocampus", "mean"] == 10


def test_the_slope_of_what_is_found_at_half_is_a_half() -> None:
    true = np.array([0.0, 0, 1, 2, 3])
    assert slope_of(true, true / 2) == pytest.approx(0.5)


def test_both_sides_of_a_structure_have_one_noise() -> None:
    sds = pd.Series({"Left-Caudate": 1.0, "Right-Caudate": 7.0, "Brain-Stem": 2.0})
    assert pooled(sds, 2) == [
        ("Left-Caudate", 5.0, 4),
        ("Right-Caudate", 5.0, 4),
        ("Brain-Stem", 2.0, 2),
    ]


def test_the_interval_of_the_icc_of_the_published_example() -> None:
    # Shrout and Fleiss (1979): six targets, four judges. R's psych gives 0.019 to 0.76.
    ratings = np.array(
        [
            [9, 2, 5, 8],
            [6, 1, 3, 2],
            [8, 4, 6, 8],
            [7, 1, 2, 6],
            [10, 5, 6, 9],
            [6, 2, 4, 7],
        ]
    )
    low, high = icc_interval(ratings.astype(float))
    assert low == pytest.approx(0.019, abs=0.001)
    assert high == pytest.approx(0.76, abs=0.005)
