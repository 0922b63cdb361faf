"""Masks grown and cleaned, on arrays worked out by hand."""

from __future__ import annotations

import numpy as np

from trinat.segmentation.space.morphology import dilated, largest_part, without_holes


def test_dilation_reaches_as_far_as_it_is_told_along_each_axis() -> None:
    mask = np.zeros((7, 7, 7), bool)
    mask[3, 3, 3] = True
    grown = dilated(mask, (1, 2, 0))
    # 3 by 5 by 1 voxels.
    assert grown.sum() == 15
    assert grown[2:5, 1:6, 3].all()


def test_the_largest_of_parts_that_share_no_face_is_kept() -> None:
    mask = np.zeros((5, 5, 1), bool)
    mask[:2, :2] = True
    mask[2, 2] = True  # touches the square at an edge only
    assert np.argwhere(largest_part(mask)).max() == 1
    assert largest_part(mask).sum() == 4
    assert not largest_part(np.zeros((2, 2, 2), bool)).any()


def test_holes_are_filled_and_bays_are_not() -> None:
    mask = np.ones((5, 5, 5), bool)
    mask[2, 2, 2] = False
    mask[0, 0, 0] = False  # at the border: outside leads there
    filled = without_holes(mask)
    assert filled[2, 2, 2]
    assert not filled[0, 0, 0]
    assert filled.sum() == 124
