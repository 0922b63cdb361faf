"""Surface distances of boxes and spheres, worked out on paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trinat.segmentation.metrics import surface
from trinat.segmentation.metrics.surface import (
    _ball,
    average_symmetric_distance_mm,
    boundary_iou,
    centroid_distance_mm,
    corner_codes,
    hausdorff_mm,
    surface_dice,
    surface_distances,
    surfel_areas_mm2,
)

ISOTROPIC = (1.0, 1.0, 1.0)


def box(shape: tuple[int, int, int], *slices: slice) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[slices] = True
    return mask


def sphere(
    radius_mm: float, spacing_mm: tuple[float, float, float], shift_mm: float = 0.0
):
    extent_mm = radius_mm + abs(shift_mm) + 2 * max(spacing_mm)
    axes = [np.arange(-extent_mm, extent_mm, s) for s in spacing_mm]
    x, y, z = np.meshgrid(*axes, indexing="ij")
    return (x - shift_mm) ** 2 + y**2 + z**2 <= radius_mm**2


def test_equal_masks_are_no_distance_apart() -> None:
    mask = box((6, 6, 6), slice(1, 4), slice(2, 5), slice(1, 5))
    distances = surface_distances(mask, mask, ISOTROPIC)
    assert distances is not None
    assert hausdorff_mm(distances) == average_symmetric_distance_mm(distances) == 0
    assert surface_dice(distances, 0) == boundary_iou(mask, mask, ISOTROPIC, 2) == 1


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_a_shifted_box_is_its_shift_away(shift: int) -> None:
    truth = box((16, 8, 8), slice(1, 7), slice(1, 7), slice(1, 7))
    distances = surface_distances(truth, np.roll(truth, shift, 0), (0.5, 1.0, 2.0))
    assert distances is not None
    assert hausdorff_mm(distances) == pytest.approx(0.5 * shift)


def test_two_voxels_apart_along_each_axis_are_measured_in_mm() -> None:
    """One voxel against one voxel: each corner has its own image at the shift."""
    spacing_mm = (0.5, 1.5, 3.0)
    for axis, spacing in enumerate(spacing_mm):
        truth = np.zeros((7, 7, 7), bool)
        truth[2, 2, 2] = True
        prediction = np.roll(truth, 3, axis)
        distances = surface_distances(truth, prediction, spacing_mm)
        assert distances is not None
        # Four of the truth's eight corners face the near side, two voxels away, and four are
        # three voxels away; all have the same area.
        assert hausdorff_mm(distances) == pytest.approx(3 * spacing)
        assert average_symmetric_distance_mm(distances) == pytest.approx(2.5 * spacing)
        assert surface_dice(distances, 2 * spacing) == pytest.approx(0.5)


def test_the_average_weighs_by_area() -> None:
    """One voxel of 1 x 1 x 1 inside a row of two: on paper, with octahedral corners.

    The truth is voxel A, the prediction is A and its neighbour B along x. The truth's surface is
    eight triangles of sqrt(3)/8, all corners on the prediction's surface: distance 0. The
    prediction has four such corners on A's near side (0), four bars of sqrt(2)/2 between A and B
    (corners of A: 0) and four triangles on B's far side, 1 mm from A's corners.
    """
    truth = box((4, 3, 3), slice(1, 2), slice(1, 2), slice(1, 2))
    prediction = box((4, 3, 3), slice(1, 3), slice(1, 2), slice(1, 2))
    distances = surface_distances(truth, prediction, ISOTROPIC)
    assert distances is not None
    triangle, bar = math.sqrt(3) / 8, math.sqrt(2) / 2
    whole = 8 * triangle + (8 * triangle + 4 * bar)
    assert average_symmetric_distance_mm(distances) == pytest.approx(
        4 * triangle / whole
    )
    assert surface_dice(distances, 0.5) == pytest.approx(1 - 4 * triangle / whole)
    # The far side is 4 * 0.2165 of 4.561 mm2, 19 %: above 5 %, so the percentile sees it.
    assert hausdorff_mm(distances, 95) == pytest.approx(1)
    assert hausdorff_mm(distances, 80) == 0


def test_hausdorff_takes_the_larger_direction() -> None:
    """A distant speck is in the prediction alone, so only that direction finds it."""
    truth = box((30, 8, 8), slice(1, 7), slice(1, 7), slice(1, 7))
    prediction = truth.copy()
    prediction[25, 3, 3] = True
    distances = surface_distances(truth, prediction, ISOTROPIC)
    assert distances is not None
    assert distances.from_truth_mm.max() == 0
    # The speck's far corners are at x = 26, the block's far face at x = 7.
    assert hausdorff_mm(distances) == pytest.approx(19)
    assert hausdorff_mm(distances, 95) == 0


def test_concentric_spheres_are_the_difference_of_their_radii_apart() -> None:
    spacing_mm = (0.8, 1.0, 1.25)
    outer, inner = sphere(14, spacing_mm), sphere(14, spacing_mm)
    small = sphere(10, spacing_mm)
    pad = [(o - s) // 2 for o, s in zip(outer.shape, small.shape, strict=True)]
    inner = np.zeros_like(outer)
    inner[tuple(slice(p, p + n) for p, n in zip(pad, small.shape, strict=True))] = small
    distances = surface_distances(outer, inner, spacing_mm)
    assert distances is not None
    voxel_mm = math.sqrt(sum(s**2 for s in spacing_mm))
    assert hausdorff_mm(distances) == pytest.approx(4, abs=voxel_mm)
    assert average_symmetric_distance_mm(distances) == pytest.approx(
        4, abs=voxel_mm / 2
    )
    assert surface_dice(distances, 4 - voxel_mm) < 0.05
    assert surface_dice(distances, 4 + voxel_mm) == 1


def test_the_area_of_a_sphere_comes_out() -> None:
    """Areas are summed over elements; marching cubes at half a voxel overshoots by about 10 %."""
    mask = sphere(12, (0.7, 1.0, 1.3))
    distances = surface_distances(mask, mask, (0.7, 1.0, 1.3))
    assert distances is not None
    assert distances.truth_areas_mm2.sum() == pytest.approx(
        4 * math.pi * 12**2, rel=0.12
    )


def test_an_empty_mask_has_no_surface() -> None:
    mask, empty = np.ones((3, 3, 3), bool), np.zeros((3, 3, 3), bool)
    assert surface_distances(mask, empty, ISOTROPIC) is None
    assert surface_distances(empty, mask, ISOTROPIC) is None


def test_a_mask_that_fills_the_array_still_has_a_surface() -> None:
    mask = np.ones((3, 3, 3), bool)
    distances = surface_distances(mask, mask, ISOTROPIC)
    assert distances is not None
    assert len(distances.truth_areas_mm2) == 4**3 - 2**3


def test_tolerances_on_the_grid_are_inside() -> None:
    """Three steps of 0.1 mm are 0.30000000000000004 mm, and within 0.3 mm all the same."""
    truth = np.zeros((9, 3, 3), bool)
    truth[1, 1, 1] = True
    distances = surface_distances(truth, np.roll(truth, 4, 0), (0.1, 0.1, 0.1))
    assert distances is not None
    assert surface_dice(distances, 0.3) == pytest.approx(0.5)


def test_boundary_iou_of_nested_boxes() -> None:
    """A cube of 7 in a cube of 9, rims of 1 mm: shells without a voxel in common."""
    big = box((11, 11, 11), *[slice(1, 10)] * 3)
    small = box((11, 11, 11), *[slice(2, 9)] * 3)
    assert boundary_iou(big, small, ISOTROPIC, 1) == 0
    # Rims of 2 mm: 9^3 - 5^3 = 604 and 7^3 - 3^3 = 316 voxels, 7^3 - 5^3 = 218 in common; the
    # ball of 2 mm reaches two voxels along the axes only, so a box loses whole layers.
    assert boundary_iou(big, small, ISOTROPIC, 2) == pytest.approx(
        218 / (604 + 316 - 218)
    )


def test_the_cached_neighbourhood_of_a_voxel_cannot_be_changed() -> None:
    for array in _ball(ISOTROPIC, 1):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_boundary_iou_measures_in_mm() -> None:
    """Voxels half a millimetre long along x: a rim of 1 mm is two of them there, one elsewhere.

    A cube of 7 voxels less its inside of 3 x 5 x 5 is that rim, and is its own rim.
    """
    cube = box((9, 9, 9), *[slice(1, 8)] * 3)
    shell = cube & ~box((9, 9, 9), slice(3, 6), slice(2, 7), slice(2, 7))
    assert boundary_iou(cube, shell, (0.5, 1.0, 1.0), 1.0) == 1
    # In voxels, the cube's rim would be one voxel thick everywhere: 7^3 - 5^3 of 7^3 - 3 * 5^2.
    assert boundary_iou(cube, shell, ISOTROPIC, 1.0) == pytest.approx(218 / 268)


def test_a_rim_is_at_least_one_voxel_thick() -> None:
    """Slices 5 mm apart: the outermost voxels count, though outside is 5 mm away."""
    cube = box((5, 5, 5), *[slice(1, 4)] * 3)
    assert boundary_iou(cube, cube, (5.0, 5.0, 5.0), 2.0) == 1
    hollow = cube.copy()
    hollow[2, 2, 2] = False
    assert boundary_iou(cube, hollow, (5.0, 5.0, 5.0), 2.0) == 1


@pytest.mark.parametrize("voxels_per_query", [0, 10**9])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tree_and_transform_agree_in_either_memory_order(
    voxels_per_query: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far points by search tree and by distance transform; near ones by lookup."""
    rng = np.random.default_rng(5)
    points, targets = rng.random((2, 14, 11, 17)) < 0.01
    spacing_mm = (1.0, 0.6, 2.1)
    monkeypatch.setattr(surface, "_VOXELS_PER_QUERY", voxels_per_query)
    nearest = surface._nearest_mm(
        np.asarray(points, order=order), np.asarray(targets, order=order), spacing_mm
    )
    apart = (np.argwhere(points)[:, None] - np.argwhere(targets)[None]) * spacing_mm
    assert nearest == pytest.approx(np.sqrt((apart**2).sum(2)).min(1))
    assert nearest.max() > 3  # some were far


