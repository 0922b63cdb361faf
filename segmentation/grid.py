"""Voxel grids: a shape and an affine, and one way to compare them.

An affine is a 4×4 matrix that maps the indices (i, j, k) of a voxel to its centre in RAS
millimetres, as in nibabel: x grows to the person's right, y to the front, z upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]
Box = tuple[slice, slice, slice]
# Positions or distances in space: three numbers each, (..., 3).
Points = NDArray[np.float64]

# Grids are the same if corresponding voxels are no farther apart than this. Headers store positions
# and the quaternion of a q-form as float32. The corners of a q-form that is turned by less than a
# degree may be off by 0.45 mm, but that tolerance would accept grids half a voxel apart.
SAME_GRID_MM = 0.1

# World axis (0, 1 or 2) and direction for each letter of an orientation code.
_DIRECTIONS = {
    "L": (0, -1),
    "R": (0, 1),
    "P": (1, -1),
    "A": (1, 1),
    "I": (2, -1),
    "S": (2, 1),
}


@dataclass(frozen=True, eq=False)
class Grid:
    """Regular grid of voxels: its shape and its affine.

    `affine` (4, 4) maps voxel indices to RAS mm; the grid keeps a read-only copy. The first three
    columns are the steps in mm from a voxel to the next one along each array axis. The last column
    is the centre of voxel (0, 0, 0).
    """

    shape: Shape
    affine: NDArray[np.float64]

    def __post_init__(self) -> None:
        affine = np.array(self.affine, dtype=np.float64)
        affine.flags.writeable = False
        object.__setattr__(self, "affine", affine)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Distance between neighbouring voxels along each array axis, in mm."""
        steps = self.affine[:3, :3]
        lengths = np.sqrt((steps**2).sum(axis=0))
        x, y, z = lengths.tolist()
        return x, y, z

    @property
    def voxel_mm3(self) -> float:
        """Volume of a voxel, in mm³."""
        steps = self.affine[:3, :3]
        return float(abs(np.linalg.det(steps)))

    @property
    def axcodes(self) -> str:
        """Orientation code of the array axes, such as "RAS" or "LIA"."""
        return "".join(nib.aff2axcodes(self.affine))

    def places(self, indices: Any) -> Points:
        """Return the positions of voxels with the given indices (..., 3), (..., 3) in RAS mm."""
        return moved(indices, self.affine)

    @property
    def box(self) -> Box:
        """Box that contains all voxels."""
        return whole(self.shape)

    def cut(self, box: Box) -> Grid:
        """Return the grid of the voxels in a box; the box may extend beyond this grid."""
        affine = self.affine.copy()
        first_voxel = [side.start for side in box]
        affine[:3, 3] = self.places(first_voxel)
        shape = to_shape(side.stop - side.start for side in box)
        return Grid(shape, affine)

    def beyond(self, other: Grid) -> NDArray[np.bool_]:
        """Return a mask (X, Y, Z) of the voxels whose centre lies outside of another grid."""
        to_other = np.linalg.inv(other.affine) @ self.affine
        x, y, z = self.shape
        i, j, k = np.ogrid[:x, :y, :z]
        is_beyond = np.zeros(self.shape, bool)
        for axis, count in enumerate(other.shape):
            *along, start = to_other[axis]
            # Grids that are not rotated against each other need a line of positions, not a volume.
            parts = zip(along, (i, j, k), strict=True)
            place = start + sum(step * index for step, index in parts if step)
            # A voxel extends half its size beyond its centre.
            is_beyond |= (place < -0.5) | (place > count - 0.5)
        return is_beyond

    def moved_by(self, matrix: NDArray[np.floating]) -> Grid:
        """Return the grid moved by a matrix (4, 4), which maps RAS mm to RAS mm."""
        return Grid(self.shape, matrix @ self.affine)

    def extent_mm(self, box: Box) -> tuple[Points, Points]:
        """Return the lowest and highest coordinates of a box of voxels, (3,) each, in RAS mm.

        They are those of the outer faces of the voxels.
        """
        # A voxel extends half its size to either side of its centre.
        faces = [(side.start - 0.5, side.stop - 0.5) for side in box]
        face_corners = self.places(list(product(*faces)))
        return face_corners.min(axis=0), face_corners.max(axis=0)

    def apart_mm(self, other: Grid) -> float:
        """Return the largest distance in mm between voxels of equal index in two grids.

        It is infinite if the shapes differ.
        """
        if self.shape != other.shape:
            return float("inf")
        # The difference of two affine maps is affine, so its length is largest at a corner.
        indices = corners(self.box)
        offsets = self.places(indices) - other.places(indices)
        return float(np.linalg.norm(offsets, axis=1).max())


