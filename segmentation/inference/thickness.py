"""Thickness of the cortex, measured between two surfaces in the probabilities of a segmentation.

The inner surface is where everything inside the cortex (white matter, deep grey matter, ventricles)
has a probability of one half, the outer one where cortex and inside together have it. Both lie
between voxels. Where the banks of a sulcus touch, no fluid parts them: the outer surface there is
the middle between the two nearest inner surfaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from trinat.segmentation.grid import Grid, grown, is_empty, occupied_box
from trinat.segmentation.inference.parcels import Parcels
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels import Side
from trinat.segmentation.labels.parcels import CORTEX_GROUP, name_of
from trinat.segmentation.labels.scheme import LabelScheme

_Field = NDArray[np.float32]
_Points = NDArray[np.float64]

# Groups of structures that the cortex of their hemisphere does not surround.
_NOT_INSIDE = (CORTEX_GROUP, "cerebellum")

# Voxels with a smaller probability of cortex are not measured.
LEAST_CORTEX = 0.1
# FreeSurfer has the same upper bound. A thinner sheet cannot be measured in voxels of 1 mm.
THICKNESS_RANGE_MM = (0.5, 5.0)
# The surfaces are computed this many voxels beyond the measured voxels.
_MARGIN = 3
# Voxels nearer to the inner surface than this, in voxels, are not used to find the middle of a
# sulcus.
_CLOSED_FROM = 0.5


@dataclass(frozen=True)
class SheetMeasure:
    """Measurements of a parcel, or of the cortex of a hemisphere.

    `volume_mm3` is the sum of the probabilities of cortex times the volume of a voxel. `area_mm2`
    is the area of the middle surface, which is half-way between the inner and the outer one.
    `thickness_mm` is the mean thickness over that surface, which equals volume divided by area, and
    `std_mm` is the standard deviation over it; both are None without cortex.
    """

    name: str
    side: Side
    thickness_mm: float | None
    std_mm: float | None
    volume_mm3: float
    area_mm2: float


@dataclass(frozen=True, eq=False)
class CortexThickness:
    """Thickness of the cortex on the working grid (RAS axes, 1 mm).

    `maps` has the thickness map of each hemisphere in mm, float32 (X, Y, Z), 0 in voxels that were
    not measured. `parcels` and `hemispheres` have the measurements, those of the left side first.
    """

    maps: Mapping[Side, Volume]
    parcels: tuple[SheetMeasure, ...]
    hemispheres: tuple[SheetMeasure, ...]


def measure_cortex(
    probabilities: Tensor, scheme: LabelScheme, parcels: Parcels, grid: Grid
) -> CortexThickness:
    """Measure the thickness of both hemispheres and of their parcels.

    `probabilities` (X, Y, Z, K) are those of the classes of `scheme`, and `grid` is their grid, of
    1 mm. `parcels` says which parcel each voxel of cortex belongs to.
    """
    classes = np.zeros(parcels.places.shape, np.uint8)
    classes[parcels.places] = parcels.classes
    maps: dict[Side, Volume] = {}
    measured = []
    hemispheres = []
    for cortex in parcels.parcellation.cortex:
        assert cortex.side is not None
        inside = np.zeros(grid.shape, np.float32)
        for label in scheme.labels:
            if label.side == cortex.side and label.group not in _NOT_INSIDE:
                inside += probabilities[..., label.index].float().numpy()
        sheet = probabilities[..., cortex.index].float().numpy()
        found = sheet_thickness(Volume(inside, grid.affine), Volume(sheet, grid.affine))
        maps[cortex.side] = found
        is_measured = found.data > 0
        weights = sheet[is_measured].astype(np.float64) * grid.voxel_mm3
        thickness = found.data[is_measured].astype(np.float64)
        class_here = classes[is_measured]
        for parcel in parcels.parcellation.parcels.labels[1:]:
            of_parcel = class_here == parcel.index
            name = name_of(parcel, cortex.side)
            measured.append(
                _measure_sheet(
                    name, cortex.side, weights[of_parcel], thickness[of_parcel]
                )
            )
        in_parcels = class_here > 0
        hemispheres.append(
            _measure_sheet(
                cortex.name, cortex.side, weights[in_parcels], thickness[in_parcels]
            )
        )
    return CortexThickness(maps, tuple(measured), tuple(hemispheres))


def _measure_sheet(
    name: str, side: Side, volumes_mm3: _Points, thickness_mm: _Points
) -> SheetMeasure:
    """Measure a part of the cortex that consists of N voxels.

    `volumes_mm3` (N,) are the voxels' volumes of cortex, `thickness_mm` (N,) the thickness at them.
    """
    volume_mm3 = float(volumes_mm3.sum())
    if volume_mm3 == 0:
        return SheetMeasure(name, side, None, None, 0.0, 0.0)
    # The area of the surface that a voxel stands for is its volume divided by the thickness.
    areas_mm2 = volumes_mm3 / thickness_mm
    area_mm2 = float(areas_mm2.sum())
    mean_mm = volume_mm3 / area_mm2
    variance = float((areas_mm2 * (thickness_mm - mean_mm) ** 2).sum()) / area_mm2
    return SheetMeasure(name, side, mean_mm, variance**0.5, volume_mm3, area_mm2)


@dataclass(frozen=True, eq=False)
class _SurfacePoints:
    """Points of a surface and the surface's normals at these points, (N, 3) each.

    The points are the positions, in mm, at which the surface crosses the lines between voxels.
    Normals are unit vectors.
    """

    points: _Points
    normals: _Points

    def distances_mm(self, places: _Points, gap_mm: float) -> tuple[_Points, _Points]:
        """Return the distances (M,) in mm of positions from the surface, and unit vectors to it.

        `places` (M, 3) are the positions in mm. Distances and unit vectors (M, 3) are measured to
        the nearest of the surface's stored points. This point usually lies somewhat beside the
        nearest position on the surface itself. Therefore the part of the way that is parallel to
        the surface, at most `gap_mm` of it, is left out of the distance.
        """
        reach, nearest = cKDTree(self.points).query(places)
        way = self.points[nearest] - places
        along = np.abs((way * self.normals[nearest]).sum(axis=1))
        beside = np.sqrt(np.maximum(reach**2 - along**2, 0))
        distances = np.sqrt(np.maximum(reach**2 - np.minimum(beside, gap_mm) ** 2, 0))
        directions = way / np.maximum(reach, 1e-6)[:, None]
        return distances, directions


def sheet_thickness(inside: Volume, cortex: Volume) -> Volume:
    """Return the thickness of a sheet of cortex in mm, float32; 0 where nothing was measured.

    Parameters
    ----------
    inside, cortex
        Probabilities of everything that the sheet surrounds, and of the sheet itself, on one grid.
        Call this for each hemisphere on its own.

    Returns
    -------
    Volume
        Thickness at each voxel whose probability of cortex is at least `LEAST_CORTEX`: the distance
        from the voxel to the inner surface and from there to the outer one.
    """
    thickness = np.zeros(cortex.shape, np.float32)
    box = occupied_box(cortex.data >= LEAST_CORTEX)
    if not is_empty(box):
        box = grown(box, cortex.shape, _MARGIN)
        part = thickness[box]
        affine = cortex.grid.cut(box).affine
        _write_thickness(inside.data[box], cortex.data[box], affine, part)
    return Volume(thickness, cortex.affine)


def _write_thickness(
    inside: _Field, cortex: _Field, affine: NDArray[np.float64], thickness: _Field
) -> None:
    """Write the thickness in mm of the voxels that can be measured into `thickness`, (X, Y, Z).

    `cortex` (X, Y, Z) is the probability of cortex, and `inside` (X, Y, Z) that of everything that
    the cortex surrounds. `affine` maps voxels to mm.
    """
    spacing_mm = np.linalg.norm(affine[:3, :3], axis=0)
    gap_mm = float(spacing_mm.max()) * 0.6
    inner_field = inside - 0.5
    outer_field = inside + cortex - 0.5
    inner = _surface_points(inner_field, affine)
    outer = _surface_points(outer_field, affine)
    measured = cortex >= LEAST_CORTEX
    if not len(inner.points) or not measured.any():
        return
    voxels = np.argwhere(measured)
    places = voxels @ affine[:3, :3].T + affine[:3, 3]
    depth, towards = inner.distances_mm(places, gap_mm)
    depth[inner_field[measured] > 0] *= -1
    middle = _sulcus_middles(measured, places, depth, towards, spacing_mm)
    outer = _SurfacePoints(
        np.concatenate([outer.points, middle.points]),
        np.concatenate([outer.normals, middle.normals]),
    )
    if not len(outer.points):
        return
    rest, _ = outer.distances_mm(places, gap_mm)
    rest[outer_field[measured] <= 0] *= -1
    thickness[measured] = np.clip(depth + rest, *THICKNESS_RANGE_MM)


def _surface_points(field: _Field, affine: NDArray[np.float64]) -> _SurfacePoints:
    """Return the points at which a field (X, Y, Z) changes its sign along lines between voxels.

    `affine` maps voxels to mm.
    """
    # Across a grid that is one voxel wide there is no gradient.
    gradient = np.zeros((*field.shape, 3), field.dtype)
    for axis, length in enumerate(field.shape):
        if length > 1:
            gradient[..., axis] = np.gradient(field, axis=axis)
    is_positive = field > 0
    points = []
    normals = []
    for axis in range(3):
        step = np.zeros(3, np.int64)
        step[axis] = 1
        before = np.moveaxis(is_positive, axis, 0)[:-1]
        after = np.moveaxis(is_positive, axis, 0)[1:]
        crossed = np.argwhere(np.moveaxis(before != after, 0, axis))
        first = tuple(crossed.T)
        second = tuple((crossed + step).T)
        share = field[first] / (field[first] - field[second])
        points.append(crossed + share[:, None] * step)
        normals.append(
            gradient[first] + share[:, None] * (gradient[second] - gradient[first])
        )
    # Convert gradients per voxel to gradients per mm along the world's axes. They are covectors, so
    # the inverse matrix applies.
    inverse = np.linalg.inv(affine[:3, :3])
    normal = np.concatenate(normals) @ inverse
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    places = np.concatenate(points) @ affine[:3, :3].T + affine[:3, 3]
    return _SurfacePoints(places, normal / np.maximum(length, 1e-6))


def _sulcus_middles(
    measured: NDArray[np.bool_],
    places: _Points,
    depth: NDArray[np.float64],
    towards: _Points,
    spacing_mm: NDArray[np.float64],
) -> _SurfacePoints:
    """Return the middle between the banks of closed sulci, as points of the outer surface.

    These points lie between two neighbouring voxels whose nearest inner surfaces are in opposite
    directions. `measured` (X, Y, Z) marks the N voxels of cortex, and `places` (N, 3) are their
    positions in mm. `depth` (N,) and `towards` (N, 3) are the distance in mm and the direction from
    these voxels to the inner surface.
    """
    number = np.full(measured.shape, -1, np.int32)
    number[measured] = np.arange(len(places))
    points = []
    normals = []
    for axis in range(3):
        before = np.moveaxis(number, axis, 0)[:-1]
        after = np.moveaxis(number, axis, 0)[1:]
        both = (before >= 0) & (after >= 0)
        one, other = before[both], after[both]
        least_mm = _CLOSED_FROM * spacing_mm[axis]
        is_middle = (depth[one] > least_mm) & (depth[other] > least_mm)
        is_middle &= (towards[one] * towards[other]).sum(axis=1) < 0
        one, other = one[is_middle], other[is_middle]
        apart = towards[other] - towards[one]
        apart /= np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-6)
        way = places[other] - places[one]
        # Between the two voxels, depth increases towards the middle along `apart` only.
        across = np.abs((way * apart).sum(axis=1))
        share = 0.5 + (depth[other] - depth[one]) / (2 * np.maximum(across, 1e-6))
        points.append(places[one] + np.clip(share, 0, 1)[:, None] * way)
        normals.append(apart)
    return _SurfacePoints(np.concatenate(points), np.concatenate(normals))
