"""The surface of a structure as a mesh, and the files that other programs read it from.

Surface nets: one vertex in each cell of eight voxels that the surface passes, one quad around each
pair of voxels that it parts. Of a ball with a radius of 8 voxels area and volume come within 2.5 %.
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
from trinat.segmentation.io.files import atomic_write
from trinat.segmentation.metrics.surface import corner_codes
from trinat.segmentation.space.grid import moved


@dataclass(frozen=True, eq=False)
class Surface:
    """Triangles that face outwards.

    `vertices` (V, 3) are float32 in the scanner's RAS mm, as the scan's affine has them; `faces`
    (F, 3) are int32 numbers of vertices.
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]

    def __repr__(self) -> str:
        return f"Surface({len(self.vertices)} vertices, {len(self.faces)} faces)"

    @property
    def area_mm2(self) -> float:
        return float(np.linalg.norm(self._normals(), axis=1).sum())

    @property
    def volume_mm3(self) -> float:
        corners = self.vertices[self.faces[:, 0]].astype(np.float64)
        return float((corners * self._normals()).sum() / 3)

    def _normals(self) -> NDArray[np.float64]:
        """Area vectors of the faces, (F, 3)."""
        a, b, c = self.vertices[self.faces.T].astype(np.float64)
        return np.asarray(np.cross(b - a, c - a) / 2)

    def save(self, path: str | Path) -> None:
        """Write PLY (.ply, binary) or GIfTI (.gii), whole or not at all."""
        where = Path(path)
        content = {".ply": self._ply, ".gii": self._gifti}.get(where.suffix.lower())
        if content is None:
            raise FormatError("not a kind of mesh", where=where, remedy="use .ply or .gii")
        with atomic_write(where) as file:
            file.write(content())

    def _ply(self) -> bytes:
        header = (
            "ply\nformat binary_little_endian 1.0\ncomment RAS mm\n"
            f"element vertex {len(self.vertices)}\n"
            "property float x\nproperty float y\nproperty float z\n"
            f"element face {len(self.faces)}\nproperty list uchar int vertex_indices\nend_header\n"
        )
        faces = np.empty(len(self.faces), [("count", "u1"), ("corners", "<i4", 3)])
        faces["count"], faces["corners"] = 3, self.faces
        return header.encode() + self.vertices.astype("<f4").tobytes() + faces.tobytes()

    def _gifti(self) -> bytes:
        scanner = nib.gifti.GiftiCoordSystem("NIFTI_XFORM_SCANNER_ANAT", "NIFTI_XFORM_SCANNER_ANAT")
        arrays = [
            nib.gifti.GiftiDataArray(self.vertices, "NIFTI_INTENT_POINTSET", coordsys=scanner),
            nib.gifti.GiftiDataArray(self.faces, "NIFTI_INTENT_TRIANGLE"),
        ]
        return bytes(nib.gifti.GiftiImage(darrays=arrays).to_bytes())


def surface_net(field: NDArray[Any], affine: NDArray[np.floating]) -> Surface:
    """The surface between positive and other values of a field (X, Y, Z), closed at its edges."""
    padded = np.pad(field.astype(np.float64), 1, constant_values=-1.0)
    inside = padded > 0
    codes = corner_codes(inside[1:-1, 1:-1, 1:-1])
    border = codes + np.uint8(1) > 1  # 0 and 255 become 1 and 0: nothing to part there
    cells = np.argwhere(border)
    number = np.full(border.shape, -1, np.int32)
    number[border] = np.arange(len(cells))
    vertices = cells + _crossings(padded, cells)
    quads = np.concatenate([_quads(inside, number, axis) for axis in range(3)])
    faces = np.concatenate([quads[:, :3], quads[:, [0, 2, 3]]])
    if np.linalg.det(affine[:3, :3]) < 0:
        faces = faces[:, ::-1]
    places = moved(vertices - 1, affine)  # without the padding
    return Surface(places.astype(np.float32), np.ascontiguousarray(faces, np.int32))


def _crossings(padded: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean place within each cell where its twelve edges cross the surface, (V, 3)."""
    total, count = np.zeros(cells.shape), np.zeros((len(cells), 1))
    for axis, one, other in product(range(3), (0, 1), (0, 1)):
        start = np.insert([one, other], axis, 0)
        low, high = (
            padded[tuple((cells + start + n * np.eye(3, dtype=int)[axis]).T)] for n in (0, 1)
        )
        crossed = (low > 0) != (high > 0)
        at = np.tile(start.astype(np.float64), (len(cells), 1))
        at[crossed, axis] = (low / np.where(crossed, low - high, 1))[crossed]
        total += at * crossed[:, None]
        count += crossed[:, None]
    return np.asarray(total / count)


def _quads(inside: NDArray[np.bool_], number: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """The four cells around each pair of voxels along an axis that the surface parts, (Q, 4)."""
    first, second = np.delete(inside, -1, axis), np.delete(inside, 0, axis)
    voxels = np.argwhere(first != second)
    steps = np.eye(3, dtype=int)
    b, c = steps[(axis + 1) % 3], steps[(axis + 2) % 3]
    # Counter-clockwise as seen from where the axis grows to.
    around = [number[tuple((voxels - back).T)] for back in (0 * b, b, b + c, c)]
    quads = np.stack(around, 1)
    outwards = first[tuple(voxels.T)]
    return np.where(outwards[:, None], quads, quads[:, ::-1])
