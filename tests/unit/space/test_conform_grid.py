"""The working grid: its size, and its position around the head."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.placed import (
    HEAD_MM,
    affine_of,
    head,
    squared_radius,
    world_of,
)

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.conform import conform, head_box


def test_a_scan_that_fits_is_in_the_middle_of_the_grid() -> None:
    shape, centre = (100, 120, 90), (60, -40, 90)
    affine = affine_of("LPS", (1.5, 1.5, 1.5), shape, (0, 0, 0), centre)
    grid = conform(head(affine, shape)).volume
    np.testing.assert_allclose(
        grid.affine @ (127.5, 127.5, 127.5, 1), (*centre, 1), atol=1
    )


def test_a_grid_of_the_heads_own_size() -> None:
    shape = (128, 128, 128)
    affine = affine_of("LPS", (1.5, 1.5, 1.5), shape, (0, 0, 0), (6, 0, 3))
    conformed = conform(head(affine, shape), shape=None)
    # The ball is 92 x 104 x 88 mm; with margins of 10 mm and cells of 4 to 5 mm it needs more
    # than 108 to 124 voxels, in multiples of 16 at most 144.
    assert all(side % 16 == 0 and 112 <= side <= 144 for side in conformed.volume.shape)
    inside = squared_radius(
        world_of(conformed.volume.affine, conformed.volume.shape), (0, 0, 0), HEAD_MM
    )
    assert (inside <= 1).sum() == pytest.approx(
        4 / 3 * np.pi * np.prod(HEAD_MM), rel=1e-3
    )


def test_a_grid_is_no_larger_than_labels_that_fill_it() -> None:
    voxels = np.ones((16, 32, 48), np.uint8)
    conformed = conform(Volume(voxels, np.eye(4)), labels=True, shape=None)
    np.testing.assert_array_equal(conformed.volume.data, voxels)


def test_where_the_middle_lies_half_a_voxel_off_the_grid_begins_lower() -> None:
    conformed = conform(
        Volume(np.ones((15, 16, 15), np.uint8), np.eye(4)), labels=True, shape=(16,) * 3
    )
    np.testing.assert_array_equal(conformed.volume.affine[:3, 3], (-1, 0, -1))


def test_a_scan_too_tall_for_the_grid_keeps_its_top() -> None:
    """A head on a neck and a chest, in a field of view of 320 mm."""
    shape = (80, 80, 160)
    affine = affine_of("RAS", (2, 2, 2), shape, (0, 0, 0), (0, 0, -80))
    world = world_of(affine, shape)
    body = head(affine, shape).data
    trunk = (np.abs(world[..., :2]).max(axis=-1) < 40) & (world[..., 2] < 0)
    scan = Volume(np.where(trunk, 900, body).astype(np.float32), affine)
    conformed = conform(scan)
    faces = conformed.volume.affine[2, 3] - 0.5 + np.array([0, 256])
    # The head's top is at 44 mm; the scan's at 80 and its bottom at -240.
    assert 44 + 5 < faces[1] < 44 + 35


def test_labels_too_tall_for_the_grid_keep_their_top() -> None:
    conformed = conform(Volume(np.ones((8, 8, 300), np.uint8), np.eye(4)), labels=True)
    assert conformed.volume.affine[2, 3] == 300 - 256
    assert conformed.volume.data.sum() == 8 * 8 * 256


def test_a_wide_label_map_is_centred_on_what_it_labels() -> None:
    voxels = np.zeros((300, 32, 32), np.uint8)
    voxels[280:, 8:24, 8:24] = 1
    conformed = conform(Volume(voxels, np.eye(4)), labels=True)
    assert conformed.volume.data.sum() == voxels.sum()


def test_a_wide_oblique_field_is_centred_on_the_head() -> None:
    """256 mm across and turned: the grid cannot hold the corners, but it holds the head."""
    shape = (64, 64, 64)
    affine = affine_of("LPS", (4, 4, 4), shape, (0, 0, 30), (-60, 20, 0))
    conformed = conform(head(affine, shape))
    world = world_of(conformed.volume.affine, (1, 1, 1))[0, 0, 0]
    assert np.all(world[:2] + 0.5 < np.array([-46, -52]) - 10)
    assert np.all(world[:2] - 0.5 + 256 > np.array([46, 52]) + 10)


@pytest.mark.parametrize("spacing_mm", [1.0, 1.6])
def test_the_grid_does_not_depend_on_the_rounding_of_an_oblique_affine(
    spacing_mm: float,
) -> None:
    """10 mm are 10 voxels, and 4 mm are 2.5: rounding must not decide between two numbers."""
    shape = tuple(int(length) for length in np.full(3, 120) / spacing_mm)
    affine = affine_of("LIA", (spacing_mm,) * 3, shape, (9, -6, 4))
    image = head(affine, shape)
    boxes = []
    for rounding in (-1e-6, 0, 1e-6):
        rounded = affine.copy()
        rounded[:3, :3] *= 1 + rounding
        boxes.append(head_box(Volume(image.data, rounded)))
    assert boxes[0] == boxes[1] == boxes[2]
