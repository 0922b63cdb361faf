"""Where in a scan brain may be: the networks look at no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from segmentation.space.grid import Box, grown, whole
from segmentation.space.resample import occupied_box

# Room to spare around what was seen of a brain: half of the way from one looked slice to the next,
# and the error of a first look.
_SPARE = 12
# Brain that comes so near to the end of the room, in voxels, may go on beyond it ...
_NEAR_END = 3
# ... if there is more of it than specks.
_MANY_VOXELS = 400
# What a network takes for brain in the neck is left out: what is thinner than this, in voxels, as
# the cord is by which necks hang on brains, and then parts below this share of the largest.
_THIN = 7
_SPECK = 0.05


@dataclass(frozen=True, eq=False)
class Room:
    """A box of a volume and, within it, the voxels where brain may be (all, if None)."""

    box: Box
    mask: Tensor | None = None
    rim: Tensor | None = None

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Room:
        return cls(whole(shape))

    def is_too_small(self, probabilities: Tensor) -> bool:
        """Whether brain, by probabilities (X, Y, Z, K) of the box, comes up to an end beyond
        which the scan goes on."""
        if self.rim is None:
            return False
        at_rim = probabilities[self.rim.to(probabilities.device)]
        return int((at_rim.argmax(-1) != 0).sum()) > _MANY_VOXELS


def room_around(seen: NDArray[np.bool_], slices: Sequence[int], axis: int) -> Room:
    """Room for the brain of which `seen` (X, Y, Z) shows some slices along an axis."""
    seen = np.moveaxis(seen, axis, 0)
    # Slices that were not looked at lie between these, and would keep all apart.
    cleaned = np.zeros_like(seen)
    cleaned[slices] = _large_parts(_thick_parts(seen[slices]))
    found = np.moveaxis(cleaned, 0, axis)
    if not found.any():
        return Room.whole(found.shape)
    box = grown(occupied_box(found), found.shape, _SPARE)
    found = found[box]
    mask = _grown(found, *[_SPARE] * 3)
    # Where the scan itself ends both end alike, and nothing is rim.
    rim = mask & ~_grown(found, *[_SPARE - _NEAR_END] * 3)
    return Room(box, torch.from_numpy(mask), torch.from_numpy(rim))


def _grown(mask: NDArray[np.bool_], *reach: int) -> NDArray[np.bool_]:
    """A mask dilated by a number of voxels along each of its axes."""
    for axis, voxels in enumerate(reach):
        mask = ndimage.maximum_filter1d(mask, 2 * voxels + 1, axis=axis, mode="constant")
    return mask


def _thick_parts(slices: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Slices (N, H, W) without what is thinner than `_THIN` and no end of something thicker."""
    thick = np.asarray(ndimage.binary_opening(slices, np.ones((1, _THIN, _THIN))))
    # An end is rounded off, or all that the next slice shows.
    return _grown(thick, 1, _THIN // 2, _THIN // 2) & slices


def _large_parts(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask without parts that are small beside the largest."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray((sizes >= _SPECK * sizes.max())[parts] & mask)
