"""Meshes of shapes with known area and volume, and in files that other programs read."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.refusals import refusal

from trinat.segmentation.errors import FormatError
from trinat.segmentation.rendering.mesh import Surface, surface_net

RADIUS = 8.3
# Voxels of 2 x 1 x 1 mm; x increases to the left, as in scans that are not RAS.
AFFINE = np.array([[-2.0, 0, 0, 30], [0, 1, 0, -5], [0, 0, 1, 7], [0, 0, 0, 1]])


def ball(radius: float = RADIUS) -> np.ndarray:
    """Return the depth of each voxel within a ball, in voxels."""
    middle = np.array([12.3, 11.8, 12.1]).reshape(3, 1, 1, 1)
    return radius - np.sqrt(((np.indices((25, 25, 25)) - middle) ** 2).sum(0))


@pytest.mark.parametrize(
    "field", [np.sign(ball()), np.tanh(ball())], ids=["mask", "smooth"]
)
def test_a_balls_area_and_volume_are_right_within_a_few_percent(
    field: np.ndarray,
) -> None:
    found = surface_net(field, np.eye(4))
    assert found.area_mm2 == pytest.approx(4 * np.pi * RADIUS**2, rel=0.03)
    assert found.volume_mm3 == pytest.approx(4 / 3 * np.pi * RADIUS**3, rel=0.03)
    centre = found.vertices.mean(0)
    np.testing.assert_allclose(centre, [12.3, 11.8, 12.1], atol=0.1)


def test_vertices_are_where_the_affine_has_them_and_faces_look_outwards() -> None:
    found = surface_net(ball(), AFFINE)
    assert found.volume_mm3 == pytest.approx(2 * 4 / 3 * np.pi * RADIUS**3, rel=0.03)
    low, high = found.vertices.min(0), found.vertices.max(0)
    np.testing.assert_allclose(
        (low + high) / 2, [30 - 2 * 12.3, -5 + 11.8, 7 + 12.1], atol=0.6
    )
    np.testing.assert_allclose(
        high - low, [4 * RADIUS, 2 * RADIUS, 2 * RADIUS], rtol=0.05
    )


def test_a_mesh_is_closed_also_at_the_edge_of_the_array() -> None:
    field = np.full((3, 4, 5), -1.0)
    field[:2, 1:3, 2:] = 1
    faces = surface_net(field, np.eye(4)).faces
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    ways, counts = np.unique(edges, axis=0, return_counts=True)
    assert (counts == 1).all()  # each edge once in each direction
    assert {tuple(way) for way in ways} == {tuple(way[::-1]) for way in ways}


def test_one_voxel_is_a_small_cube_around_its_centre() -> None:
    found = surface_net(np.ones((1, 1, 1)), np.eye(4))
    # In each of eight cells the surface crosses three edges, half a voxel from the centre.
    np.testing.assert_allclose(np.abs(found.vertices), 1 / 6, rtol=1e-5)
    assert found.volume_mm3 == pytest.approx(1 / 27)
    assert found.area_mm2 == pytest.approx(6 / 9)


def test_both_kinds_of_file_hold_the_mesh(tmp_path: Path) -> None:
    found = surface_net(ball(), AFFINE)
    found.save(tmp_path / "x.surf.gii")
    points, faces = nib.load(tmp_path / "x.surf.gii").darrays
    np.testing.assert_array_equal(points.data, found.vertices)
    np.testing.assert_array_equal(faces.data, found.faces)
    assert points.coordsys.dataspace == nib.nifti1.xform_codes["scanner"]
    found.save(tmp_path / "x.PLY")
    header, _, body = (tmp_path / "x.PLY").read_bytes().partition(b"end_header\n")
    assert f"element vertex {len(found.vertices)}\n".encode() in header
    size = found.vertices.nbytes
    np.testing.assert_array_equal(
        np.frombuffer(body[:size], "<f4"), found.vertices.ravel()
    )
    rows = np.frombuffer(body[size:], [("count", "u1"), ("corners", "<i4", 3)])
    assert (rows["count"] == 3).all()
    np.testing.assert_array_equal(rows["corners"], found.faces)
    with refusal(FormatError, tmp_path / "x.stl"):
        found.save(tmp_path / "x.stl")


def test_a_short_text_stands_for_it() -> None:
    assert (
        repr(Surface(np.zeros((4, 3)), np.zeros((2, 3))))
        == "Surface(4 vertices, 2 faces)"
    )
