"""Preparation of scans for a model's networks, and contrast reversal.

A network for any contrast is trained mostly on T1, where white matter is brighter than cortex and
fluid. It performs better on a T2 or PD scan whose tissues have that order (docs/notes/any.md). A
segmentation of a few slices shows the brightness of fluid, cortex and white matter, and so their
order; if necessary, the scan is then reversed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.grid import Shape, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.model_info import Preprocessing
from trinat.segmentation.space.conform import Conformed, ConformPlan, conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image
from trinat.segmentation.space.views import reoriented, source_axes

# On the scale of the working grid, where 1 is the bright end of a head: voxels that are this bright
# or brighter become 0 in a reversed scan.
_BRIGHTEST = 1.2
# Voxels below this share of white matter's brightness are bone and air, not brain.
_DARKEST = 0.5
# Cortex must be this many times as bright as white matter to count as brighter.
_CLEARLY = 1.04
# Least number of voxels of a tissue for an estimate.
_ENOUGH_VOXELS = 100
# A voxel counts as its most probable tissue if that has a larger probability than this.
_LIKELY = 0.5
# Groups of label schemes that make up each tissue.
_WHITE_MATTER = ("white-matter",)
_CORTEX = ("cortical", "grey-matter")
_FLUID = ("ventricles", "csf")
# Note on a scan whose contrast was reversed.
REVERSED = (
    "cortex and fluid are brighter than white matter: "
    "the contrast was reversed for the networks"
)
# Note on a scan of a whole head that was stripped, for networks trained on stripped scans.
STRIPPED = "the scan shows the whole head: only the inside of the skull was given to the networks"


def prepare_scan(volume: Volume, preprocessing: Preprocessing) -> Conformed:
    """Resample a scan to voxels of 1 mm, with the intensity scaling and axes that a model needs.

    `preprocessing` is the model's description of both. The plan of the result restores maps on that
    grid to the scan's own space.
    """
    conformed = conform(volume, shape=needed_shape(preprocessing))
    image = conformed.volume
    if preprocessing.scaling == "minimum-maximum":
        # The minimum of the scan on the working grid becomes 0, and the maximum 1.
        upright = reoriented(volume, "RAS")
        to_working = GridMap.between(upright.grid, conformed.plan.working)
        values = resample_image(upright.data, to_working)
        image = replace(image, data=from_minimum_to_maximum(values))
    return to_model_axes(image, conformed.plan, preprocessing)


def needed_shape(preprocessing: Preprocessing) -> Shape | None:
    """Return the shape of the 1 mm working grid, in RAS order, that a model needs.

    None means that the grid only has to be as large as the head. Networks that scale intensities by
    minimum and maximum need a grid of a fixed shape.
    """
    if preprocessing.scaling != "minimum-maximum":
        return None
    order = source_axes(preprocessing.axes, "RAS")
    return to_shape(preprocessing.shape[axis] for axis, _ in order)


def to_model_axes(
    image: Volume, plan: ConformPlan, preprocessing: Preprocessing
) -> Conformed:
    """Reorder the axes of an image on the 1 mm working grid to those that a model expects.

    Returns the image and its `plan`, changed in the same way. Each voxel stays at its position in
    space.
    """
    image = reoriented(image, preprocessing.axes)
    image = replace(image, data=np.ascontiguousarray(image.data))
    reordered: ConformPlan = replace(plan, working=image.grid)
    return Conformed(image, reordered)


def from_minimum_to_maximum(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale values (X, Y, Z) linearly so that the minimum is 0 and the maximum 1.

    If all values are equal, the result is 0.
    """
    low = float(values.min())
    high = float(values.max())
    return (values - low) / max(high - low, 1e-6)


def reverse_contrast(image: Tensor, white_matter: float) -> Tensor:
    """Reverse an image: white matter becomes brighter than cortex, and cortex than fluid.

    `white_matter` is the brightness of white matter in the image. From the brightest voxels down to
    half of it, the darker a voxel was, the brighter it becomes. Below that, a parabola leads back
    to 0: air stays dark, with less noise than on a straight line.
    """
    darkest = _DARKEST * white_matter
    rising = (image / darkest) ** 2 * (_BRIGHTEST - darkest)
    falling = (_BRIGHTEST - image).clamp(min=0)
    return torch.where(image < darkest, rising, falling)


@dataclass(frozen=True, eq=False)
class Sight:
    """Changes of an image before the networks receive it: contrast reversal and stripping.

    `reversed_white_matter` is the brightness of white matter in a scan whose contrast is reversed,
    and None if it is not reversed. `kept` (X, Y, Z) is the mask of the voxels that the networks
    see, the rest being set to 0; None means all voxels.
    """

    reversed_white_matter: float | None = None
    kept: Tensor | None = None

    def of(self, image: Tensor) -> Tensor:
        """Apply the changes to an image (X, Y, Z)."""
        if self.reversed_white_matter is not None:
            image = reverse_contrast(image, self.reversed_white_matter)
        if self.kept is not None:
            image = torch.where(self.kept, image, 0)
        return image

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return a note for each change, for the notes of the scan."""
        remarks = []
        if self.reversed_white_matter is not None:
            remarks.append(REVERSED)
        if self.kept is not None:
            remarks.append(STRIPPED)
        return tuple(remarks)


def find_reversed_white_matter(
    slices: Iterable[tuple[Tensor, Tensor]], scheme: LabelScheme
) -> float | None:
    """Return the brightness of white matter if the contrast of a scan must be reversed, else None.

    This is decided from some segmented slices of the scan. `slices` are pairs of brightness
    (N, H, W) and class probabilities (N, H, W, K), with the K classes of `scheme`. In T1, cortex is
    darker than white matter. In FLAIR it is brighter, but fluid is darker than white matter: such a
    scan stays unchanged, too.
    """
    tissues = [
        torch.from_numpy(scheme.in_groups(groups))
        for groups in (_WHITE_MATTER, _CORTEX, _FLUID)
    ]
    seen: list[list[Tensor]] = [[] for _ in tissues]
    for brightness, probabilities in slices:
        likelihood, classes = probabilities.max(-1)
        is_likely = likelihood > _LIKELY
        for members, values in zip(tissues, seen, strict=True):
            is_tissue = members.to(classes.device)[classes]
            values.append(brightness[is_likely & is_tissue])
    white_matter, cortex, fluid = (_median(values) for values in seen)
    if white_matter is None or cortex is None or fluid is None:
        return None
    is_reverse = cortex > _CLEARLY * white_matter and fluid > white_matter
    if white_matter <= 0 or not is_reverse:
        return None
    return white_matter


def _median(parts: list[Tensor]) -> float | None:
    """Return the median of the values of all parts; None if there are too few values."""
    if not parts:
        return None
    values = torch.cat(parts)
    if len(values) < _ENOUGH_VOXELS:
        return None
    return float(values.median())
