"""The grid of a phantom's scan: the scanner's voxels, and the samples that each is the mean of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.grid import Grid, to_shape, world_axes
from trinat.segmentation.synthetic.anatomy import Anatomy
from trinat.segmentation.synthetic.smooth_field import Floats, draw_normal

FIELD_OF_VIEW_MM = (184.0, 248.0, 240.0)  # right-left, front-back, up-down
SPACING_MM = (0.3, 10.0)
# Beyond it, another order of the axes would describe the grid better.
MAX_OBLIQUE_DEG = 45.0
# How far the field of view's centre is from the scanner's: a standard deviation. Every draw is kept
# within twice that.
CENTRE_SD_MM = 15.0
# Smooth fields are evaluated on nodes this far apart, and linear between them.
NODE_MM = 6.0


@dataclass(frozen=True, eq=False)
class SampledGrid(Grid):
    """The scan's voxels, each the mean of `factors` samples along its axes.

    `centre_mm` (3,) is that of the field of view.
    """

    factors: tuple[int, int, int]
    centre_mm: Floats

    @property
    def samples(self) -> tuple[int, int, int]:
        """Number of samples along each axis."""
        x, y, z = self.shape
        f, g, h = self.factors
        return x * f, y * g, z * h

    def nodes_mm(self) -> Floats:
        """Nodes from the first sample to the last, in mm from the centre, (3, X, Y, Z).

        They are about `NODE_MM` apart, and at least two along each axis.
        """
        steps_mm = np.array(self.spacing_mm) / np.array(self.factors)
        lengths_mm = np.array(self.samples) * steps_mm
        intervals = np.ceil(lengths_mm / NODE_MM).astype(int)
        counts = np.maximum(intervals + 1, 2)
        voxels = []
        for samples, factor, count in zip(
            self.samples, self.factors, counts, strict=True
        ):
            line = np.linspace(0, samples - 1, count)
            voxels.append((line + 0.5) / factor - 0.5)
        grid = np.stack(np.meshgrid(*voxels, indexing="ij"))
        points = np.tensordot(self.affine[:3, :3], grid, 1)
        offset = self.affine[:3, 3] - self.centre_mm
        return points + offset.reshape(3, 1, 1, 1)


def draw_grid(
    rng: np.random.Generator,
    anatomy: Anatomy,
    spacing_mm: tuple[float, float, float],
    orientation: str,
    oblique_deg: float,
) -> SampledGrid:
    """The scanner's grid: about a centre of its own, turned about a random diagonal."""
    world, signs = zip(*world_axes(orientation), strict=True)
    directions = np.zeros((3, 3))
    directions[world, [0, 1, 2]] = signs
    diagonal = rng.choice([-1.0, 1.0], 3) / np.sqrt(3)
    centre = draw_normal(rng, CENTRE_SD_MM, 3)
    shape = []
    factors = []
    for axis, mm in zip(world, spacing_mm, strict=True):
        shape.append(max(1, round(FIELD_OF_VIEW_MM[axis] / mm)))
        # Voxels larger than the anatomy's are the mean of several samples: partial volume.
        factors.append(max(1, round(mm / anatomy.spacing_mm)))
    turned = rotation_about(diagonal, np.radians(oblique_deg))
    steps_mm = turned @ directions * spacing_mm
    middle_voxel = (np.array(shape) - 1) / 2
    affine = np.eye(4)
    affine[:3, :3] = steps_mm
    affine[:3, 3] = centre - steps_mm @ middle_voxel
    # Files hold single precision: what is written is what was rendered.
    affine = affine.astype(np.float32).astype(np.float64)
    return SampledGrid(to_shape(shape), affine, to_shape(factors), centre)


def check_grid(
    spacing_mm: tuple[float, float, float], orientation: str, oblique_deg: float
) -> None:
    """Raise ConfigError for a grid that cannot be made."""
    low, high = SPACING_MM
    if len(spacing_mm) != 3 or not all(low <= mm <= high for mm in spacing_mm):
        raise ConfigError(
            f"spacing {spacing_mm} is not three numbers from {low} to {high} mm"
        )
    try:
        world_axes(orientation)
    except ValueError:
        raise ConfigError(
            f"{orientation!r} is no orientation",
            remedy="three letters such as RAS or LIA: one of R L, one of A P, one of S I",
        ) from None
    if not 0 <= oblique_deg <= MAX_OBLIQUE_DEG:
        raise ConfigError(
            f"oblique angle {oblique_deg} is not in 0 to {MAX_OBLIQUE_DEG} degrees"
        )


def rotation_about(axis: Floats, angle: float) -> Floats:
    """The matrix (3, 3) of a turn by `angle`, in radians, about the unit vector `axis`.

    By Rodrigues' formula.
    """
    x, y, z = axis
    cross = np.array(
        [
            [0, -z, y],
            [z, 0, -x],
            [-y, x, 0],
        ]
    )
    sine_part = np.sin(angle) * cross
    cosine_part = (1 - np.cos(angle)) * cross @ cross
    turned: Floats = np.eye(3) + sine_part + cosine_part
    return turned
