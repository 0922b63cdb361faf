"""Preparation: a scan as a model's networks take it, and the way back.

A network for any contrast learnt most of T1, where white matter is brighter than cortex and fluid.
It finds more in a T2 or PD scan once its tissues have that order (docs/notes/any.md). Its own look
at a few slices says what fluid, cortex and white matter are, and so which order they have. Then
bright and dark are reversed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

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

# Brightness is that of the working grid, where 1 is the bright end of a head.
# What is as bright as this becomes 0, and nothing is brighter in the result.
_BRIGHTEST = 1.2
# Darker than this share of white matter's brightness is no tissue of the brain, but bone and air.
_DARKEST = 0.5
# Cortex that is less than this times as bright as white matter says nothing of the order.
_CLEARLY = 1.04
# Fewer voxels of a tissue say nothing either.
_ENOUGH_VOXELS = 100
# Labels that are less likely than this are no evidence.
_LIKELY = 0.5
# Groups of label schemes that a tissue consists of.
_WHITE_MATTER = ("white-matter",)
_CORTEX = ("cortical", "grey-matter")
_FLUID = ("ventricles", "csf")
# What is noted of a scan that was reversed.
REVERSED = (
    "cortex and fluid are brighter than white matter: "
    "the networks saw bright and dark reversed"
)
# The same of a head that was stripped for networks that learnt from stripped scans.
STRIPPED = (
    "the scan shows the whole head: the networks saw the inside of the skull alone"
)


def prepare_scan(volume: Volume, preprocessing: Preprocessing) -> Conformed:
    """A scan on the working grid of a model, scaled and oriented as `preprocessing` says.

    The plan restores what is found on that grid to the scan's own space.
    """
    conformed = conform(volume, shape=needed_shape(preprocessing))
    image = conformed.volume
    if preprocessing.scaling == "minimum-maximum":
        # The least value of the scan on the working grid is 0, and the greatest 1.
        upright = reoriented(volume, "RAS")
        to_working = GridMap.between(upright.grid, conformed.plan.working)
        values = resample_image(upright.data, to_working)
        image = replace(image, data=from_minimum_to_maximum(values))
    return as_networks_take_it(image, conformed.plan, preprocessing)


def needed_shape(preprocessing: Preprocessing) -> Shape | None:
    """The shape of the working grid, with RAS axes, that a model needs.

    None where it is only as large as the head: networks that scale by minimum and maximum see the
    whole grid.
    """
    if preprocessing.scaling != "minimum-maximum":
        return None
    order = source_axes(preprocessing.axes, "RAS")
    return to_shape(preprocessing.shape[axis] for axis, _ in order)


def as_networks_take_it(
    image: Volume, plan: ConformPlan, preprocessing: Preprocessing
) -> Conformed:
    """An image on the working grid with its axes in the order of a model.

    The working grid has its array's axes in another order; places stay where they are.
    """
    image = reoriented(image, preprocessing.axes)
    image = replace(image, data=np.ascontiguousarray(image.data))
    reordered: ConformPlan = replace(plan, working=image.grid)
    return Conformed(image, reordered)


def from_minimum_to_maximum(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values (X, Y, Z) with the least as 0 and the greatest as 1; 0 where all are equal."""
    low = float(values.min())
    high = float(values.max())
    return (values - low) / max(high - low, 1e-6)


class Seen(NamedTuple):
    """Some slices of a scan: brightness (N, H, W), and the probabilities of K classes in them.

    `probabilities` are (N, H, W, K).
    """

    brightness: Tensor
    probabilities: Tensor


@dataclass(frozen=True)
class Reversal:
    """How a scan is reversed; `white_matter` is the brightness of that."""

    white_matter: float

    def apply(self, image: Tensor) -> Tensor:
        """The image with white matter brighter than cortex, and that brighter than fluid.

        What is darker than white matter becomes brighter, down to half of its brightness. From
        there a parabola leads to 0: air stays dark, with less noise than on a straight line.
        """
        darkest = _DARKEST * self.white_matter
        rising = (image / darkest) ** 2 * (_BRIGHTEST - darkest)
        falling = (_BRIGHTEST - image).clamp(min=0)
        return torch.where(image < darkest, rising, falling)


@dataclass(frozen=True, eq=False)
class Sight:
    """How networks see an image: as it is, reversed, or a part of it alone.

    `kept` (X, Y, Z) is the part that they see; None for all of it. Elsewhere there is nothing.
    """

    reversal: Reversal | None = None
    kept: Tensor | None = None

    def of(self, image: Tensor) -> Tensor:
        """An image (X, Y, Z) as networks are to see it."""
        if self.reversal is not None:
            image = self.reversal.apply(image)
        if self.kept is not None:
            image = torch.where(self.kept, image, 0)
        return image

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is noted of a scan that networks do not see as it is."""
        remarks = []
        if self.reversal is not None:
            remarks.append(REVERSED)
        if self.kept is not None:
            remarks.append(STRIPPED)
        return tuple(remarks)


def find_reversal(slices: Iterable[Seen], scheme: LabelScheme) -> Reversal | None:
    """How to reverse a scan, by some of its slices; None where its order is that of T1.

    `scheme` has the K classes of the slices. In T1 cortex is darker than white matter. In FLAIR it
    is brighter, but fluid is darker: such a scan stays as it is.
    """
    # Flags (K,) of the classes that belong to each tissue.
    tissues = [
        torch.tensor([label.group in groups for label in scheme.labels])
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
    return Reversal(white_matter)


def _median(parts: list[Tensor]) -> float | None:
    """The median of all values; None of too few."""
    if not parts:
        return None
    values = torch.cat(parts)
    if len(values) < _ENOUGH_VOXELS:
        return None
    return float(values.median())
