"""Localisation: where in a scan brain may be, from a few slices of it, and what is stripped off.

Networks then segment only that region, since most of a scan is no brain. `Predictor.find_brain`
segments the few slices; here is what follows from them.

Networks that learnt from stripped scans take parts of face and scalp for brain. Another model,
which knows heads, says what is inside the skull (`Predictor.find_kept`); outside of that they see
nothing, as in the scans that they learnt from. A scan that is stripped stays as it is.

Distances are in voxels of the working grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.grid import Box, grown, whole
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.morphology import dilated, largest_part, without_holes
from trinat.segmentation.space.resample import occupied_box

# Voxels around what was found of a brain that belong to the region: half of the way from one of
# the few slices to the next, and the error of that segmentation.
_MARGIN = 12
# Brain that comes so near to the end of the region, in voxels, may go on beyond it ...
_NEAR_END = 3
# ... if there is more of it than specks.
_MANY_VOXELS = 400
# What a network takes for brain in the neck is left out: what is thinner than this, in voxels, as
# the cord is by which necks hang on brains, and then parts below this share of the largest.
_THIN = 7
_SPECK = 0.05

# The model that knows heads looks at every second slice.
LOOK_EVERY = 2
# What is less likely to be background than this is inside the skull.
INSIDE = 0.5
# As much around that is kept: the error of the mask.
_KEPT_AROUND = 2
# In a whole head more than this share of all tissue is beyond the region around the brain
# (docs/notes/manual.md).
_WHOLE_HEAD = 0.01


@dataclass(frozen=True, eq=False)
class BrainRegion:
    """A box of a volume and, within it, the voxels where brain may be.

    `mask` and `rim` have the shape of the box. Without a mask brain may be in all of the box. The
    rim is where the mask ends and the scan goes on: brain there may go on too.
    """

    box: Box
    mask: Tensor | None = None
    rim: Tensor | None = None

    @classmethod
    def whole(cls, shape: Sequence[int]) -> BrainRegion:
        """Make the region that is all of a volume."""
        return cls(whole(shape))

    def is_too_small(self, probabilities: Tensor) -> bool:
        """Whether brain comes up to an end of the region beyond which the scan goes on.

        `probabilities` are those of the box, (X, Y, Z, K).
        """
        if self.rim is None:
            return False
        at_rim = probabilities[self.rim.to(probabilities.device)]
        brain_voxels = int((at_rim.argmax(-1) != 0).sum())
        return brain_voxels > _MANY_VOXELS

    def is_too_small_for(self, brain: Tensor) -> bool:
        """The same by a mask of the brain in the box, (X, Y, Z)."""
        if self.rim is None:
            return False
        at_rim = brain & self.rim.to(brain.device)
        return int(at_rim.sum()) > _MANY_VOXELS


def brain_region(
    seen: NDArray[np.bool_], slices: Sequence[int], axis: int
) -> BrainRegion:
    """The region around the brain of which `seen` (X, Y, Z) shows some slices along an axis.

    `slices` are the numbers of those slices; in all others `seen` is False. All of the volume
    where no brain is seen.
    """
    seen = np.moveaxis(seen, axis, 0)
    # Slices that were not looked at are between these, and would keep all parts separate.
    looked = _large_parts(_thick_parts(seen[slices]))
    cleaned = np.zeros_like(seen)
    cleaned[slices] = looked
    found = np.moveaxis(cleaned, 0, axis)
    if not found.any():
        return BrainRegion.whole(found.shape)
    box = grown(occupied_box(found), found.shape, _MARGIN)
    found = found[box]
    mask = dilated(found, (_MARGIN, _MARGIN, _MARGIN))
    # Where the scan itself ends both masks end alike, and nothing is rim.
    reach = _MARGIN - _NEAR_END
    rim = mask & ~dilated(found, (reach, reach, reach))
    return BrainRegion(box, torch.from_numpy(mask), torch.from_numpy(rim))


def _thick_parts(slices: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Slices (N, H, W) without what is thinner than `_THIN` and no end of something thicker."""
    square = np.ones((1, _THIN, _THIN))
    thick = np.asarray(ndimage.binary_opening(slices, square))
    # An end is rounded off, or all that the next slice shows.
    around = dilated(thick, (1, _THIN // 2, _THIN // 2))
    return around & slices


def _large_parts(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask without parts that are small beside the largest."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    is_large = sizes >= _SPECK * sizes.max()
    return np.asarray(is_large[parts] & mask)


def is_whole_head(image: Tensor, region: BrainRegion) -> bool:
    """Whether an image (X, Y, Z) shows more than a brain, whose region is known.

    A region without a mask is everywhere: no brain was found, and nothing is known.
    """
    if region.mask is None:
        return False
    tissue = image > TISSUE
    near = torch.zeros_like(tissue)
    near[region.box] = region.mask.to(tissue.device)
    beyond = int((tissue & ~near).sum())
    return beyond > _WHOLE_HEAD * int(tissue.sum())


def kept_around(inside: NDArray[np.bool_], along: int) -> NDArray[np.bool_]:
    """What is kept of a head whose inside is known in every second slice along an axis.

    `inside` (X, Y, Z) is empty in the other slices.
    """
    between = [0, 0, 0]
    between[along] = LOOK_EVERY // 2
    brain = without_holes(largest_part(dilated(inside, between)))
    return dilated(brain, (_KEPT_AROUND,) * 3)
