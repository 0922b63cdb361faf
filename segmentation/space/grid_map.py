"""Where one grid of voxels is in another: the map of voxel indices that resampling follows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Box, Grid, Shape, moved, to_box, to_shape

# Positions that differ by less, in voxels, are the same: affines in files are rounded to float32.
_SAME_VOXELS = 0.01
# A step of up to this many source voxels is left to linear interpolation alone.
_STEP_OF_ONE_POINT = 1.25
# Voxels of the target that stand for all of it.
_SAMPLE_VOXELS = 10_000


class SourceAxis(NamedTuple):
    """Where the voxels along a target axis come from, if they are the source's own voxels.

    `axis` is the source's; its voxels are taken in their `direction` (1 or -1). `start` is the
    source voxel at target voxel 0, which may be beyond the source.
    """

    axis: int
    direction: int
    start: int


@dataclass(frozen=True, eq=False)
class GridMap:
    """A target grid of `shape` voxels, and where each of them is in the source.

    `matrix` (4, 4) takes target indices to source indices, which need not be whole.
    """

    matrix: NDArray[np.float64]
    shape: Shape

    @classmethod
    def between(cls, source: Grid, target: Grid) -> GridMap:
        """The map of a target grid into a source grid that share a world."""
        # From a target index to RAS mm, and from there to a source index.
        matrix = np.linalg.solve(source.affine, target.affine)
        return cls(np.asarray(matrix), target.shape)

    def cut(self, source: Box, target: Box) -> GridMap:
        """The same map for parts of both grids.

        Boxes are in voxels of the whole grids; the result counts from the start of the parts.
        """
        # Voxel n of a part is voxel start + n of its whole:
        # M' n = M (target_start + n) - source_start.
        target_start = np.array([side.start for side in target])
        source_start = [side.start for side in source]
        matrix = self.matrix.copy()
        matrix[:3, 3] += matrix[:3, :3] @ target_start - source_start
        shape = to_shape(side.stop - side.start for side in target)
        return GridMap(matrix, shape)

    def reach(self, source: Box) -> Box:
        """The target voxels that any voxel of this part of the source touches.

        Boxes are in voxels, within the target grid; the result may be empty. It may be a little too
        large, never too small.
        """
        lowest, highest = self.touched(source)
        lowest = np.floor(lowest)
        highest = np.ceil(highest)
        sides = []
        for axis, length in enumerate(self.shape):
            first = int(lowest[axis])
            last = int(highest[axis])
            start = min(max(first, 0), length)
            stop = max(min(last + 1, length), 0)
            sides.append(slice(start, stop))
        return to_box(sides)

    def touched(self, source: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How far the target voxels go that this part of the source touches, in target indices.

        The lowest and the highest of each axis, (3,), which may be beyond the target.
        """
        # Linear interpolation carries a voxel's value as far as its neighbours' centres.
        touched_sides = [(side.start - 1, side.stop) for side in source]
        to_target = np.linalg.inv(self.matrix)
        touched = moved(list(product(*touched_sides)), to_target)
        # A target voxel's extent is half a voxel to either side.
        return touched.min(axis=0) - 0.5, touched.max(axis=0) + 0.5

    @property
    def source_axes(self) -> list[int] | None:
        """The source axis along each target axis, or None if the grids stand askew.

        Aligned grids can be resampled axis by axis, which is faster. Direction does not count: a
        reversed axis is the same axis.
        """
        steps = np.abs(self.matrix[:3, :3])
        order: list[int] = steps.argmax(axis=0).tolist()
        # How far a line of the whole target strays to the other axes of the source.
        drift = steps * self.shape
        drift[order, range(3)] = 0
        is_aligned = sorted(order) == [0, 1, 2] and drift.max() < _SAME_VOXELS
        if not is_aligned:
            return None
        return order

    @property
    def reordering(self) -> list[SourceAxis] | None:
        """The source of each target axis, if each target voxel is a source voxel or beyond it.

        None if anything must be interpolated.
        """
        order = self.source_axes
        if order is None:
            return None
        steps = self.matrix[order, range(3)]
        starts = self.matrix[order, 3]
        directions = np.sign(steps)
        whole_starts = np.rint(starts)
        # What the map is off by at the far end of each axis.
        error = np.abs(steps - directions) * self.shape + np.abs(starts - whole_starts)
        if error.max() >= _SAME_VOXELS:
            return None
        sources = []
        for target, axis in enumerate(order):
            direction = int(directions[target])
            start = int(whole_starts[target])
            sources.append(SourceAxis(axis, direction, start))
        return sources

    @property
    def points(self) -> list[NDArray[np.float64]]:
        """Along each target axis, where between -0.5 and 0.5 a voxel is sampled.

        There are as many points as source voxels in a step, so that none is skipped.
        """
        linear = self.matrix[:3, :3]
        steps = np.sqrt((linear**2).sum(axis=0))
        counts = np.ceil(steps - (_STEP_OF_ONE_POINT - 1))
        points = []
        for count in np.maximum(1, counts).astype(int):
            # The middles of `count` equal parts of the voxel.
            middles = (np.arange(count) + 0.5) / count
            points.append(middles - 0.5)
        return points

    @property
    def blur(self) -> NDArray[np.float64]:
        """Variance that linear interpolation blurs by along each source axis, in voxels², (3,).

        The mean over the target. A value at part f of the way from one voxel to the next is a mean
        of both, which has the variance f (1 - f): 0 where voxels are copied, 1/6 in the mean of all
        places.
        """
        drawn = np.random.default_rng(0)
        voxels = [drawn.integers(length, size=_SAMPLE_VOXELS) for length in self.shape]
        offsets = [drawn.choice(points, size=_SAMPLE_VOXELS) for points in self.points]
        targets = np.array(voxels) + np.array(offsets)
        positions = self.matrix[:3, :3] @ targets + self.matrix[:3, 3:]
        parts = positions - np.floor(positions)
        variances: NDArray[np.float64] = (parts * (1 - parts)).mean(axis=1)
        return variances
