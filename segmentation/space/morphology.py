"""Masks grown, closed and cleaned of specks and holes. Distances are in voxels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]


def dilated(mask: Mask, reach: Sequence[int]) -> Mask:
    """A mask dilated by a number of voxels along each of its axes."""
    for axis, voxels in enumerate(reach):
        mask = ndimage.maximum_filter1d(
            mask, 2 * voxels + 1, axis=axis, mode="constant"
        )
    return mask


def largest_part(mask: Mask) -> Mask:
    """The largest of the parts whose voxels share a face; a mask that is empty stays so."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == sizes.argmax())


def without_holes(mask: Mask) -> Mask:
    """A mask with all that it encloses: what no path across faces leads out of."""
    # One more voxel on each side, so that all that is outside is one part.
    outside, _ = ndimage.label(np.pad(~mask, 1, constant_values=True))
    is_outside = outside == outside[0, 0, 0]
    return np.asarray(~is_outside[1:-1, 1:-1, 1:-1])
