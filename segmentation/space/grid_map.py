"""Maps of voxel indices from one grid to another, which resampling follows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Box, Grid, Shape, moved, to_box, to_shape

# Positions that differ by less, in voxels, are equal: affines in files are rounded to float32.
_SAME_VOXELS = 0.01
# A step of up to this many source voxels needs no averaging beyond linear interpolation. The limit
# is above 1.25, the step in voxels of 0.8 mm, whose headers round it up or down.
_STEP_OF_ONE_POINT = 1.26
# Number of random target voxels from which a mean over all of them is estimated.
_SAMPLE_VOXELS = 10_000


class SourceAxis(NamedTuple):
    """The source voxels along a target axis, for maps that copy voxels without interpolation.

    `axis` is the axis of the source. `direction` is 1 if both axes run in the same direction, else
    -1. `start` is the index of the source voxel at target voxel 0, which may lie outside of the
    source.
    """

    axis: int
    direction: int
    start: int


@dataclass(frozen=True, eq=False)
class GridMap:
    """Affine map from the voxels of a target grid to positions in a source grid.

    `matrix` (4, 4) maps target indices to source indices, which need not be whole numbers. `shape`
    is the shape of the target.
    """

    matrix: NDArray[np.float64]
    shape: Shape

    @classmethod
    def between(cls, source: Grid, target: Grid) -> GridMap:
        """Return the map from the voxels of a target grid to positions in a source grid.

        Both grids are in the same world coordinates.
        """
        # From a target index to RAS mm, and from there to a source index.
        matrix = np.linalg.solve(source.affine, target.affine)
        return cls(np.asarray(matrix), target.shape)

    def cut(self, source: Box, target: Box) -> GridMap:
        """Return the map between a part of the source and a part of the target.

        Both boxes are in voxels of the whole grids. Indices in the result count from the start of
        each part.
        """
        # Voxel n of a part is voxel start + n of its whole: M' n = M (target_start + n) -
        # source_start.
        target_start = np.array([side.start for side in target])
        source_start = [side.start for side in source]
        matrix = self.matrix.copy()
        matrix[:3, 3] += matrix[:3, :3] @ target_start - source_start
        shape = to_shape(side.stop - side.start for side in target)
        return GridMap(matrix, shape)

    def reach(self, source: Box) -> Box:
        """Return the box of target voxels to which a part of the source contributes.

        `source` and the result are in voxels; the result lies within the target and may be empty.
        It may be a little too large, but never too small.
        """
        lowest, highest = self.target_range(source)
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

    def target_range(
        self, source: Box
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and highest target index to which a part of the source contributes.

        Both are (3,), and may lie outside of the target.
        """
        # Linear interpolation spreads a voxel's value as far as its neighbours' centres.
        touched_sides = [(side.start - 1, side.stop) for side in source]
        to_target = np.linalg.inv(self.matrix)
        touched = moved(list(product(*touched_sides)), to_target)
        # A target voxel extends half a voxel to either side.
        return touched.min(axis=0) - 0.5, touched.max(axis=0) + 0.5

    @property
    def source_axes(self) -> list[int] | None:
        """Axis of the source along each target axis; None if the grids are oblique to each other.

        Aligned grids can be resampled axis by axis, which is faster. Axes may run in opposite
        directions.
        """
        steps = np.abs(self.matrix[:3, :3])
        order: list[int] = steps.argmax(axis=0).tolist()
        # Drift of each target axis along the other axes of the source, over its whole length.
        drift = steps * self.shape
        drift[order, range(3)] = 0
        is_aligned = sorted(order) == [0, 1, 2] and drift.max() < _SAME_VOXELS
        if not is_aligned:
            return None
        return order

    @property
    def reordering(self) -> list[SourceAxis] | None:
        """Source of each target axis if no voxel needs interpolation, otherwise None.

        Every target voxel is then a copy of a source voxel, or lies outside of the source.
        """
        order = self.source_axes
        if order is None:
            return None
        steps = self.matrix[order, range(3)]
        starts = self.matrix[order, 3]
        directions = np.sign(steps)
        whole_starts = np.rint(starts)
        # Error of the map at the far end of each axis.
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
        """Sample positions inside a target voxel along each target axis, from -0.5 to 0.5.

        There are as many points as source voxels in a step, so that no source voxel is skipped.
        """
        linear = self.matrix[:3, :3]
        steps = np.sqrt((linear**2).sum(axis=0))
        counts = np.ceil(steps - (_STEP_OF_ONE_POINT - 1))
        points = []
        for count in np.maximum(1, counts).astype(int):
            # The centres of `count` equal parts of the voxel.
            middles = (np.arange(count) + 0.5) / count
            points.append(middles - 0.5)
        return points

    @property
    def blur(self) -> NDArray[np.float64]:
        """Variance by which linear interpolation blurs each axis of the source, in voxels², (3,).

        It is the mean over the target's voxels. An interpolated value at part f of the way from one
        voxel to the next is a mean of both, which has the variance f (1 - f): 0 where voxels are
        copied, 1/6 on average over all positions.
        """
        drawn = np.random.default_rng(0)
        voxels = [drawn.integers(length, size=_SAMPLE_VOXELS) for length in self.shape]
        offsets = [drawn.choice(points, size=_SAMPLE_VOXELS) for points in self.points]
        targets = np.array(voxels) + np.array(offsets)
        positions = self.matrix[:3, :3] @ targets + self.matrix[:3, 3:]
        parts = positions - np.floor(positions)
        variances: NDArray[np.float64] = (parts * (1 - parts)).mean(axis=1)
        return variances
