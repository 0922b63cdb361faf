"""Volumes to slices and back, and to other axes: the only place where a volume's are permuted.

On the working grid i grows to the right, j to the front and k upwards (RAS). No axis is turned
round, so that slices are views into the volume's memory, for NumPy and torch alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.space.grid import world_axes

if TYPE_CHECKING:
    import torch

    from trinat.segmentation.io.volume import Volume

_Array = TypeVar("_Array", NDArray[Any], "torch.Tensor")


class View(Enum):
    """An anatomical direction to cut in."""

    CORONAL = "coronal"
    AXIAL = "axial"
    SAGITTAL = "sagittal"


def chosen_views(views: Iterable[View | str] | str | None) -> tuple[View, ...] | None:
    """Views or their names, also one name by itself; None, for all, stays None."""
    try:
        views = [views] if isinstance(views, str) else views
        return None if views is None else tuple(View(view) for view in views)
    except (TypeError, ValueError) as error:
        names = ", ".join(view.value for view in View)
        raise ConfigError(str(error), remedy=f"choose from {names}") from None


class SliceAxes(NamedTuple):
    """Axes of a volume (0, 1 or 2) that slices, their rows and their columns run along."""

    along: int
    rows: int
    columns: int


_AXES = {
    View.CORONAL: SliceAxes(along=1, rows=2, columns=0),
    View.AXIAL: SliceAxes(along=2, rows=1, columns=0),
    View.SAGITTAL: SliceAxes(along=0, rows=2, columns=1),
}


def slice_axes(view: View) -> SliceAxes:
    """Which axes of an RAS volume become slices, rows and columns."""
    return _AXES[view]


def to_slices(array: _Array, view: View | SliceAxes, *, trailing: int = 0) -> _Array:
    """Volume (..., X, Y, Z) as slices (N, ..., H, W), without a copy.

    So many `trailing` axes, of classes, come behind X, Y, Z, and stay behind. A network trained
    elsewhere, on slices of another orientation, brings its own `SliceAxes`.
    """
    axes = slice_axes(view) if isinstance(view, View) else view
    leading: int = array.ndim - 3 - trailing
    along, rows, columns = (leading + axis for axis in axes)
    last: range = range(leading + 3, array.ndim)
    return _permute(array, (along, *range(leading), rows, columns, *last))


def from_slices(slices: _Array, view: View | SliceAxes) -> _Array:
    """Slices (N, ..., H, W) as volume (..., X, Y, Z), without a copy; inverts `to_slices`."""
    axes = slice_axes(view) if isinstance(view, View) else view
    leading: int = slices.ndim - 3
    # Where slices hold each axis of the volume: N comes first, H and W last.
    held_at = {axes.along: 0, axes.rows: leading + 1, axes.columns: leading + 2}
    return _permute(
        slices, (*range(1, leading + 1), held_at[0], held_at[1], held_at[2])
    )


def source_axes(given: str, wanted: str) -> tuple[tuple[int, int], ...]:
    """For each axis of an array that runs as `wanted` ("LIA"), which axis of one that runs as
    `given` it is, and whether in the same direction (1) or not (-1)."""
    have = {world: (axis, sign) for axis, (world, sign) in enumerate(world_axes(given))}
    return tuple(
        (have[world][0], sign * have[world][1]) for world, sign in world_axes(wanted)
    )


def turned(array: NDArray[Any], axes: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """An array (X, Y, Z) with its axes in another order and direction, without a copy."""
    order, signs = zip(*axes, strict=True)
    return _permute(array, order)[tuple(slice(None, None, sign) for sign in signs)]


def reoriented(volume: Volume, axes: str) -> Volume:
    """The same voxels in the same places, in an array whose axes run as `axes` say."""
    if volume.axcodes == axes:
        return volume
    way = source_axes(volume.axcodes, axes)
    back = np.diag([0.0, 0, 0, 1])
    for axis, (source, sign) in enumerate(way):
        back[source, axis] = sign
        back[source, 3] = 0 if sign > 0 else volume.shape[source] - 1
    return replace(volume, data=turned(volume.data, way), affine=volume.affine @ back)


def _permute(array: _Array, order: tuple[int, ...]) -> _Array:
    return (
        array.transpose(order)
        if isinstance(array, np.ndarray)
        else array.permute(order)
    )
