"""Linear interpolation of an image on another grid, by torch.

256³ by linear interpolation, processor seconds of one thread: aligned 0.40 by matrices here, 0.27
by sparse ones, 0.54 by scipy's affine_transform; oblique 0.91 here, 0.98 by scipy. This code runs
on several threads; sparse matrices and scipy do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag, grid_sample

from trinat.segmentation.grid import Shape
from trinat.segmentation.space.grid_map import GridMap

# An offset from a voxel's centre, in voxels along each axis.
Point = tuple[float, ...]

_SLAB_VOXELS = 2**20
# An axis whose blur has a smaller variance, in voxels², is not sharpened.
_LEAST_BLUR = 1e-3


def interpolate(source: Tensor, to: GridMap) -> Tensor:
    """Interpolate an image (X, Y, Z), float32, linearly on the target grid of a map.

    A target voxel is the mean of its sample points. The image counts as 0 outside; values fade to 0
    over one voxel.
    """
    axes = to.source_axes
    if axes is None:
        return _interpolate_oblique(source, to)
    return _interpolate_aligned(source, to, axes)


def sharpened(source: Tensor, to: GridMap) -> Tensor:
    """Sharpen an image (X, Y, Z) by as much as `interpolate` will blur it on the target grid.

    Linear interpolation blurs along each axis by `GridMap.blur`. Cubic splines give equal results
    here, and take several times as long on oblique grids.
    """
    for axis, variance in enumerate(to.blur):
        if variance >= _LEAST_BLUR:
            source = _sharpen_along(source, axis, float(variance))
    return source


def _sharpen_along(source: Tensor, axis: int, variance: float) -> Tensor:
    """Subtract from an image what a blur of this variance, in voxels², would add along one axis.

    That is half the variance times each voxel's difference from its two neighbours. Edge voxels are
    repeated.
    """
    half = variance / 2
    last = source.shape[axis] - 1
    out = source * (1 + variance)
    out.narrow(axis, 1, last).sub_(source.narrow(axis, 0, last), alpha=half)
    out.narrow(axis, 0, last).sub_(source.narrow(axis, 1, last), alpha=half)
    for edge in (0, last):
        out.narrow(axis, edge, 1).sub_(source.narrow(axis, edge, 1), alpha=half)
    return out


def _interpolate_aligned(source: Tensor, to: GridMap, axes: list[int]) -> Tensor:
    """Interpolate between aligned grids, with a matrix of weights for each axis.

    `axes` are the `source_axes` of the map.
    """
    values = source.permute(axes)
    for target, axis in enumerate(axes):
        weights = _axis_weights(to, target, axis, source.shape[axis])
        # Each turn moves the new axis to the end, so that three turns restore the order.
        values = _weighted_along_first(values, weights)
    return values


def _weighted_along_first(values: Tensor, weights: Tensor) -> Tensor:
    """Multiply the first axis of values (n, ...) by weights (n, m), and move it last: (..., m).

    This is a separate function so that no copy of the values stays in memory after its axis.
    """
    rest = values.shape[1:]
    lines = values.reshape(len(values), -1)
    return (lines.T @ weights).reshape(*rest, -1)


def _axis_weights(to: GridMap, target: int, axis: int, length: int) -> Tensor:
    """Return the share of each source voxel in each target voxel along one axis, (length, size).

    `target` is an axis of the target grid, and `axis` is the axis of the source that runs along it,
    with `length` voxels.
    """
    step = to.matrix[axis, target]
    start = to.matrix[axis, 3]
    size = to.shape[target]
    points = to.points[target]
    voxels = np.arange(size)[:, None]
    # Source position of each sample point of each target voxel: (size, points).
    positions = start + step * (voxels + points)
    lower = np.floor(positions).astype(int)
    upper = lower + 1
    targets = np.broadcast_to(voxels, positions.shape)
    # Rows 0 and length + 1 collect shares outside of the source.
    weights = np.zeros((length + 2, size))
    count = len(points)
    _add_shares(weights, lower, targets, (upper - positions) / count)
    _add_shares(weights, upper, targets, (positions - lower) / count)
    return torch.from_numpy(weights[1:-1].astype(np.float32))


def _add_shares(
    weights: NDArray[np.float64],
    voxels: NDArray[np.int_],
    targets: NDArray[np.int_],
    shares: NDArray[np.float64],
) -> None:
    """Add the shares of source voxels in target voxels to a matrix of weights, in place.

    `weights` (length + 2, size) has an extra row at either end, for voxels outside of the source.
    `voxels`, `targets` and `shares` (size, points) are the source voxel, the target voxel and the
    share of each sample point.
    """
    last_row = len(weights) - 1
    rows = np.clip(voxels + 1, 0, last_row)
    np.add.at(weights, (rows, targets), shares)


def _interpolate_oblique(source: Tensor, to: GridMap) -> Tensor:
    """Interpolate by any affine map with torch's `grid_sample`.

    It is parallel over the items of a batch, so each plane of the target is an item.
    """
    out = torch.zeros(to.shape)
    image = source.contiguous()[None, None]
    # An axis of one voxel would cause a division by 0.
    lengths = torch.tensor(source.shape, dtype=torch.float64).clamp(min=2)
    points = sample_points(to)
    for rows in slabs(to.shape):
        for point in points:
            # The sampler has the first voxel of an axis at -1 and the last one at 1.
            scaled = []
            positions = source_positions(to, rows, point)
            for position, length in zip(positions, lengths, strict=True):
                scaled.append(2 * position / (length - 1) - 1)
            # Its last axis comes first. Each plane of the slab is a batch item of depth 1: (rows,
            # 1, Y, Z, 3).
            scaled.reverse()
            grid = torch.stack(scaled, -1)[:, None]
            images = image.expand(len(grid), -1, -1, -1, -1)
            out[rows] += grid_sample(images, grid, align_corners=True)[:, 0, 0]
    return out.div_(len(points))


def sample_points(to: GridMap) -> list[Point]:
    """Return the sample points of a target voxel, as offsets from its centre in voxels."""
    return list(product(*to.points))


def slabs(shape: Shape) -> Iterator[slice]:
    """Yield parts of the first axis of about a million voxels each, to bound memory use."""
    rows = max(1, _SLAB_VOXELS // (shape[1] * shape[2]))
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


def source_positions(to: GridMap, rows: slice, point: Point) -> list[Tensor]:
    """Return the positions in the source of a slab of the target, as an index along each axis.

    `rows` is the slab, a part of the first target axis, and `point` the sample point of its voxels.
    The result is three tensors (rows, Y, Z), float32. If the grids are aligned, each depends on
    only one target axis, and has length 1 along the others.
    """
    axes = to.source_axes
    # Indices of the slab's voxels, shifted by the sample point.
    _, y_size, z_size = to.shape
    along_x = np.arange(rows.start, rows.stop) + point[0]
    along_y = np.arange(y_size) + point[1]
    along_z = np.arange(z_size) + point[2]
    indices = np.ix_(along_x, along_y, along_z)
    positions = []
    for source_axis in range(3):
        targets = range(3) if axes is None else [axes.index(source_axis)]
        position = torch.tensor(to.matrix[source_axis, 3], dtype=torch.float32)
        for target in targets:
            step = to.matrix[source_axis, target]
            offset = (step * indices[target]).astype(np.float32)
            position = position + torch.from_numpy(offset)
        positions.append(position)
    return positions


def rows_at(values: Tensor, places: Tensor) -> Tensor:
    """Interpolate values (X, Y, Z, K) trilinearly at positions (N, 3) in voxels, giving (N, K).

    Edge values are repeated outside. Values must have a floating type, which the result has, too.
    In float16 the shares of voxels are rounded to a two-thousandth.
    """
    x, y, z, classes = values.shape
    rows, shares = _corner_voxels((x, y, z), places)
    # One pass over all eight corners: 5 ms for 16,384 positions and 33 classes; one by one 11 ms.
    return embedding_bag(
        rows,
        values.view(-1, classes),
        mode="sum",
        per_sample_weights=shares.to(values.dtype),
    )


def _corner_voxels(shape: Shape, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight voxels around each of positions (N, 3), and their shares, (N, 8) each.

    A voxel is given by its number in the flattened volume of this shape.
    """
    count = len(places)
    rows = torch.zeros(count, 1, dtype=torch.long, device=places.device)
    shares = torch.ones(count, 1, device=places.device)
    for axis, length in enumerate(shape):
        low = places[:, axis].floor()
        part = places[:, axis] - low
        lower = low.long()
        voxels = torch.stack((lower, lower + 1), 1).clamp_(0, length - 1)
        along = torch.stack((1 - part, part), 1)
        # Combine each corner so far with the voxel below and the one above.
        rows = (rows[:, :, None] * length + voxels[:, None]).flatten(1)
        shares = (shares[:, :, None] * along[:, None]).flatten(1)
    return rows, shares
