"""Truths drawn on some slices alone."""

from __future__ import annotations

import numpy as np
import pytest

from segmentation.metrics.sparse import drawn_slices

SPACING_MM = (1.0, 0.5, 2.0)


def every_third(axis: int) -> np.ndarray:
    labels = np.zeros((12, 12, 12), np.uint8)
    moved = np.moveaxis(labels, axis, 0)
    moved[1:11:3, 3:9, 3:9] = 1
    return labels


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_third_slice_is_found_with_its_thickness(axis: int) -> None:
    drawn = drawn_slices(every_third(axis), SPACING_MM)
    assert drawn is not None
    assert (drawn.axis, drawn.places.tolist(), drawn.total) == (axis, [1, 4, 7, 10], 12)
    assert drawn.spacing_mm(SPACING_MM)[axis] == pytest.approx(3 * SPACING_MM[axis])
    assert drawn.alone(every_third(axis)).shape[axis] == 4


def test_the_note_says_it_plainly() -> None:
    drawn = drawn_slices(every_third(2), SPACING_MM)
    assert drawn is not None
    assert drawn.note == (
        "the truth is labelled on 4 slices of 12 along its third axis: "
        "measured on these alone, as 6 mm thick"
    )


def test_what_a_prediction_has_between_is_blanked() -> None:
    drawn = drawn_slices(every_third(1), SPACING_MM)
    assert drawn is not None
    blanked = drawn.blank_between(np.full((12, 12, 12), 5, np.uint8))
    assert np.flatnonzero(blanked.any((0, 2))).tolist() == [1, 4, 7, 10]


def test_a_whole_truth_is_whole_also_with_gaps_between_structures() -> None:
    labels = np.zeros((40, 12, 12), np.uint8)
    labels[2:8, 3:9, 3:9] = 1
    labels[30:36, 3:9, 3:9] = 2
    assert drawn_slices(labels, SPACING_MM) is None
    assert drawn_slices(np.zeros_like(labels), SPACING_MM) is None


def test_one_slice_of_one_thin_structure_is_whole_and_one_of_many_is_not() -> None:
    labels = np.zeros((12, 12, 12), np.uint8)
    labels[5, 2:9, 2:9] = 1
    assert drawn_slices(labels, SPACING_MM) is None
    labels[5, 2:4, 2:4], labels[5, 6:8, 6:8] = 2, 3
    drawn = drawn_slices(labels, SPACING_MM)
    assert drawn is not None
    assert "a single slice of 12 along its first axis" in drawn.note
