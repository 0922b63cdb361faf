"""Surfaces of structures as triangle meshes, and their files (PLY, GIfTI).

Surface nets: one vertex in each cell of eight voxels that the surface crosses, one quad around
each pair of voxels that it separates. Area and volume of a ball with a radius of 8 voxels are
within 2.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError
from trinat.segmentation.grid import moved
from trinat.segmentation.io.files import atomic_write
from trinat.segmentation.metrics.surface import corner_codes


@dataclass(frozen=True, eq=False)
class Surface:
    """A closed surface of triangles that face outwards.

    Attributes
    ----------
    vertices : array
        (V, 3) float32, positions in the scanner's RAS mm, according to the scan's affine.
    faces : array
        (F, 3) int32, the indices of each triangle's vertices.
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]

    def __repr__(self) -> str:
        return f"Surface({len(self.vertices)} vertices, {len(self.faces)} faces)"

    @property
    def area_mm2(self) -> float:
        """Surface area in mm²: the sum of the triangles' areas."""
        return float(np.linalg.norm(self._normals(), axis=1).sum())

    @property
    def volume_mm3(self) -> float:
        """Enclosed volume in mm³, by the divergence theorem."""
        corners = self.vertices[self.faces[:, 0]].astype(np.float64)
        return float((corners * self._normals()).sum() / 3)

    def _normals(self) -> NDArray[np.float64]:
        """Return the area vector of each face, (F, 3): its outward normal times its area in mm²."""
        a, b, c = self.vertices[self.faces.T].astype(np.float64)
        return np.asarray(np.cross(b - a, c - a) / 2)

    def save(self, path: str | Path) -> None:
        """Write PLY (.ply, binary) or GIfTI (.gii), atomically.

        Parameters
        ----------
        path : str or path
            File to write; its suffix, in upper or lower case, chooses the format.

        Raises
        ------
        FormatError
            If the suffix is another one.
        OutputError
            If the file cannot be written.
        """
        where = Path(path)
        suffix = where.suffix.lower()
        if suffix == ".ply":
            content = self._ply()
        elif suffix == ".gii":
            content = self._gifti()
        else:
            raise FormatError(
                "not a kind of mesh", where=where, remedy="use .ply or .gii"
            )
        with atomic_write(where) as file:
            file.write(content)

    def _ply(self) -> bytes:
        header = (
            "ply\nformat binary_little_endian 1.0\ncomment RAS mm\n"
            f"element vertex {len(self.vertices)}\n"
            "property float x\nproperty float y\nproperty float z\n"
            f"element face {len(self.faces)}\nproperty list uchar int vertex_indices\nend_header\n"
        )
        faces = np.empty(len(self.faces), [("count", "u1"), ("corners", "<i4", 3)])
        faces["count"] = 3
        faces["corners"] = self.faces
        return header.encode() + self.vertices.astype("<f4").tobytes() + faces.tobytes()

    def _gifti(self) -> bytes:
        """Return the content of a GIfTI file.

        The data space and the transformed space of its points are both the scanner's.
        """
        scanner = nib.gifti.GiftiCoordSystem(
            "NIFTI_XFORM_SCANNER_ANAT", "NIFTI_XFORM_SCANNER_ANAT"
        )
        arrays = [
            nib.gifti.GiftiDataArray(
                self.vertices, "NIFTI_INTENT_POINTSET", coordsys=scanner
            ),
            nib.gifti.GiftiDataArray(self.faces, "NIFTI_INTENT_TRIANGLE"),
        ]
        return bytes(nib.gifti.GiftiImage(darrays=arrays).to_bytes())


def surface_net(field: NDArray[Any], affine: NDArray[np.floating]) -> Surface:
    """Return the surface between the positive values of a field (X, Y, Z) and the others.

    It is closed where positive values reach the edge of the field. `affine` (4, 4) maps voxel
    indices to RAS mm, in which the vertices are given.
    """
    padded = np.pad(field.astype(np.float64), 1, constant_values=-1.0)
    inside = padded > 0
    codes = corner_codes(inside[1:-1, 1:-1, 1:-1])
    border = codes + np.uint8(1) > 1  # 0 and 255 become 1 and 0: no surface in the cell
    cells = np.argwhere(border)
    number = np.full(border.shape, -1, np.int32)
    number[border] = np.arange(len(cells))
    vertices = cells + _vertex_offsets(padded, cells)
    quads = np.concatenate([_quads_along(inside, number, axis) for axis in range(3)])
    # Each quad becomes two triangles.
    faces = np.concatenate([quads[:, :3], quads[:, [0, 2, 3]]])
    if np.linalg.det(affine[:3, :3]) < 0:
        faces = faces[:, ::-1]
    places = moved(vertices - 1, affine)  # without the padding
    return Surface(
        places.astype(np.float32),
        np.ascontiguousarray(faces, np.int32),
    )


def _vertex_offsets(
    padded: NDArray[np.float64], cells: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the position of each cell's vertex inside the cell, (V, 3), in voxels.

    It is the mean of the positions at which the cell's twelve edges cross the surface. `padded` is
    the padded field, and `cells` (V, 3) has the index of each cell's first corner.
    """
    total = np.zeros(cells.shape)
    count = np.zeros((len(cells), 1))
    for axis in range(3):
        along = np.eye(3, dtype=int)[axis]
        # The four edges of a cell along this axis begin at the corners of a square.
        for one, other in product((0, 1), (0, 1)):
            start = np.insert([one, other], axis, 0)
            low = _values_at(padded, cells + start)
            high = _values_at(padded, cells + start + along)
            crossed = (low > 0) != (high > 0)
            # Position of the zero, interpolated linearly; edges that are not crossed have none.
            share = low / np.where(crossed, low - high, 1)
            place = np.tile(start.astype(np.float64), (len(cells), 1))
            place[crossed, axis] = share[crossed]
            total += place * crossed[:, None]
            count += crossed[:, None]
    return np.asarray(total / count)


def _values_at(volume: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Return the values (N,) of a volume (X, Y, Z) at voxel indices (N, 3)."""
    values: NDArray[Any] = volume[tuple(places.T)]
    return values


def _quads_along(
    inside: NDArray[np.bool_],
    number: NDArray[np.int32],
    axis: int,
) -> NDArray[np.int32]:
    """Return a quad for each pair of neighbours along an axis that the surface separates, (Q, 4).

    `inside` marks the voxels inside the surface, and `number` has the index of each cell's vertex.
    A quad has the vertices of the four cells around the pair.
    """
    first = np.delete(inside, -1, axis)
    second = np.delete(inside, 0, axis)
    voxels = np.argwhere(first != second)
    steps = np.eye(3, dtype=int)
    b = steps[(axis + 1) % 3]
    c = steps[(axis + 2) % 3]
    # Counter-clockwise as seen from the end of the axis.
    around = [
        _values_at(number, voxels),
        _values_at(number, voxels - b),
        _values_at(number, voxels - b - c),
        _values_at(number, voxels - c),
    ]
    quads = np.stack(around, axis=1)
    outwards = _values_at(first, voxels)
    return np.where(outwards[:, None], quads, quads[:, ::-1])
