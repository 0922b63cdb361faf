"""Smooth random functions of place: warps of the phantom, and the shading of its scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SmoothField:
    """A smooth random function of place: cubic B-splines on knots over the field of view.

    `knots` (X, Y, Z) are `spacing_mm` apart, the middle one in the centre.
    """

    knots: Floats
    spacing_mm: float

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        sd: float,
        spacing_mm: float,
        extent_mm: Sequence[float],
    ) -> SmoothField:
        """A random field over an extent of three lengths, whose values have this deviation."""
        # Oblique grids reach beyond the extent: the outermost knots go on from there.
        shape = [int(np.ceil(1.4 * mm / spacing_mm)) + 3 for mm in extent_mm]
        # A sum of splines with weights (1, 4, 1) / 6 per axis has 0.5 ** 1.5 of the knots' spread.
        knots_sd = sd / 0.5**1.5
        return cls(draw_normal(rng, knots_sd, shape), spacing_mm)

    def at(self, points_mm: Floats) -> Floats:
        """Values at points (3, ...), in mm from the centre."""
        centre = (np.array(self.knots.shape) - 1) / 2
        places = points_mm / self.spacing_mm + as_column(centre, points_mm.ndim)
        values: Floats = map_coordinates(
            self.knots,
            places,
            order=3,
            mode="nearest",
            prefilter=False,
        )
        return values


def draw_normal(rng: np.random.Generator, sd: float, shape: int | list[int]) -> Floats:
    """Normal, but never beyond twice `sd`: no subject is a monster."""
    values: Floats = sd * np.clip(rng.standard_normal(shape), -2, 2)
    return values


def as_column(vector: Floats, dimensions: int) -> Floats:
    """A vector (3,) as an array (3, 1, ...), to be added to points of this many dimensions."""
    return vector.reshape(3, *[1] * (dimensions - 1))