def test_a_voxel_alone_is_an_octahedron() -> None:
    """Its eight corners each get one equilateral triangle of side sqrt(1/2)."""
    codes = corner_codes(np.ones((1, 1, 1), bool))
    assert sorted(codes.ravel().tolist()) == [1, 2, 4, 8, 16, 32, 64, 128]
    triangle = math.sqrt(3) / 4 * 0.5
    assert surfel_areas_mm2(ISOTROPIC)[codes] == pytest.approx(
        np.full((2, 2, 2), triangle)
    )


def test_codes_number_the_neighbours_by_axis() -> None:
    mask = np.zeros((2, 2, 2), bool)
    mask[1, 0, 0] = True  # seen from the corner in the middle: bit 0
    assert corner_codes(mask)[1, 1, 1] == 0b10
    mask[0, 1, 0] = mask[0, 0, 1] = True
    assert corner_codes(mask)[1, 1, 1] == 0b10110


def test_every_code_equals_the_table_of_surface_distance() -> None:
    lookup_tables = pytest.importorskip("surface_distance.lookup_tables")
    spacing_mm = (1.0, 1.7, 2.3)
    theirs = lookup_tables.create_table_neighbour_code_to_surface_area(spacing_mm)
    kernel = lookup_tables.ENCODE_NEIGHBOURHOOD_3D_KERNEL
    their_bits = [int(kernel[b & 1, b >> 1 & 1, b >> 2 & 1]) for b in range(8)]
    their_code = [
        sum(bit for b, bit in enumerate(their_bits) if c >> b & 1) for c in range(256)
    ]
    assert surfel_areas_mm2(spacing_mm) == pytest.approx(theirs[their_code])


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
