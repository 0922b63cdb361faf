"""Areas of single surface elements, from geometry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from segmentation.metrics.surfels import corner_codes, surfel_areas_mm2

ISOTROPIC = (1.0, 1.0, 1.0)


def test_a_voxel_alone_is_an_octahedron() -> None:
    """Its eight corners each get one equilateral triangle of side sqrt(1/2)."""
    codes = corner_codes(np.ones((1, 1, 1), bool))
    assert sorted(codes.ravel().tolist()) == [1, 2, 4, 8, 16, 32, 64, 128]
    triangle = math.sqrt(3) / 4 * 0.5
    assert surfel_areas_mm2(ISOTROPIC)[codes] == pytest.approx(np.full((2, 2, 2), triangle))


def test_codes_number_the_neighbours_by_axis() -> None:
    mask = np.zeros((2, 2, 2), bool)
    mask[1, 0, 0] = True  # seen from the corner in the middle: bit 0
    assert corner_codes(mask)[1, 1, 1] == 0b10
    mask[0, 1, 0] = mask[0, 0, 1] = True
    assert corner_codes(mask)[1, 1, 1] == 0b10110


@pytest.mark.parametrize(
    ("code", "area_mm2"),
    [
        (0b01010101, 3.0 * 4.0),  # low x inside: the face across x
        (0b00110011, 2.0 * 4.0),
        (0b00001111, 2.0 * 3.0),
    ],
)
def test_a_flat_surface_has_the_area_of_a_voxel_face(code: int, area_mm2: float) -> None:
    assert surfel_areas_mm2((2.0, 3.0, 4.0))[code] == pytest.approx(area_mm2)


def test_a_bar_is_cut_off_by_a_plane_across_its_edge() -> None:
    """Two voxels along x: a rectangle, 2 mm by the diagonal between two edge midpoints."""
    assert surfel_areas_mm2((2.0, 3.0, 4.0))[0b11] == pytest.approx(2.0 * math.hypot(1.5, 2.0))


def test_inside_and_outside_have_the_same_surface() -> None:
    areas = surfel_areas_mm2((1.0, 1.7, 2.3))
    assert areas == pytest.approx(areas[::-1])


def test_no_surface_where_all_voxels_agree() -> None:
    areas = surfel_areas_mm2(ISOTROPIC)
    assert areas[0] == areas[255] == 0
    assert (areas[1:255] > 0).all()


def test_every_code_equals_the_table_of_surface_distance() -> None:
    lookup_tables = pytest.importorskip("surface_distance.lookup_tables")
    spacing_mm = (1.0, 1.7, 2.3)
    theirs = lookup_tables.create_table_neighbour_code_to_surface_area(spacing_mm)
    kernel = lookup_tables.ENCODE_NEIGHBOURHOOD_3D_KERNEL
    their_bits = [int(kernel[b & 1, b >> 1 & 1, b >> 2 & 1]) for b in range(8)]
    their_code = [sum(bit for b, bit in enumerate(their_bits) if c >> b & 1) for c in range(256)]
    assert surfel_areas_mm2(spacing_mm) == pytest.approx(theirs[their_code])
