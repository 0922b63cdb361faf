"""Random transforms of TorchIO and MONAI that a recipe may name, one slice at a time.

Each library has a module with its transforms and their settings. The libraries are imported
when the first slice is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trinat.segmentation.data.transforms.base import SliceChange
from trinat.segmentation.data.transforms.from_monai import MonaiTransform
from trinat.segmentation.data.transforms.from_torchio import TorchIOTransform

NamedTransform = Annotated[
    TorchIOTransform | MonaiTransform, Field(discriminator="name")
]


class SliceTransforms:
    """Random transforms of a recipe, applied to a slice in their order.

    Each transform changes its share of the slices.
    """

    def __init__(self, transforms: Sequence[NamedTransform]) -> None:
        self.transforms = tuple(transforms)
        # Built at the first call.
        self._changes: list[SliceChange] = []

    def __bool__(self) -> bool:
        """Return True if there is any transform."""
        return bool(self.transforms)

    def __call__(
        self,
        image: Tensor,
        labels: Tensor,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        """Return changed copies of image (C, H, W) float32 and labels (H, W) of any integer type.

        Both are on the CPU. The seed determines the result, independent of earlier calls.
        Intensities that are negative or not finite become 0. A slice of a single intensity, as
        beyond the head, is unchanged.
        """
        if image.min() == image.max():
            return image, labels
        if len(self._changes) < len(self.transforms):
            self._changes = [transform.build() for transform in self.transforms]
        numbers = np.random.default_rng(seed)
        for transform, change in zip(self.transforms, self._changes, strict=True):
            happens = numbers.random() < transform.share
            own_seed = int(numbers.integers(2**31))
            if not happens:
                continue
            # Some transforms write into their input.
            image, labels = change(image.clone(), labels, own_seed)
            image = torch.nan_to_num(image, 0.0, 0.0, 0.0).clamp(min=0)
        return image, labels
