"""Binary morphology of masks. Distances are in voxels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Mask = NDArray[np.bool_]

# Structuring element: voxels that share a face, an edge or a corner are connected.
TOUCHING = np.ones((3, 3, 3), bool)


def dilated(mask: Mask, reach: Sequence[int]) -> Mask:
    """Dilate a mask by `reach` voxels, one number for each axis, in both directions along it."""
    for axis, voxels in enumerate(reach):
        mask = ndimage.maximum_filter1d(
            mask, 2 * voxels + 1, axis=axis, mode="constant"
        )
    return mask


def largest_part(mask: Mask) -> Mask:
    """Return the largest component of a mask, connected by faces; an empty mask stays empty."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == sizes.argmax())


def without_holes(mask: Mask) -> Mask:
    """Fill the holes of a mask: background that is not connected to the outside by faces."""
    # One more voxel on each side connects all of the outside.
    outside, _ = ndimage.label(np.pad(~mask, 1, constant_values=True))
    is_outside = outside == outside[0, 0, 0]
    return np.asarray(~is_outside[1:-1, 1:-1, 1:-1])
