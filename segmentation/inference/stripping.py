"""Stripping: what of a whole head networks see that learnt from stripped scans.

Such networks take parts of face and scalp for brain. Another model, which knows heads, says what is
inside the skull; outside of that they see nothing, as in the scans that they learnt from. A scan
that is stripped stays as it is. Distances are in voxels of the working grid.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.inference.localisation import BrainRegion
from trinat.segmentation.space.background import TISSUE
from trinat.segmentation.space.morphology import dilated, largest_part, without_holes

# The other model looks at every second slice.
LOOK_EVERY = 2
# What is less likely to be background than this is inside the skull.
INSIDE = 0.5
# As much around that is kept: the error of the mask.
_MARGIN = 2
# In a whole head more than this share of all tissue is beyond the region around the brain
# (docs/notes/manual.md).
_WHOLE_HEAD = 0.01


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
    return dilated(brain, (_MARGIN,) * 3)
