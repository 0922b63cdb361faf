"""How tissue is shifted between two images of one head: a smooth flow, in voxels.

After rigid alignment, scans of one person differ little: by tissue that was lost, and by fluid that
took its place. In a window around each voxel the flow is the shift that explains best how the
images differ there (Lucas and Kanade 1981), found in three rounds. Where the window shows no edge,
nothing says how it moved, and the flow is near 0.

A flow is a tensor (3, X, Y, Z): voxel x of the first image is at x + flow(x) in the second.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, grid_sample, interpolate, pad

__all__ = ["find_flow", "inverse_of", "warped"]

# The window's standard deviation. Smaller ones follow noise, larger ones lose what is thin.
_WINDOW_MM = 2.5
# What an edge must weigh, as the square of a slope per mm, before a flow is taken from it.
_LEAST_SLOPE = 4e-4
_ROUNDS = 3
# Equations are summed in cells of this many voxels along each axis.
_CELL = 2
# No tissue is shifted further than this from one round to the next.
_MOST_STEP_MM = 2.0
_INVERSE_ROUNDS = 2


def find_flow(first: Tensor, second: Tensor, rounds: int = _ROUNDS) -> Tensor:
    """The flow from one image (X, Y, Z) to another on the same grid of 1 mm.

    Both have the same brightness.
    """
    flow = _step(first, second)
    for _ in range(rounds - 1):
        moved = warped(second[None], flow)[0]
        flow = flow + _step(first, moved)
    return flow


def _step(first: Tensor, moved: Tensor) -> Tensor:
    """The shift (3, X, Y, Z) that brings an image nearer to the first."""
    slopes = torch.gradient((first + moved) / 2)
    residual = moved - first
    means = [_in_window(slope) for slope in slopes]
    mean_residual = _in_window(residual)
    # Covariances, not products: a window that is brighter in one image is not shifted.
    sums = {}
    for row in range(3):
        for column in range(row, 3):
            product = _in_window(slopes[row] * slopes[column])
            sums[row, column] = product - means[row] * means[column]
    right = []
    for slope, mean in zip(slopes, means, strict=True):
        right.append(_in_window(slope * residual) - mean * mean_residual)
    step = _solved(sums, right).clamp_(-_MOST_STEP_MM, _MOST_STEP_MM)
    fine = interpolate(step[None], scale_factor=_CELL, mode="trilinear")[0]
    # Sides that are no multiple of a cell end within the last one.
    x, y, z = first.shape
    return fine[:, :x, :y, :z]


def _in_window(values: Tensor) -> Tensor:
    """Means (X/2, Y/2, Z/2) of values around each cell, weighted by a Gaussian."""
    cells = avg_pool3d(values[None, None], _CELL, ceil_mode=True)[0, 0]
    return smoothed(cells, _WINDOW_MM / _CELL)


def smoothed(values: Tensor, sigma: float) -> Tensor:
    """Values (X, Y, Z) smoothed by a Gaussian; what is beyond the edge repeats the edge."""
    reach = max(1, round(3 * sigma))
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float32)
    distances = offsets / sigma
    weights = torch.exp(-0.5 * distances**2)
    weights = weights / weights.sum()
    for _ in range(3):
        length = values.shape[-1]
        lines = values.reshape(1, 1, -1, length)
        padded = pad(lines, (reach, reach, 0, 0), mode="replicate")[0, 0]
        total = torch.zeros_like(lines[0, 0])
        for place, weight in enumerate(weights.tolist()):
            total.add_(padded[:, place : place + length], alpha=weight)
        total = total.reshape(values.shape)
        # The next axis comes last: after three turns all are in place.
        values = total.permute(2, 0, 1).contiguous()
    return values


def _solved(sums: dict[tuple[int, int], Tensor], right: list[Tensor]) -> Tensor:
    """The solution (3, X, Y, Z) of three damped equations in each cell, by Cramer's rule."""
    a = sums[0, 0] + _LEAST_SLOPE
    b = sums[1, 1] + _LEAST_SLOPE
    c = sums[2, 2] + _LEAST_SLOPE
    d = sums[0, 1]
    e = sums[0, 2]
    f = sums[1, 2]
    # Cofactors of the symmetric matrix.
    aa = b * c - f * f
    bb = a * c - e * e
    cc = a * b - d * d
    ab = e * f - d * c
    ac = d * f - e * b
    bc = d * e - a * f
    determinant = a * aa + d * ab + e * ac
    x, y, z = right
    solution = torch.stack(
        (
            aa * x + ab * y + ac * z,
            ab * x + bb * y + bc * z,
            ac * x + bc * y + cc * z,
        )
    )
    return solution.div_(-determinant)


def warped(values: Tensor, flow: Tensor) -> Tensor:
    """Values (C, X, Y, Z) where a flow leads from each voxel; beyond the edge the edge goes on."""
    shape = values.shape[1:]
    grid = torch.empty(1, *shape, 3, device=flow.device)
    for axis, length in enumerate(shape):
        view = [1, 1, 1]
        view[axis] = length
        indices = torch.arange(length, dtype=torch.float32, device=flow.device)
        places = indices.view(view) + flow[axis]
        # The sampler's last axis comes first; its first voxel is at -1 and its last one at 1.
        places.mul_(2 / (length - 1)).sub_(1)
        grid[0, ..., 2 - axis] = places
    found = grid_sample(values[None], grid, padding_mode="border", align_corners=True)
    return found[0]


def inverse_of(flow: Tensor) -> Tensor:
    """The flow that leads back: x + flow(x) goes to x."""
    inverse = -flow
    for _ in range(_INVERSE_ROUNDS):
        inverse = -warped(flow, inverse)
    return inverse
