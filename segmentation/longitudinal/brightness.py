"""Scans of one person made equally bright, place by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Image = NDArray[np.float32]

# Means are taken over about this distance: shading is smoother than that, and what a structure
# gains or loses is far smaller.
_SMOOTH_MM = 25.0
# Shading is found in every n-th voxel along each axis.
_STEP = 4
# Where all scans are brighter than this there is tissue.
_TISSUE = 0.15
_LEAST = 1e-4


def evened(images: Sequence[Image]) -> list[Image]:
    """Images (X, Y, Z) on one grid of 1 mm, each multiplied by a smooth gain.

    Where all of them show tissue, each has the geometric mean of their local means.
    """
    coarse = [image[::_STEP, ::_STEP, ::_STEP] for image in images]
    is_tissue = np.all([image > _TISSUE for image in coarse], axis=0)
    tissue = is_tissue.astype(np.float32)
    share = _smooth(tissue)
    logarithms = []
    for image in coarse:
        total = _smooth(image * tissue)
        mean = (total + _LEAST) / (share + _LEAST)
        logarithms.append(np.log(mean))
    common = np.mean(logarithms, axis=0)
    result = []
    for image, logarithm in zip(images, logarithms, strict=True):
        gain = np.exp(common - logarithm)
        even = image * _stretched(gain, image.shape)
        result.append(np.asarray(even, np.float32))
    return result


def _smooth(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(ndimage.gaussian_filter(values, _SMOOTH_MM / _STEP))


def _stretched(values: NDArray[Any], shape: Sequence[int]) -> NDArray[np.float32]:
    """Values in every n-th voxel, on the grid of all; linear between them, constant beyond."""
    for axis, length in enumerate(shape):
        last = values.shape[axis] - 1
        places = np.arange(length) / _STEP
        lower = np.minimum(places.astype(int), last)
        upper = np.minimum(lower + 1, last)
        view = [1, 1, 1]
        view[axis] = length
        part = np.clip(places - lower, 0, 1).reshape(view)
        low = np.take(values, lower, axis)
        high = np.take(values, upper, axis)
        values = low * (1 - part) + high * part
    return values.astype(np.float32)
