"""Conform scans to the working grid, and restore results to the scan's own grid.

The working grid has RAS axes along those of the world, 1 mm apart, and is centred on the head.
Interpolation is avoided where possible: a 1 mm scan whose axes are only reordered keeps every
voxel in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import (
    Box,
    Grid,
    Shape,
    is_empty,
    occupied_box,
    to_box,
    to_shape,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import BRIGHTEST, TISSUE, on_working_scale
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.morphology import largest_part
from trinat.segmentation.space.resample import (
    resample_image,
    resample_labels,
    resample_probabilities,
)
from trinat.segmentation.space.views import reoriented, reoriented_grid

_Mask = NDArray[np.bool_]
# First voxel of each cell along one axis, and the end of the last cell, in ascending order.
_Ends = NDArray[np.int_]

# Orientation of the working grid, and of every scan before it is resampled.
_AXES = "RAS"
_GRID_MM = 1.0
_DEFAULT_SHAPE = (256, 256, 256)
_LARGEST = 256
# Networks halve a side four times, so it must be a multiple of this.
_SIDE_MULTIPLE = 16
_SAME_MM = 1e-3
# Subtracted before rounding, so that a shift of exactly half a voxel is always rounded down.
_ROUNDING = 1e-6
# Tolerance, in voxels, in rounding margins and cells: the voxel sizes of an oblique scan of 1 mm
# differ from 1 by rounding.
_SAME_VOXELS = 0.01
# Margin around the head: some scalp and air above the brain.
_MARGIN_MM = 10.0
# The head is searched in cells of about this size, in which noise averages out.
_CELL_MM = 4.0
# Height of a head that is searched for the brain. From the top of the scalp to the lowest part of
# the brain it is under 180 mm, and under 200 mm in a head bent by 30°.
_HEAD_HEIGHT_MM = 210.0


@dataclass(frozen=True, eq=False)
class ConformPlan:
    """The scan's own grid, and the working grid (RAS axes, 1 mm) that it was resampled to.

    `codes` are the (q-form, s-form) codes to write for the scan. A plan holds no voxels, so it is
    cheap to keep for as long as results may be restored.
    """

    scan: Grid
    codes: tuple[int, int]
    working: Grid

    def cropped(self, box: Box) -> ConformPlan:
        """Return the plan for a box of its 1 mm grid."""
        return replace(self, working=self.working.cut(box))

    @property
    def voxel_sides_mm(self) -> tuple[float, float, float]:
        """Sides of the scan's voxels along each axis of the 1 mm grid, in mm.

        Each axis of an oblique scan counts as the nearest axis of the grid.
        """
        return reoriented_grid(self.scan, self.working.axcodes).spacing_mm

    @property
    def to_upright_scan(self) -> GridMap:
        """Map between the 1 mm grid and the scan's voxels, with the scan's axes in RAS order."""
        return GridMap.between(self.working, reoriented_grid(self.scan, _AXES))

    def as_scan(self, data: NDArray[Any], notes: tuple[str, ...] = ()) -> Volume:
        """Return an array in RAS order as a volume with the scan's own axes and header codes.

        `data` has the scan's voxels; none is resampled.
        """
        upright = Volume(data, reoriented_grid(self.scan, _AXES).affine)
        found = reoriented(upright, self.scan.axcodes).data
        return Volume(np.ascontiguousarray(found), self.scan.affine, self.codes, notes)


@dataclass(frozen=True, eq=False)
class Conformed:
    """A volume on the working grid, and the plan that restores maps on it to the scan.

    The volume has RAS axes, unless a model needs others, and voxels of 1 mm.
    """

    volume: Volume
    plan: ConformPlan


class _Extent(NamedTuple):
    """An axis-aligned box in the world: its lowest and highest coordinates, (3,), in RAS mm."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def centre(self) -> NDArray[np.float64]:
        """Centre of the box, (3,), in RAS mm."""
        return (self.low + self.high) / 2

    def fits(self, size_mm: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return along which axes the box is no larger than `size_mm`, (3,)."""
        return self.high - self.low <= size_mm + _SAME_MM


def conform(
    volume: Volume,
    *,
    labels: bool = False,
    plan: ConformPlan | None = None,
    shape: Shape | None = _DEFAULT_SHAPE,
) -> Conformed:
    """Resample a scan, or with `labels` a label map, to the working grid: RAS axes, voxels of 1 mm.

    The voxels of a scan become float32: 0 in empty background, about 1 at the bright end of the
    tissue, at most 2. Labels keep their type and numbers.

    With `plan`, the grid is that of an earlier result: give the plan of a scan to conform the
    scan's label map to the same grid. Otherwise the grid has the given `shape`. If `shape` is None,
    it is only as large as the box around the head, in multiples of 16. Raises GeometryError if the
    volume is not on the grid of the plan's scan, and the errors of `on_working_scale`.
    """
    if plan is not None:
        _require_grid(volume, plan.scan, "the scan that its plan was made for")
    # Reorder to RAS first, so that results do not depend on the order of the scan's axes.
    upright = reoriented(volume, _AXES)
    content = upright if labels else on_working_scale(upright)
    if plan is None:
        working = _working_grid(upright.grid, content, labels, shape)
        plan = ConformPlan(volume.grid, volume.codes, working)
    to_working = GridMap.between(content.grid, plan.working)
    data: NDArray[Any]
    if labels:
        data = resample_labels(content.data, to_working)
    else:
        data = resample_image(content.data, to_working, stay_sharp=True)
        np.clip(data, 0, BRIGHTEST, out=data)
    conformed = Volume(data, plan.working.affine, volume.codes, volume.notes)
    return Conformed(conformed, plan)


def restore(volume: Volume, plan: ConformPlan, *, labels: bool) -> Volume:
    """Resample a volume from the 1 mm working grid back to the scan's own grid.

    With `labels` it holds labels, which keep their type; otherwise it holds values, which become
    float32. Voxels outside of the working grid are 0. Raises GeometryError if the volume is not on
    the plan's working grid.
    """
    _require_grid(volume, plan.working, "the working grid of its plan")
    resample = resample_labels if labels else resample_image
    data = resample(volume.data, plan.to_upright_scan)
    return plan.as_scan(data, volume.notes)


def restore_probabilities(probabilities: NDArray[Any], plan: ConformPlan) -> Volume:
    """Return the most probable class of each voxel on the scan's own grid, uint8.

    `probabilities` (K, X, Y, Z) are on the working grid of `plan`, which has voxels of 1 mm. The
    probabilities are interpolated, not labels. In each voxel they sum to 1, or to 0 if they are
    unknown. Voxels with unknown probabilities, or outside of the working grid, get class 0. Raises
    GeometryError if the shape is not that of the working grid.
    """
    if probabilities.shape[1:] != plan.working.shape:
        raise GeometryError(
            f"probabilities of {probabilities.shape[1:]} voxels on a grid of {plan.working.shape}",
            remedy="restore them with the plan that they were made by",
        )
    classes = resample_probabilities(probabilities, plan.to_upright_scan)
    return plan.as_scan(classes)


def _working_grid(
    scan: Grid, content: Volume, labels: bool, shape: Shape | None
) -> Grid:
    """Return the grid of 1 mm, RAS, to which a scan is resampled: the working grid.

    It is centred on the field of view along axes that `shape` encloses, and on the head along the
    others. `content` is the scan without its padding, scaled to 0 in the background and about 1 in
    the brightest tissue, or with `labels` the label map. If `shape` is None, the grid encloses the
    head's box.
    """
    field_of_view = _Extent(*scan.extent_mm(scan.box))
    if shape is not None and field_of_view.fits(_size_mm(shape)).all():
        return _grid_over(field_of_view, field_of_view, shape)
    box = occupied_box(content.data != 0) if labels else head_box(content)
    if is_empty(box):
        box = content.grid.box
    head = _Extent(*content.grid.extent_mm(box))
    if shape is not None:
        return _grid_over(field_of_view, head, shape)
    # The position depends on the head and not on the field of view, so that networks see the head
    # on the same voxels whatever is cropped or added around it.
    multiples = (head.high - head.low) / _GRID_MM / _SIDE_MULTIPLE
    sides = np.ceil(multiples - _SAME_MM) * _SIDE_MULTIPLE
    shape = to_shape(np.minimum(sides, _LARGEST).astype(int))
    return _grid_over(head, head, shape)


def _grid_over(whole: _Extent, content: _Extent, shape: Shape) -> Grid:
    """Return the grid of this shape, with RAS axes and 1 mm, around a scan.

    It is centred on `whole` along the axes that fit in it, and on `content` along the others. Faces
    of the grid's voxels have a distance of whole mm from the lowest faces of `whole`, so that scans
    with voxels of 1 mm need no interpolation, and voxels of half the size nest.
    """
    size_mm = _size_mm(shape)
    centre = np.where(whole.fits(size_mm), whole.centre, content.centre)
    # A scan that is too tall has no brain at its lower end, so keep its top.
    if content.high[2] - content.low[2] > size_mm[2]:
        centre[2] = content.high[2] - size_mm[2] / 2
    # Round the shift so that the grid's face is a whole number of voxels away from the scan's face.
    face = whole.low
    wanted_shift_mm = centre - size_mm / 2 - face
    shift_voxels = wanted_shift_mm / _GRID_MM
    shift_mm = np.rint(shift_voxels - _ROUNDING) * _GRID_MM
    affine = np.diag([_GRID_MM, _GRID_MM, _GRID_MM, 1.0])
    # The centre of the first voxel is half a voxel behind the face.
    affine[:3, 3] = face + shift_mm + _GRID_MM / 2
    return Grid(shape, affine)


def _size_mm(shape: Shape) -> NDArray[np.float64]:
    """Return the size of a grid with voxels of 1 mm and this shape along each axis, (3,), in mm."""
    return np.array(shape) * _GRID_MM


def _require_grid(volume: Volume, grid: Grid, what: str) -> None:
    """Raise GeometryError if a volume does not lie on a grid, within a thousandth of a millimetre.

    `what` describes the grid in the message.
    """
    apart_mm = volume.grid.apart_mm(grid)
    if apart_mm > _SAME_MM:
        problem = (
            f"its grid of {volume.shape} voxels is not that of {what}, {grid.shape}"
        )
        if volume.shape == grid.shape:
            problem += f", but up to {apart_mm:.3g} mm off"
        raise GeometryError(problem, remedy="give volumes that belong together")


def head_box(image: Volume, *, margin_mm: float = _MARGIN_MM) -> Box:
    """Return the box around the head in an image with a background of 0, in voxels.

    The brightest tissue of the image is about 1. The box includes a margin, which may extend beyond
    the image. Neck and shoulders, which are lower than any brain, are left out. Without a clear
    head it is the whole image.
    """
    spacing = np.array(image.spacing_mm)
    nearest = np.rint(_CELL_MM / spacing - _SAME_VOXELS)
    steps = np.maximum(1, nearest).astype(int)
    tissue = image.data > TISSUE
    if not tissue.any():
        return image.grid.box
    bounds = [_cell_bounds(tissue, axis, int(step)) for axis, step in enumerate(steps)]
    head = _head_cells(image.data, bounds)
    if head is None:
        return image.grid.box
    cells = occupied_box(_above_the_neck(head, image, bounds))
    margins = np.ceil(margin_mm / spacing - _SAME_VOXELS).astype(int)
    sides = []
    for cell_side, ends, margin in zip(cells, bounds, margins, strict=True):
        start = ends[cell_side.start] - margin
        stop = ends[cell_side.stop] + margin
        sides.append(slice(int(start), int(stop)))
    return to_box(sides)


def _cell_bounds(tissue: _Mask, axis: int, step: int) -> _Ends:
    """Return the first voxel of each cell along an axis, and the end of the last cell.

    `tissue` (X, Y, Z) is a mask; cells are `step` voxels long. One cell begins at the plane that
    halves the tissue, so that cells hold the same voxels whatever the field of view is. The first
    and the last cell may extend beyond the image.
    """
    other_axes = tuple(other for other in range(3) if other != axis)
    counts = np.count_nonzero(tissue, axis=other_axes)
    running = np.cumsum(counts)
    middle = int(running.searchsorted(running[-1] / 2))
    first = -(-middle % step)
    return np.arange(first, tissue.shape[axis] + step, step)


def _head_cells(data: NDArray[Any], bounds: Sequence[_Ends]) -> _Mask | None:
    """Return a mask of the cells of the largest component of tissue; None if there is none.

    `data` (X, Y, Z) is an image whose background is 0 and whose brightest tissue is about 1, and
    `bounds` has the bounds of the cells along each axis.
    """
    # Mean of each cell; the image is 0 outside of its field of view.
    means = data
    for axis, ends in enumerate(bounds):
        starts = np.maximum(ends[:-1], 0)
        sums = np.add.reduceat(means, starts, axis=axis, dtype=np.float64)
        means = sums / (ends[1] - ends[0])
    tissue = means > TISSUE
    # Components of one cell across are wrap-around ghosts, markers or noses, not heads.
    solid = ndimage.binary_opening(tissue)
    if not solid.any():
        return None
    # Restore what opening removed from the surface of the head.
    return np.asarray(ndimage.binary_dilation(largest_part(solid)) & tissue)


def _above_the_neck(head: _Mask, image: Volume, bounds: Sequence[_Ends]) -> _Mask:
    """Return the part of a mask of cells that is less than a head's height below its top.

    `bounds` has the bounds of the cells along each axis of `image`.
    """
    # The third row of the affine gives the height of a voxel; its offset does not matter here.
    up_x, up_y, up_z = image.affine[2, :3]
    i, j, k = np.ix_(*(ends[:-1] for ends in bounds))
    heights_mm = up_x * i + up_y * j + up_z * k
    top_mm = heights_mm[head].max()
    return np.asarray(head & (heights_mm > top_mm - _HEAD_HEIGHT_MM))