def moved(points: Any, affine: NDArray[np.floating]) -> Points:
    """Transform points (..., 3) by an affine (4, 4)."""
    # Points are rows: p @ Aᵀ equals A @ p for columns.
    rows = np.asarray(points, np.float64)
    turned: Points = rows @ affine[:3, :3].T
    return turned + affine[:3, 3]


def corners(box: Box) -> list[tuple[int, ...]]:
    """Return the indices of the eight corner voxels of a box."""
    ends = [(side.start, side.stop - 1) for side in box]
    return list(product(*ends))


def whole(shape: Sequence[int]) -> Box:
    """Return the box that contains all voxels of an array of this shape."""
    return to_box(slice(0, length) for length in shape)


def grown(
    box: Sequence[slice],
    shape: Sequence[int],
    voxels: int | NDArray[np.int_] = 1,
) -> Box:
    """Return a box extended by some voxels on each side, but not beyond an array of this shape.

    `voxels` is one number, or one for each axis.
    """
    margins = np.broadcast_to(voxels, 3).tolist()
    sides = []
    for side, length, margin in zip(box, shape, margins, strict=True):
        start = max(side.start - margin, 0)
        stop = min(side.stop + margin, length)
        sides.append(slice(start, stop))
    return to_box(sides)


def around_both(first: Sequence[slice], second: Sequence[slice]) -> Box:
    """Return the smallest box that contains two boxes."""
    sides = []
    for one, other in zip(first, second, strict=True):
        start = min(one.start, other.start)
        stop = max(one.stop, other.stop)
        sides.append(slice(start, stop))
    return to_box(sides)


def occupied_box(mask: NDArray[np.bool_]) -> Box:
    """Return the smallest box around all set voxels of a mask (X, Y, Z).

    Its slices are empty if no voxel is set.
    """
    along_x = np.any(mask, axis=(1, 2))
    along_y = np.any(mask, axis=(0, 2))
    along_z = np.any(mask, axis=(0, 1))
    return box_between([along_x, along_y, along_z])


def box_between(lines: Sequence[NDArray[np.bool_]]) -> Box:
    """Return the box from the first to the last set index along each axis.

    `lines` has a line of flags for each axis. The slices of the box are empty if no flag is set.
    """
    sides = []
    for line in lines:
        occupied = np.flatnonzero(line)
        if not len(occupied):
            return slice(0, 0), slice(0, 0), slice(0, 0)
        sides.append(slice(int(occupied[0]), int(occupied[-1]) + 1))
    return to_box(sides)


def is_empty(box: Box) -> bool:
    """Return True if a box holds no voxel."""
    return any(side.start >= side.stop for side in box)


def to_box(sides: Iterable[slice]) -> Box:
    """Convert three slices to a box, a tuple of them."""
    x, y, z = sides
    return x, y, z


def to_shape(sides: Any) -> Shape:
    """Convert three numbers to a shape, a tuple of int."""
    x, y, z = (int(side) for side in sides)
    return x, y, z


def world_axes(codes: str) -> tuple[tuple[int, int], ...]:
    """Return the world axis (0, 1 or 2) and the direction (1 or -1) of each array axis.

    `codes` is an orientation code such as "LIA". Raises ValueError unless it names each world axis
    once.
    """
    axes = [_DIRECTIONS[code] for code in codes if code in _DIRECTIONS]
    named = sorted(world for world, _ in axes)
    if len(codes) != 3 or named != [0, 1, 2]:
        raise ValueError(
            f"{codes!r} must name three axes, one of each pair L/R, P/A, I/S, as in RAS or LIA"
        )
    return tuple(axes)
