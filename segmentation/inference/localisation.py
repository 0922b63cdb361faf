"""Localisation of the brain from a few slices of a scan, and skull stripping.

Networks segment only this region, since most of a scan is no brain. `Predictor.find_brain` segments
the few slices; this module evaluates them.

Networks trained on stripped scans mistake parts of face and scalp for brain. For these, another
model, which knows heads, finds the inside of the skull (`Predictor.find_kept`), and everything
outside is set to 0, as in their training scans. A stripped scan stays unchanged.

Distances are in voxels of the working grid, which are 1 mm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.grid import Box, grown, occupied_box, whole
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.morphology import dilated, largest_part, without_holes

# Margin of the region around the segmented brain: half of the distance between the few slices, and
# the error of that segmentation.
_MARGIN = 12
# Brain this near to the end of the region may continue outside of it, ...
_NEAR_END = 3
# ... if it has more voxels there than this: specks have fewer.
_MANY_VOXELS = 400
# False detections in the neck are removed: first parts thinner than this number of voxels, such as
# the cord that connects the neck with the brain, then components below this share of the largest.
_THIN = 7
_SPECK = 0.05

# The model that knows heads segments every second slice.
LOOK_EVERY = 2
# A voxel with a lower probability of background is inside the skull.
INSIDE = 0.5
# Margin around the inside of the skull, because of the error of its segmentation.
_KEPT_AROUND = 2
# In a whole head more than this share of all tissue is outside of the region around the brain
# (docs/notes/manual.md).
_WHOLE_HEAD = 0.01


@dataclass(frozen=True, eq=False)
class BrainRegion:
    """A box of a volume and, within the box, a mask of the voxels that may be brain.

    `mask` and `rim` have the shape of the box. If `mask` is None, all voxels of the box may be
    brain. `rim` marks the outermost voxels of the mask, except at the ends of the scan: brain found
    there may continue outside of the mask.
    """

    box: Box
    mask: Tensor | None = None
    rim: Tensor | None = None

    @classmethod
    def whole(cls, shape: Sequence[int]) -> BrainRegion:
        """Return the region that covers a whole volume."""
        return cls(whole(shape))

    def is_too_small(self, brain: Tensor) -> bool:
        """Return True if the segmented brain reaches the region's rim and may continue outside.

        `brain` is a mask (X, Y, Z) of the region's box, or the class probabilities (X, Y, Z, K).
        """
        if self.rim is None:
            return False
        at_rim = brain[self.rim.to(brain.device)]
        if at_rim.ndim > 1:
            at_rim = at_rim.argmax(-1) != 0
        return int(at_rim.sum()) > _MANY_VOXELS


def brain_region(
    seen: NDArray[np.bool_], slices: Sequence[int], axis: int
) -> BrainRegion:
    """Return the region around the brain, given a mask of the brain in some slices along an axis.

    `seen` (X, Y, Z) is that mask; `slices` are the indices, along `axis`, of the slices that were
    segmented, and it is False in all other slices. The region is the whole volume if no brain was
    found.
    """
    seen = np.moveaxis(seen, axis, 0)
    # Leave out the slices in between: they are empty and would separate all components.
    looked = _without_specks(_without_thin_parts(seen[slices]))
    cleaned = np.zeros_like(seen)
    cleaned[slices] = looked
    found = np.moveaxis(cleaned, 0, axis)
    if not found.any():
        return BrainRegion.whole(found.shape)
    box = grown(occupied_box(found), found.shape, _MARGIN)
    found = found[box]
    mask = dilated(found, (_MARGIN, _MARGIN, _MARGIN))
    # At the ends of the scan both masks are cut off alike, so there is no rim.
    reach = _MARGIN - _NEAR_END
    rim = mask & ~dilated(found, (reach, reach, reach))
    return BrainRegion(box, torch.from_numpy(mask), torch.from_numpy(rim))


def _without_thin_parts(slices: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Remove parts of slices (N, H, W) that are thinner than `_THIN`.

    The thin end of a thicker part stays, also where the thicker part is in a neighbouring slice.
    """
    square = np.ones((1, _THIN, _THIN))
    thick = np.asarray(ndimage.binary_opening(slices, square))
    # Opening removes the rounded ends of thick parts, and thin ends in the next slice: restore
    # them.
    around = dilated(thick, (1, _THIN // 2, _THIN // 2))
    return around & slices


def _without_specks(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Remove components of a mask that are small compared with the largest one."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    is_large = sizes >= _SPECK * sizes.max()
    return np.asarray(is_large[parts] & mask)


def is_whole_head(image: Tensor, region: BrainRegion) -> bool:
    """Return True if an image (X, Y, Z) shows tissue outside of the region of the brain.

    The answer is False for a region without a mask, which means that no brain was found.
    """
    if region.mask is None:
        return False
    tissue = image > TISSUE
    near = torch.zeros_like(tissue)
    near[region.box] = region.mask.to(tissue.device)
    beyond = int((tissue & ~near).sum())
    return beyond > _WHOLE_HEAD * int(tissue.sum())


def mask_around(inside: NDArray[np.bool_], along: int) -> NDArray[np.bool_]:
    """Return the mask of the part of a head to keep, from the inside of the skull.

    `inside` (X, Y, Z) is the inside of the skull in every second slice along the axis `along`; it
    is empty in the other slices.
    """
    between = [0, 0, 0]
    between[along] = LOOK_EVERY // 2
    brain = without_holes(largest_part(dilated(inside, between)))
    return dilated(brain, (_KEPT_AROUND,) * 3)
