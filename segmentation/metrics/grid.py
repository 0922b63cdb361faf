"""Two label maps on one grid: as they are, reordered without loss, or resampled on request."""

from __future__ import annotations

from itertools import product

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from segmentation.errors import GeometryError
from segmentation.volume import Volume

__all__ = ["on_grid_of"]

# Headers store places as float32, and rotations as quaternions of float32.
_TOLERANCE = 0.02  # of a voxel, at the corners of the volume


def on_grid_of(labels: Volume, reference: Volume, *, resample: bool = False) -> tuple[Volume, str]:
    """The label map voxel by voxel against the reference, and a note on what was done for that.

    Axes that only run in another order or direction are reordered, which loses nothing. Any other
    difference is refused, or with `resample` each label's indicator is interpolated linearly and
    the largest wins, as where trinat restores its own results.
    """
    same_axes = _reordered(labels, reference)
    if _corners_agree(same_axes, reference):
        note = "" if same_axes is labels else f"axes reordered from {labels.axcodes}, no loss"
        return Volume(same_axes.data, reference.affine, reference.codes), note
    difference = _difference(labels, reference)
    if not resample:
        raise GeometryError(
            f"not on the truth's grid: {difference}",
            remedy="use --resample to bring it there, and the report will say so",
        )
    from segmentation.resample import GridMap, resample_labels  # brings torch along

    to = GridMap.between(labels.affine, reference.affine, reference.shape)
    data = resample_labels(labels.data, to)
    note = f"resampled to the truth's grid, label by label ({difference})"
    return Volume(data, reference.affine, reference.codes), note


def _reordered(labels: Volume, reference: Volume) -> Volume:
    """The same voxels with axes in the order and direction of the reference's."""
    if labels.axcodes == reference.axcodes:
        return labels
    change = nib.orientations.ornt_transform(
        nib.io_orientation(labels.affine), nib.io_orientation(reference.affine)
    )
    data = nib.orientations.apply_orientation(labels.data, change)
    affine = labels.affine @ nib.orientations.inv_ornt_aff(change, labels.shape)
    return Volume(data, affine, labels.codes)


def _corners_agree(labels: Volume, reference: Volume) -> bool:
    if labels.shape != reference.shape:
        return False
    apart_mm = np.linalg.norm(_corners(labels) - _corners(reference), axis=1).max()
    return bool(apart_mm <= _TOLERANCE * min(reference.spacing_mm))


def _corners(volume: Volume) -> NDArray[np.float64]:
    """Places of the eight outermost voxels, (8, 3) in mm."""
    indices = np.array(list(product(*((0, n - 1) for n in volume.shape))))
    corners: NDArray[np.float64] = nib.affines.apply_affine(volume.affine, indices)
    return corners


def _difference(labels: Volume, reference: Volume) -> str:
    """What differs, the most telling first."""
    if labels.shape != reference.shape:
        return f"{_times(labels.shape)} voxels against {_times(reference.shape)}"
    spacings = labels.spacing_mm, reference.spacing_mm
    if not np.allclose(*spacings, rtol=1e-3):
        return " against ".join(
            _times(tuple(round(s, 3) for s in each)) + " mm" for each in spacings
        )
    same_axes = _reordered(labels, reference)
    apart_mm = np.linalg.norm(_corners(same_axes) - _corners(reference), axis=1).max()
    return f"corners up to {apart_mm:.3g} mm apart"


def _times(numbers: tuple[float, ...]) -> str:
    return "×".join(f"{n:g}" for n in numbers)
