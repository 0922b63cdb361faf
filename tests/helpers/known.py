"""Batch source of a few slices in memory; each epoch uses every slice once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trinat.segmentation.space.views import View
from trinat.segmentation.training.batches import Batch, BatchSource
from trinat.segmentation.training.state import seeded


class KnownSlices(BatchSource):
    """Images (N, H, W) and classes (N, H, W) of each view, drawn without augmentation.

    The slices of a draw depend on their numbers alone, not on the generator.
    """

    fingerprint = "known"

    def __init__(
        self, slices: Mapping[View, tuple[Tensor, Tensor]], classes: int
    ) -> None:
        self.slices, self.classes = slices, classes

    def draw(
        self, view: View, first: int, count: int, generator: torch.Generator
    ) -> Batch:
        images, labels = self.slices[view]
        items = [
            self._item(number, len(images)) for number in range(first, first + count)
        ]
        return Batch(
            images[items][:, None], labels[items], f"{view.value} slices {items}"
        )

    def counts(self, view: View) -> Tensor:
        return torch.bincount(
            self.slices[view][1].flatten(), minlength=self.classes
        ).double()

    def _item(self, number: int, slices: int) -> int:
        epoch, place = divmod(number, slices)
        order = torch.randperm(slices, generator=seeded("cpu", epoch))
        return int(order[place])
