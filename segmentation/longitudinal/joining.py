"""Averaging of probabilities of several scans of one head, and transfer to each scan.

The networks answer a little differently each time, even where nothing has changed. Their
probabilities for a piece of tissue are averaged over all scans, along the flow from its
position in the template to its position in each scan. After that, scans differ only as far as
their images differ: by tissue that moved. Where an image shows something that the others do
not, such as a lesion or an artefact, the scan keeps its own probabilities.

Probabilities are tensors (X, Y, Z, K), float16. Flows and images are on the 1 mm grid of the
template, which is the mean image.

After rigid alignment, scans of one participant differ little: by tissue that was lost, and by fluid
that took its place. The flow at a voxel is the shift that explains best how the images differ
in a window around it (Lucas and Kanade 1981), found in three rounds. In a window without an
edge the movement is undetermined, and the flow is near 0. A flow is a tensor (3, X, Y, Z):
voxel x of the first image is at x + flow(x) in the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d, grid_sample, interpolate, pad

from trinat.segmentation.inference.fusion import most_probable
from trinat.segmentation.space.interpolation import rows_at

# A voxel is at a boundary if its most probable class is less probable than this.
_CERTAIN = 0.995
# Side of the cube, in voxels, over which an image's difference from the template is averaged.
_WINDOW = 5
# A scan begins to keep its own probabilities where its difference from the template is this
# multiple of the median difference, and keeps them entirely at twice this multiple.
_UNUSUAL = 6.0
# Voxels in which the template is brighter than this are in the head.
_BRIGHT = 0.2
# A smaller share of a scan's own probabilities is ignored.
_LEAST_OWN = 0.01
# Number of voxels that are changed at a time, chosen for a CPU's caches: a million voxels and 33
# classes take 0.5 s, and 1.3 s in pieces of half a million voxels.
_CHUNK = 1 << 14

# Standard deviation of the window of a flow. Smaller windows follow noise, larger ones lose thin
# structures.
_FLOW_WINDOW_MM = 2.5
# Damping of the flow, as the square of a slope of brightness per mm: weaker edges hardly change the
# flow.
_LEAST_SLOPE = 4e-4
_FLOW_ROUNDS = 3
# Side of the cells, in voxels, in which equations are summed.
_CELL = 2
# Largest shift of tissue from one round to the next.
_MOST_STEP_MM = 2.0
_INVERSE_ROUNDS = 2


def flows_from(template: Tensor, images: Sequence[Tensor]) -> list[Tensor]:
    """Return the flow from a template to each image: shifts of the voxels, (3, X, Y, Z).

    Shifts are in voxels. Template and images are (X, Y, Z). The mean of the flows is subtracted
    from each, so that the template is in the middle of all images.
    """
    flows = [find_flow(template, image) for image in images]
    mean = torch.stack(flows).mean(0)
    return [flow - mean for flow in flows]


@dataclass(frozen=True, eq=False)
class _OwnProbabilities:
    """Voxels in which a scan keeps a part of its own probabilities, not only the mean of all scans.

    `places` has the indices of these N voxels along each axis, (N,) each. `probabilities` (N, K)
    are the scan's own, and `share` (N, 1) is their weight from 0 to 1.
    """

    places: tuple[Tensor, ...]
    share: Tensor
    probabilities: Tensor


class Joining:
    """Running mean of the probabilities of the template and of the scans that are added.

    `template` (X, Y, Z) is the template's image, and `probabilities` (X, Y, Z, K) are its
    probabilities, which count `weight` times as much as a scan's. `mean` (X, Y, Z, K) is the
    running mean in the template's space. It is the given tensor, not a copy, and may be changed
    after all scans were added.
    """

    def __init__(
        self, template: Tensor, probabilities: Tensor, weight: float = 1.0
    ) -> None:
        self.mean = probabilities
        self._template = template
        # Sum of the weights in each voxel: a scan that looks different there counts less.
        self._weight = torch.full_like(template, weight)
        self._ways_back: list[Tensor] = []
        self._own: list[_OwnProbabilities] = []

    def add(self, probabilities: Tensor, image: Tensor, flow: Tensor) -> None:
        """Add a scan to the mean.

        `probabilities` (X, Y, Z, K) and `image` (X, Y, Z) are those of the scan, and `flow` (3, X,
        Y, Z) is the shift in voxels of each point of the template to its position in the scan. All
        are on the template's grid.
        """
        in_template = warped(image[None], flow)[0]
        difference = in_template.sub_(self._template).abs_()
        strange = _unusual_difference(difference, self._template > _BRIGHT)
        self._weight += 1 - strange
        flow_of_voxel = flow.permute(1, 2, 3, 0)
        is_open = _near_boundaries(self.mean, probabilities)
        for voxels in _chunks(_dilated_by_flow(is_open, flow)):
            at = voxels.unbind(1)
            places = voxels + flow_of_voxel[at]
            before = self.mean[at].float()
            share = ((1 - strange[at]) / self._weight[at])[:, None]
            change = rows_at(probabilities, places).float()
            change.sub_(before).mul_(share)
            self.mean[at] = (before + change).to(self.mean.dtype)
        back = inverse_of(flow)
        in_scan = warped(strange[None], back)[0]
        at = (in_scan > _LEAST_OWN).nonzero().unbind(1)
        share_of_own = in_scan[at][:, None]
        self._own.append(_OwnProbabilities(at, share_of_own, probabilities[at]))
        self._ways_back.append(back)

    def change_own(self, change: Callable[[Tensor], None]) -> None:
        """Apply a function to the probabilities that scans do not share with the others.

        A scan keeps such probabilities where its image differs from the others. The function gets
        those of each scan, (N, K), and changes them in place. They are not part of `mean`, so
        changes of `mean` do not affect them.
        """
        for own in self._own:
            change(own.probabilities)

    def on_processor(self) -> None:
        """Move all tensors to host memory, because the remaining steps need no GPU."""
        self.mean = self.mean.cpu()
        self._ways_back = [back.cpu() for back in self._ways_back]
        self._own = [
            _OwnProbabilities(
                tuple(place.cpu() for place in own.places),
                own.share.cpu(),
                own.probabilities.cpu(),
            )
            for own in self._own
        ]

    @cached_property
    def _is_open(self) -> Tensor:
        """Mask of the voxels near boundaries of the mean, which is final on the first access."""
        return _near_boundaries(self.mean)

    def of_scan(self, number: int) -> Tensor:
        """Return the probabilities (X, Y, Z, K) of a scan, averaged over all scans along the flow.

        They are at the positions of the scan's own tissue. `number` is the index of the scan in the
        order in which scans were added.
        """
        back = self._ways_back[number]
        flow_of_voxel = back.permute(1, 2, 3, 0)
        result = self.mean.clone()
        for voxels in _chunks(_dilated_by_flow(self._is_open, back)):
            at = voxels.unbind(1)
            places = voxels + flow_of_voxel[at]
            result[at] = rows_at(self.mean, places)
        own = self._own[number]
        joined = result[own.places].float()
        kept = torch.lerp(joined, own.probabilities.float(), own.share)
        result[own.places] = kept.to(result.dtype)
        return result


def _unusual_difference(difference: Tensor, is_head: Tensor) -> Tensor:
    """Return how unusual the difference between an image and the template is, (X, Y, Z).

    `difference` (X, Y, Z) is the absolute difference in brightness, and `is_head` (X, Y, Z) marks
    the head. The mean difference around a voxel is compared with the median of these means in the
    head: the result is 0 up to `_UNUSUAL` times this median, and 1 from twice that value on.
    """
    # Mean in a cube around each voxel, with 0 beyond the edge. One axis after another takes 15
    # products a voxel, the cube at once 125.
    means = difference[None, None]
    for axis in range(3):
        window = [1, 1, 1]
        window[axis] = _WINDOW
        padding = [side // 2 for side in window]
        means = avg_pool3d(means, window, stride=1, padding=padding)
    mean = means[0, 0]
    if not is_head.any():
        return torch.zeros_like(mean)
    usual = mean[is_head].median().clamp(min=1e-6)
    excess = mean / (_UNUSUAL * usual) - 1
    return excess.clamp_(0, 1)


def _near_boundaries(*probabilities: Tensor) -> Tensor:
    """Return a mask (X, Y, Z) of voxels where classes meet, are uncertain or differ between sets.

    A set of probabilities is (X, Y, Z, K). In all other voxels and their neighbours, all sets have
    the same class with certainty.
    """
    first_classes = None
    is_open = torch.zeros(
        probabilities[0].shape[:3], dtype=torch.bool, device=probabilities[0].device
    )
    for values in probabilities:
        largest, classes = most_probable(values)
        is_open |= largest < _CERTAIN
        # Voxels with a different class than the next voxel along an axis.
        for axis in range(3):
            length = classes.shape[axis] - 1
            low = classes.narrow(axis, 0, length)
            high = classes.narrow(axis, 1, length)
            is_open.narrow(axis, 0, length).logical_or_(low != high)
        if first_classes is None:
            first_classes = classes
        is_open |= classes != first_classes
    return is_open


def _dilated_by_flow(mask: Tensor, flow: Tensor) -> Tensor:
    """Dilate a mask (X, Y, Z) in all directions by the largest shift of a flow, in voxels."""
    reach = max(1, int(flow.abs().max().ceil()))
    for _ in range(reach):
        # One axis after another takes 0.03 s for four million voxels, pooling takes 0.12 s.
        for axis in range(3):
            length = mask.shape[axis] - 1
            grown = mask.clone()
            grown.narrow(axis, 0, length).logical_or_(mask.narrow(axis, 1, length))
            grown.narrow(axis, 1, length).logical_or_(mask.narrow(axis, 0, length))
            mask = grown
    return mask


def _chunks(mask: Tensor) -> Iterator[Tensor]:
    """Yield the indices of the set voxels of a mask in chunks, (N, 3) each."""
    yield from torch.split(mask.nonzero(), _CHUNK)


def find_flow(first: Tensor, second: Tensor) -> Tensor:
    """Return the flow from one image to another: the shift of each voxel, (3, X, Y, Z), in voxels.

    Both images are (X, Y, Z) on the same grid of 1 mm, and must be equally bright.
    """
    flow = _step(first, second)
    for _ in range(_FLOW_ROUNDS - 1):
        moved = warped(second[None], flow)[0]
        flow = flow + _step(first, moved)
    return flow


def _step(first: Tensor, moved: Tensor) -> Tensor:
    """Return the change of the flow, (3, X, Y, Z), that brings an image nearer to the first.

    `moved` is the second image, resampled along the flow so far.
    """
    slopes = torch.gradient((first + moved) / 2)
    residual = moved - first
    means = [_window_means(slope) for slope in slopes]
    mean_residual = _window_means(residual)
    # Covariances instead of products, so that a constant difference in brightness shifts nothing.
    sums = {}
    for row in range(3):
        for column in range(row, 3):
            product = _window_means(slopes[row] * slopes[column])
            sums[row, column] = product - means[row] * means[column]
    right = []
    for slope, mean in zip(slopes, means, strict=True):
        right.append(_window_means(slope * residual) - mean * mean_residual)
    step = _solve_cells(sums, right).clamp_(-_MOST_STEP_MM, _MOST_STEP_MM)
    fine = interpolate(step[None], scale_factor=_CELL, mode="trilinear")[0]
    # The last cell may extend beyond the image.
    x, y, z = first.shape
    return fine[:, :x, :y, :z]


def _window_means(values: Tensor) -> Tensor:
    """Return Gaussian-weighted means of values (X, Y, Z) around 2x2x2 cells, (X/2, Y/2, Z/2)."""
    cells = avg_pool3d(values[None, None], _CELL, ceil_mode=True)[0, 0]
    return smoothed(cells, _FLOW_WINDOW_MM / _CELL)


def smoothed(values: Tensor, sigma: float) -> Tensor:
    """Smooth values (X, Y, Z) by a Gaussian; edge values are repeated beyond the grid.

    `sigma` is the standard deviation in voxels.
    """
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
        # Rotate the axes, so that they are back in place after three turns.
        values = total.permute(2, 0, 1).contiguous()
    return values


def _solve_cells(sums: dict[tuple[int, int], Tensor], right: list[Tensor]) -> Tensor:
    """Solve three damped linear equations in each 2x2x2 cell by Cramer's rule, giving (3, X, Y, Z).

    `sums` has the elements of the symmetric matrix by row and column, for column >= row; `right`
    has the three right-hand sides. All are (X, Y, Z). The solution of matrix · x = -right is
    returned.
    """
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
    """Resample values (C, X, Y, Z) at the position to which the flow moves each voxel.

    `flow` is (3, X, Y, Z) in voxels. Edge values are repeated outside.
    """
    shape = values.shape[1:]
    grid = torch.empty(1, *shape, 3, device=flow.device)
    for axis, length in enumerate(shape):
        view = [1, 1, 1]
        view[axis] = length
        indices = torch.arange(length, dtype=torch.float32, device=flow.device)
        places = indices.view(view) + flow[axis]
        # `grid_sample` takes the last axis first, and its coordinates go from -1 to 1.
        places.mul_(2 / (length - 1)).sub_(1)
        grid[0, ..., 2 - axis] = places
    found = grid_sample(values[None], grid, padding_mode="border", align_corners=True)
    return found[0]


def inverse_of(flow: Tensor) -> Tensor:
    """Return the inverse of a flow, which maps x + flow(x) to x; both are (3, X, Y, Z)."""
    inverse = -flow
    for _ in range(_INVERSE_ROUNDS):
        inverse = -warped(flow, inverse)
    return inverse
