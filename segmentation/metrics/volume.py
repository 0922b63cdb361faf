"""Size and place of structures: volumes in mm3, and how far their centres lie apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["centroid_distance_mm", "volume_difference_percent", "volumes_mm3"]


def volumes_mm3(
    voxels: NDArray[np.int64], spacing_mm: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Voxel counts to cubic millimetres."""
    return np.asarray(voxels * float(np.prod(spacing_mm)), np.float64)


def volume_difference_percent(
    truth_mm3: NDArray[np.float64], prediction_mm3: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(prediction - truth) / truth in percent; NaN where there is no truth to relate it to."""
    ratio = np.full(len(truth_mm3), np.nan)
    np.divide(prediction_mm3 - truth_mm3, truth_mm3, out=ratio, where=truth_mm3 > 0)
    return 100 * ratio


def centroid_distance_mm(
    truth: NDArray[np.bool_],
    prediction: NDArray[np.bool_],
    spacing_mm: tuple[float, float, float],
) -> float:
    """Distance between the centres of gravity of two (X, Y, Z) masks; NaN where one is empty."""
    if not truth.any() or not prediction.any():
        return float("nan")
    apart = (_centroid(truth) - _centroid(prediction)) * spacing_mm
    return float(np.linalg.norm(apart))


def _centroid(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean voxel index along each axis, (3,), from the mask's profile along that axis."""
    # Two short sums: counting along the last axis first is several times faster than one
    # reduction over two axes at once.
    along_xy = np.count_nonzero(mask, axis=2)
    profiles = (along_xy.sum(1), along_xy.sum(0), np.count_nonzero(mask, axis=(0, 1)))
    return np.array([np.arange(len(p)) @ p / p.sum() for p in profiles])
