"""Ellipsoids at known places in the world, as label maps and as scans on any grid."""

from __future__ import annotations

import nibabel as nib
import numpy as np
from nibabel.affines import apply_affine
from scipy.spatial.transform import Rotation

from trinat.segmentation.io.volume import Volume

# label: (centre in world mm, half axes in mm). A right structure is larger than its left
# partner and lies higher, so that neither a swap nor a reflection goes unnoticed.
STRUCTURES = {
    1: ((-22.0, 5.0, 8.0), (9.0, 14.0, 11.0)),
    2: ((24.0, 3.0, 12.0), (11.0, 16.0, 12.0)),
    3: ((0.0, -30.0, -14.0), (20.0, 9.0, 10.0)),
    4: ((3.0, 31.0, 2.0), (9.0, 9.0, 17.0)),
}
HEAD_MM = (46.0, 52.0, 44.0)
FIELD_MM = 110.0


def affine_of(
    axes: str,
    spacing_mm: tuple[float, ...],
    shape: tuple[int, ...],
    turn_degrees: tuple[float, float, float] = (0, 0, 0),
    middle_mm: tuple[float, float, float] = (1.3, -2.4, 0.7),
) -> np.ndarray:
    """Return an affine with these axes and this rotation.

    The centre of the field of view is at `middle_mm`.
    """
    flips = nib.orientations.axcodes2ornt(tuple(axes))
    linear = np.zeros((3, 3))
    for voxel_axis, (world_axis, sign) in enumerate(flips):
        linear[int(world_axis), voxel_axis] = sign * spacing_mm[voxel_axis]
    affine = np.eye(4)
    affine[:3, :3] = (
        Rotation.from_euler("xyz", turn_degrees, degrees=True).as_matrix() @ linear
    )
    affine[:3, 3] = middle_mm - affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def field(spacing_mm: tuple[float, ...], field_mm: float = FIELD_MM) -> tuple[int, ...]:
    return tuple(max(16, round(field_mm / s)) for s in spacing_mm)


def squared_radius(
    world: np.ndarray, centre: tuple[float, ...], axes: tuple[float, ...]
) -> np.ndarray:
    return sum(((world[..., n] - centre[n]) / axes[n]) ** 2 for n in range(3))


def world_of(affine: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return world coordinates (X, Y, Z, 3) of all voxels; far quicker than nibabel's apply_affine.

    The last axis is the slowest in memory.
    """
    i, j, k = np.ogrid[tuple(slice(n) for n in shape)]
    rows = affine[:3].astype(np.float32)
    return np.moveaxis(
        np.stack([a * i + b * j + (c * k + t) for a, b, c, t in rows]), 0, -1
    )


def ellipsoids(affine: np.ndarray, shape: tuple[int, ...]) -> Volume:
    """Return the structures as a label map on any grid."""
    world = world_of(affine, shape)
    labels = np.zeros(shape, np.uint8)
    for label, (centre, axes) in STRUCTURES.items():
        labels[squared_radius(world, centre, axes) <= 1] = label
    return Volume(labels, affine)


def head(affine: np.ndarray, shape: tuple[int, ...], level: float = 1000.0) -> Volume:
    """Return a smooth bright ball with darker structures inside, surrounded by air."""
    world = world_of(affine, shape)
    inside = squared_radius(world, (0, 0, 0), HEAD_MM)
    values = level / (1 + np.exp(12 * (np.sqrt(inside) - 1)))
    for label, (centre, axes) in STRUCTURES.items():
        values *= 1 - 0.1 * label * np.exp(-squared_radius(world, centre, axes))
    return Volume(values.astype(np.float32), affine)


def centroid_mm(volume: Volume, label: int) -> np.ndarray:
    return apply_affine(volume.affine, np.argwhere(volume.data == label).mean(axis=0))


def volume_mm3(volume: Volume, label: int) -> float:
    return float((volume.data == label).sum() * np.prod(volume.spacing_mm))
