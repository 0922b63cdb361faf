"""Where an array's voxels are: its shape and its affine, with one way to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, int, int]
Box = tuple[slice, slice, slice]


@dataclass(frozen=True, eq=False)
class Grid:
    """`shape` voxels; `affine` takes a voxel's indices to RAS mm, and is read-only."""

    shape: Shape
    affine: NDArray[np.float64]

    def __post_init__(self) -> None:
        affine = np.array(self.affine, dtype=np.float64)
        affine.flags.writeable = False
        object.__setattr__(self, "affine", affine)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        x, y, z = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)).tolist()
        return x, y, z

    @property
    def voxel_mm3(self) -> float:
        return float(abs(np.linalg.det(self.affine[:3, :3])))

    @property
    def axcodes(self) -> str:
        """Where each voxel axis grows to, as "RAS" or "LIA"."""
        return "".join(nib.aff2axcodes(self.affine))

    def places(self, indices: Any) -> NDArray[np.float64]:
        """Where voxels (..., 3) are, in RAS mm."""
        return moved(indices, self.affine)

    @property
    def box(self) -> Box:
        """All voxels."""
        return whole(self.shape)

    def cut(self, box: Box) -> Grid:
        """The grid of a part of the voxels."""
        affine = self.affine.copy()
        affine[:3, 3] = self.places([s.start for s in box])
        return Grid(to_shape(s.stop - s.start for s in box), affine)

    def extent_mm(self, box: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lowest and highest world coordinates of the outer faces of a box of voxels."""
        faces = list(product(*((s.start - 0.5, s.stop - 0.5) for s in box)))
        corners = self.places(faces)
        return corners.min(axis=0), corners.max(axis=0)

    def apart_mm(self, other: Grid) -> float:
        """The largest distance between the places of one voxel; infinite if shapes differ."""
        if self.shape != other.shape:
            return float("inf")
        at = corners(self.box)
        return float(np.linalg.norm(self.places(at) - other.places(at), axis=1).max())


def moved(points: Any, affine: NDArray[np.floating]) -> NDArray[np.float64]:
    """Where an affine takes points (..., 3)."""
    at: NDArray[np.float64] = np.asarray(points, np.float64) @ affine[:3, :3].T
    return at + affine[:3, 3]


def corners(box: Box) -> list[tuple[int, ...]]:
    """The eight voxels at the corners of a box."""
    return list(product(*((side.start, side.stop - 1) for side in box)))


def whole(shape: Sequence[int]) -> Box:
    """All voxels of an array."""
    x, y, z = (slice(0, n) for n in shape)
    return x, y, z


def grown(
    box: Sequence[slice], shape: Sequence[int], voxels: int | NDArray[np.int_] = 1
) -> Box:
    """The box with so many voxels more on each side, as far as there are any."""
    x, y, z = (
        slice(max(s.start - v, 0), min(s.stop + v, n))
        for s, n, v in zip(box, shape, np.broadcast_to(voxels, 3).tolist(), strict=True)
    )
    return x, y, z


def is_empty(box: Box) -> bool:
    return any(s.start >= s.stop for s in box)


def to_shape(sides: Any) -> Shape:
    x, y, z = (int(side) for side in sides)
    return x, y, z


def world_axes(codes: str) -> tuple[tuple[int, int], ...]:
    """World axis (0, 1 or 2) and direction (1 or -1) of each array axis, of codes such as "LIA"."""
    pairs = ("LR", "PA", "IS")
    axes = [
        (w, pair.find(c)) for c in codes for w, pair in enumerate(pairs) if c in pair
    ]
    if len(codes) != 3 or sorted(world for world, _ in axes) != [0, 1, 2]:
        raise ValueError(
            f"{codes!r} must name three axes, one of each pair L/R, P/A, I/S, as in RAS or LIA"
        )
    return tuple((world, 1 if place else -1) for world, place in axes)
