"""Area of the surface that a 2x2x2 neighbourhood of voxels cuts out, for all 256 of them.

A mask's surface passes between voxels. Around each voxel corner, eight voxels are in or out; the
sheet through the midpoints of the edges between them (marching cubes) has an area that depends on
those eight bits and the spacing alone. These areas weigh every surface point, so that distances
do not depend on how the voxel grid happens to sample a slope. The result equals the table of
DeepMind's surface-distance; here it follows from the shapes instead of 256 lists of normals.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["corner_codes", "surfel_areas_mm2"]

# Bit b of a code is the voxel at offset (b & 1, b >> 1 & 1, b >> 2 & 1).
_CORNERS = np.array([(b & 1, b >> 1 & 1, b >> 2 & 1) for b in range(8)])


def corner_codes(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The eight bits around each voxel corner of a mask, (X, Y, Z) to (X+1, Y+1, Z+1).

    0 and 255 mean all out and all in: no surface there. What lies beyond the array is out.
    """
    bits = np.pad(mask, 1).view(np.uint8)
    pairs = bits[:-1] | (bits[1:] << 1)
    fours = pairs[:, :-1] | (pairs[:, 1:] << 2)
    return np.asarray(fours[:, :, :-1] | (fours[:, :, 1:] << 4), np.uint8)


@lru_cache(maxsize=16)
def surfel_areas_mm2(spacing_mm: tuple[float, float, float]) -> NDArray[np.float64]:
    """Surface area for each code, (256,)."""
    x, y, z = spacing_mm
    face_areas = np.array([y * z, x * z, x * y])  # of the voxel faces across x, y and z
    areas = np.zeros(256)
    for code in range(256):
        # Inside and outside share their surface: look at whichever has fewer voxels.
        few = code if code.bit_count() <= 4 else 255 - code
        voxels = [b for b in range(8) if few >> b & 1]
        for part in _connected_parts(voxels):
            normals = _normals(_CORNERS[part])
            areas[code] += np.linalg.norm(normals * face_areas, axis=1).sum()
    areas.setflags(write=False)  # it is shared by everyone who asks
    return areas


def _connected_parts(voxels: list[int]) -> list[list[int]]:
    """Voxels grouped by shared faces; each group is cut off by a sheet of its own."""
    parts: list[list[int]] = []
    for voxel in voxels:
        touching = [part for part in parts if any((voxel ^ w).bit_count() == 1 for w in part)]
        parts = [part for part in parts if part not in touching]
        parts.append([voxel, *(other for part in touching for other in part)])
    return parts


def _normals(part: NDArray[np.int64]) -> NDArray[np.float64]:
    """Area vectors, in units of voxel faces, of the triangles that cut one part off, (T, 3)."""
    ones = np.ones(3)
    flat = np.flatnonzero(np.ptp(part, axis=0) == 0)  # axes along which the part is one voxel thin
    axis = np.eye(3)[flat[0]] if len(flat) else ones
    match len(part):
        case 1:
            return ones[None] / 8
        case 2:  # a bar: a plane at 45 degrees along it
            return (np.isin(np.arange(3), flat) / 2)[None]
        case 3:  # an L: half a face, and a slope over its inner corner
            return np.stack([axis / 2, ones * 3 / 8])
        case 4 if len(flat):  # a square: a whole face
            return axis[None]
    neighbours = (abs(part[:, None] - part[None]).sum(2) == 1).sum(1)
    if neighbours.max() == 3:  # a voxel with its three neighbours: a regular hexagon
        return ones[None] * 3 / 4
    # A zigzag of three steps: a bent hexagon, folded along its middle step.
    middle = abs(np.subtract(*part[neighbours == 2]))
    first, second = np.eye(3)[middle == 0]
    return np.stack([ones / 2, (first + middle) / 4, (second + middle) / 4])
