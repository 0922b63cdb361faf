"""Two label maps made comparable: brought to one grid, and cut to the slices that are labelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented

# Headers store places as float32, and rotations as quaternions of float32.
_TOLERANCE = 0.02  # of a voxel, at the corners of the volume


def on_grid_of(
    labels: Volume, reference: Volume, *, resample: bool = False
) -> tuple[Volume, str]:
    """The label map voxel by voxel against the reference, and a note on what was done for that.

    Axes that only run in another order or direction are reordered, which loses nothing. Any other
    difference is refused, or with `resample` each label's indicator is interpolated linearly and
    the largest wins, as where trinat restores its own results.
    """
    same_axes = reoriented(labels, reference.axcodes)
    apart_mm = same_axes.grid.apart_mm(reference.grid)
    if apart_mm <= _TOLERANCE * min(reference.spacing_mm):
        note = (
            ""
            if same_axes is labels
            else f"axes reordered from {labels.axcodes}, no loss"
        )
        return Volume(same_axes.data, reference.affine, reference.codes), note
    difference = _difference(labels.grid, reference.grid, apart_mm)
    if not resample:
        raise GeometryError(
            f"not on the truth's grid: {difference}",
            remedy="use --resample to bring it there, and the report will say so",
        )
    # Imported here: it brings torch along.
    from trinat.segmentation.space.grid_map import GridMap
    from trinat.segmentation.space.resample import resample_labels

    data = resample_labels(labels.data, GridMap.between(labels.grid, reference.grid))
    note = f"resampled to the truth's grid, label by label ({difference})"
    return Volume(data, reference.affine, reference.codes), note


def _difference(labels: Grid, reference: Grid, apart_mm: float) -> str:
    """What differs, the most telling first; `apart_mm` once axes run alike."""
    if labels.shape != reference.shape:
        return f"{_times(labels.shape)} voxels against {_times(reference.shape)}"
    spacings = labels.spacing_mm, reference.spacing_mm
    if not np.allclose(*spacings, rtol=1e-3):
        return " against ".join(
            _times(tuple(round(s, 3) for s in each)) + " mm" for each in spacings
        )
    return f"corners up to {apart_mm:.3g} mm apart"


def _times(numbers: tuple[float, ...]) -> str:
    return "×".join(f"{n:g}" for n in numbers)


Indices = NDArray[np.uint8]
Spacing = tuple[float, float, float]

# So few lone slices can also be a small structure whole; with so many structures they cannot.
_FEW_SLICES = 3
_FEW_STRUCTURES = 3


@dataclass(frozen=True, eq=False)
class DrawnSlices:
    """The slices of a map that hold labels, no two of them neighbours."""

    axis: int
    places: NDArray[np.intp]
    thickness_mm: float  # from one to the next, as a rule
    total: int

    @property
    def note(self) -> str:
        drawn = (
            "a single slice" if len(self.places) == 1 else f"{len(self.places)} slices"
        )
        where = ("first", "second", "third")[self.axis]
        return (
            f"the truth is labelled on {drawn} of {self.total} along its {where} axis: "
            f"measured on these alone, as {self.thickness_mm:.3g} mm thick"
        )

    def alone(self, labels: Indices) -> Indices:
        """The drawn slices side by side, as a map of thick slices."""
        return labels.take(self.places, axis=self.axis)

    def blank_between(self, labels: Indices) -> Indices:
        """The whole map with background on all other slices."""
        blank = np.zeros_like(labels)
        chosen: tuple[Any, ...] = (slice(None),) * self.axis + (self.places,)
        blank[chosen] = labels[chosen]
        return blank

    def spacing_mm(self, spacing_mm: Spacing) -> Spacing:
        """That of the map of thick slices."""
        x, y, z = (
            self.thickness_mm if axis == self.axis else step
            for axis, step in enumerate(spacing_mm)
        )
        return x, y, z


def labelled_slices(
    true: Indices, predicted: Indices, spacing_mm: Spacing
) -> tuple[Indices, Indices, Spacing]:
    """What is measured: both maps on the slices on which the truth is drawn, and their spacing."""
    if drawn := drawn_slices(true, spacing_mm):
        return drawn.alone(true), drawn.alone(predicted), drawn.spacing_mm(spacing_mm)
    return true, predicted, spacing_mm


def drawn_slices(truth: Indices, spacing_mm: Spacing) -> DrawnSlices | None:
    """The labelled slices of a truth that is drawn on single ones alone; None for a whole one."""
    for axis in range(3):
        others = tuple({0, 1, 2} - {axis})
        places = np.flatnonzero(truth.any(axis=others))
        steps = np.diff(places)
        if truth.shape[axis] == 1 or not len(places) or (steps == 1).any():
            continue
        structures = np.count_nonzero(np.bincount(truth.ravel(), minlength=2)[1:])
        if len(places) < _FEW_SLICES and structures < _FEW_STRUCTURES:
            continue
        step = float(np.median(steps)) if len(steps) else 1.0
        return DrawnSlices(axis, places, step * spacing_mm[axis], truth.shape[axis])
    return None
