"""Region in which the brain may be, around masks made by hand."""

from __future__ import annotations

import numpy as np
import torch

from trinat.segmentation.inference.localisation import BrainRegion, brain_region

SHAPE = (80, 80, 80)
LOOKED = list(range(4, 80, 8))  # along the second axis: 4, 12, ..., 76
BACKGROUND, BRAIN = torch.eye(2)


def seen(*boxes: tuple[slice, slice, slice]) -> np.ndarray:
    """Return the part of some boxes that the inspected slices show."""
    mask = np.zeros(SHAPE, bool)
    for box in boxes:
        mask[box] = True
    slices = np.zeros_like(mask)
    slices[:, LOOKED] = mask[:, LOOKED]
    return slices


CUBE = (slice(30, 50), slice(30, 50), slice(30, 50))  # seen in the slices 36 and 44


def test_the_region_is_twelve_voxels_to_all_sides_of_what_was_seen() -> None:
    region = brain_region(seen(CUBE), LOOKED, axis=1)
    assert region.box == (slice(18, 62), slice(24, 57), slice(18, 62))
    assert region.mask is not None
    assert bool(region.mask.all())


def test_the_mask_leaves_out_corners_of_the_box() -> None:
    beside = (slice(50, 60), slice(40, 50), slice(60, 70))
    region = brain_region(seen(CUBE, beside), LOOKED, axis=1)
    assert region.box == (slice(18, 72), slice(24, 57), slice(18, 82 - 2))
    assert region.mask is not None
    # Only the second box, seen in slice 44, extends that far up.
    assert not region.mask[0, :, -1].any()
    assert region.mask[72 - 18 - 1, 44 - 24, -1]


def test_specks_do_not_widen_the_region_but_separate_large_parts_do() -> None:
    speck = (
        slice(68, 75),
        slice(70, 79),
        slice(68, 75),
    )  # 49 of 800 voxels in two slices: 6 %
    smaller = (slice(68, 75), slice(70, 79), slice(68, 73))  # thinner than 7 voxels
    assert brain_region(seen(CUBE, smaller), LOOKED, axis=1).box[0] == slice(18, 62)
    assert brain_region(seen(CUBE, speck), LOOKED, axis=1).box[0] == slice(18, 80)
    large = (
        slice(25, 55),
        slice(25, 55),
        slice(25, 55),
    )  # 900 voxels in each of four slices
    assert brain_region(seen(large, speck), LOOKED, axis=1).box[0] == slice(13, 67)


def test_of_a_thin_neck_only_three_voxels_widen_the_region() -> None:
    neck = (slice(38, 44), slice(36, 46), slice(5, 30))
    assert brain_region(seen(CUBE, neck), LOOKED, axis=1).box[2] == slice(
        30 - 3 - 12, 62
    )


def test_a_thin_end_in_the_next_slice_that_is_looked_at_is_brain() -> None:
    end = (slice(38, 43), slice(50, 55), slice(38, 43))  # seen in slice 52
    assert brain_region(seen(CUBE, end), LOOKED, axis=1).box[1] == slice(
        24, 52 + 12 + 1
    )
    beyond = (slice(38, 43), slice(50, 61), slice(38, 43))  # and in slice 60
    assert brain_region(seen(CUBE, beyond), LOOKED, axis=1).box[1] == slice(
        24, 52 + 12 + 1
    )


def test_where_nothing_was_seen_brain_may_be_anywhere() -> None:
    region = brain_region(seen(), LOOKED, axis=1)
    assert region.box == (slice(0, 80), slice(0, 80), slice(0, 80))
    assert region.mask is None
    assert not region.is_too_small(BRAIN.expand(*SHAPE, 2))


def fill(region: BrainRegion, part: tuple[slice, slice, slice]) -> torch.Tensor:
    """Return probabilities in a region's box, with brain in a part of it."""
    shape = [side.stop - side.start for side in region.box]
    probabilities = BACKGROUND.expand(*shape, 2).clone()
    probabilities[part] = BRAIN
    return probabilities


def test_brain_at_the_end_of_the_room_says_that_there_is_more() -> None:
    region = brain_region(seen(CUBE), LOOKED, axis=1)
    everything = slice(None)
    assert not region.is_too_small(
        fill(region, (slice(3, -3), slice(3, -3), slice(3, -3)))
    )
    assert region.is_too_small(fill(region, (slice(2, 3), everything, everything)))
    few = (slice(0, 3), slice(0, 11), slice(0, 12))  # 396 voxels
    assert not region.is_too_small(fill(region, few))


def test_where_the_scan_ends_with_the_room_nothing_is_missed() -> None:
    top = (slice(30, 50), slice(30, 50), slice(60, 80))
    region = brain_region(seen(top), LOOKED, axis=1)
    assert region.box[2] == slice(48, 80)
    inner = slice(3, -3)
    assert not region.is_too_small(fill(region, (inner, inner, slice(3, None))))
