"""Two label maps on one grid: as they are, reordered without loss, or resampled on request."""

from __future__ import annotations

import numpy as np

from segmentation.errors import GeometryError
from segmentation.io.volume import Volume
from segmentation.space.grid import Grid
from segmentation.space.views import reoriented

__all__ = ["on_grid_of"]

# Headers store places as float32, and rotations as quaternions of float32.
_TOLERANCE = 0.02  # of a voxel, at the corners of the volume


def on_grid_of(labels: Volume, reference: Volume, *, resample: bool = False) -> tuple[Volume, str]:
    """The label map voxel by voxel against the reference, and a note on what was done for that.

    Axes that only run in another order or direction are reordered, which loses nothing. Any other
    difference is refused, or with `resample` each label's indicator is interpolated linearly and
    the largest wins, as where trinat restores its own results.
    """
    same_axes = reoriented(labels, reference.axcodes)
    apart_mm = same_axes.grid.apart_mm(reference.grid)
    if apart_mm <= _TOLERANCE * min(reference.spacing_mm):
        note = "" if same_axes is labels else f"axes reordered from {labels.axcodes}, no loss"
        return Volume(same_axes.data, reference.affine, reference.codes), note
    difference = _difference(labels.grid, reference.grid, apart_mm)
    if not resample:
        raise GeometryError(
            f"not on the truth's grid: {difference}",
            remedy="use --resample to bring it there, and the report will say so",
        )
    from segmentation.space.resample import GridMap, resample_labels  # brings torch along

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
