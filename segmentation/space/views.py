"""Conversion of volumes to slices and back; the only place that defines the axes of the views.

On the working grid i grows to the right, j to the front and k upwards (RAS). No axis is flipped,
so slices are views into the volume's memory, for NumPy and torch alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.grid import Grid, to_shape, world_axes

if TYPE_CHECKING:
    import torch

    from trinat.segmentation.io.volume import Volume

# An axis of an array (0, 1 or 2), and whether it runs in the same direction (1) or not (-1).
DirectedAxis = tuple[int, int]
_Array = TypeVar("_Array", NDArray[Any], "torch.Tensor")


class View(Enum):
    """Anatomical slicing direction; the value is its name in settings and files.

    An axial slice is seen from above or below, a coronal one from the front, a sagittal one from
    the side.
    """

    CORONAL = "coronal"
    AXIAL = "axial"
    SAGITTAL = "sagittal"


def chosen_views(views: Iterable[View | str] | str | None) -> tuple[View, ...] | None:
    """Convert names, a single name or views to a tuple of views; None, for all views, stays None.

    Raises ConfigError for an unknown view.
    """
    if views is None:
        return None
    given = [views] if isinstance(views, str) else views
    try:
        return tuple(View(view) for view in given)
    except (TypeError, ValueError):
        names = ", ".join(view.value for view in View)
        raise ConfigError(
            f"unknown view: {views!r}", remedy=f"choose from {names}"
        ) from None


class SliceAxes(NamedTuple):
    """The axes of a volume (0, 1 or 2) along which slices are stacked, and their rows and columns.

    `along` is the axis from slice to slice; the row index of a slice runs along axis `rows`, the
    column index along axis `columns`. The three are a permutation of 0, 1, 2.
    """

    along: int
    rows: int
    columns: int


_AXES = {
    View.CORONAL: SliceAxes(along=1, rows=2, columns=0),
    View.AXIAL: SliceAxes(along=2, rows=1, columns=0),
    View.SAGITTAL: SliceAxes(along=0, rows=2, columns=1),
}


def slice_axes(view: View | SliceAxes) -> SliceAxes:
    """Return the axes of an RAS volume that become slices, rows and columns of a view.

    Given axes are returned unchanged.
    """
    return _AXES[view] if isinstance(view, View) else view


def to_slices(array: _Array, view: View | SliceAxes, *, trailing: int = 0) -> _Array:
    """Return a volume (..., X, Y, Z) as slices (N, ..., H, W), without copying.

    The array may have further axes after X, Y, Z, for example of classes: `trailing` is their
    number, and they stay last. For a network trained on slices of another orientation, give its own
    `SliceAxes` as `view`.
    """
    axes = slice_axes(view)
    leading: int = array.ndim - 3 - trailing
    along = leading + axes.along
    rows = leading + axes.rows
    columns = leading + axes.columns
    last: range = range(leading + 3, array.ndim)
    return _permute(array, (along, *range(leading), rows, columns, *last))


def from_slices(slices: _Array, view: View | SliceAxes) -> _Array:
    """Return slices (N, ..., H, W) as a volume (..., X, Y, Z): the inverse of `to_slices`."""
    axes = slice_axes(view)
    leading: int = slices.ndim - 3
    # Position of each volume axis in the slices: N comes first, H and W last.
    held_at = {axes.along: 0, axes.rows: leading + 1, axes.columns: leading + 2}
    volume_axes: tuple[int, ...] = tuple(held_at[axis] for axis in range(3))
    return _permute(slices, (*range(1, leading + 1), *volume_axes))


def source_axes(given: str, wanted: str) -> tuple[DirectedAxis, ...]:
    """Return how an array with the orientation `given` is reordered to the orientation `wanted`.

    Both are codes such as "LIA". For each axis of the wanted array, the result has the axis of the
    given array and its direction: 1 if both run in the same direction, else -1.
    """
    given_axes: dict[int, DirectedAxis] = {}
    for axis, (world, direction) in enumerate(world_axes(given)):
        given_axes[world] = axis, direction
    found = []
    for world, wanted_direction in world_axes(wanted):
        axis, direction = given_axes[world]
        found.append((axis, wanted_direction * direction))
    return tuple(found)


def turned(array: NDArray[Any], axes: Sequence[DirectedAxis]) -> NDArray[Any]:
    """Reorder and flip the axes of an array (X, Y, Z) or (X, Y, Z, ...), without copying.

    `axes` has, for each axis of the result, the axis of the array and its direction, 1 or -1.
    """
    order = (*(axis for axis, _ in axes), *range(3, array.ndim))
    directions = tuple(slice(None, None, direction) for _, direction in axes)
    return _permute(array, order)[directions]


def reoriented(volume: Volume, axes: str) -> Volume:
    """Return a volume with its array reordered to the orientation `axes`, such as "RAS".

    Each voxel stays at its position in space, and none is resampled. The data may be a view of the
    given array. A volume that has this orientation is returned itself.
    """
    if volume.axcodes == axes:
        return volume
    data = turned(volume.data, source_axes(volume.axcodes, axes))
    return replace(volume, data=data, affine=reoriented_grid(volume.grid, axes).affine)


def reoriented_grid(grid: Grid, axes: str) -> Grid:
    """Return the grid of the same voxels, indexed in the orientation `axes`, such as "RAS"."""
    # The matrix maps new voxel indices to old ones. A flipped axis counts from the old one's last
    # voxel: old = length - 1 - new.
    to_given = np.diag([0.0, 0, 0, 1])
    lengths = []
    for axis, (source, direction) in enumerate(source_axes(grid.axcodes, axes)):
        to_given[source, axis] = direction
        if direction < 0:
            to_given[source, 3] = grid.shape[source] - 1
        lengths.append(grid.shape[source])
    return Grid(to_shape(lengths), grid.affine @ to_given)


def _permute(array: _Array, order: tuple[int, ...]) -> _Array:
    """Permute the axes of an array or tensor, whose methods for it have different names."""
    if isinstance(array, np.ndarray):
        return array.transpose(order)
    return array.permute(order)
