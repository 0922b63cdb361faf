"""Batch source of a few slices in memory; each epoch uses every slice once."""

from __future__ import annotations

import torch
from torch import Tensor

from trinat.segmentation.training.batches import Batch, BatchSource
from trinat.segmentation.training.state import seeded


class KnownSlices(BatchSource):
    """Images (N, H, W) and classes (N, H, W) of a view, drawn without augmentation.

    The slices of a draw depend on their numbers alone, not on the generator.
    """

    fingerprint = "known"

    def __init__(self, images: Tensor, labels: Tensor, classes: int) -> None:
        self.images, self.labels, self.classes = images, labels, classes

    def draw(self, first: int, count: int, generator: torch.Generator) -> Batch:
        items = [self._item(number) for number in range(first, first + count)]
        return Batch(self.images[items][:, None], self.labels[items], f"slices {items}")

    def counts(self) -> Tensor:
        return torch.bincount(self.labels.flatten(), minlength=self.classes).double()

    def _item(self, number: int) -> int:
        count = len(self.images)
        epoch, place = divmod(number, count)
        order = torch.randperm(count, generator=seeded("cpu", epoch))
        return int(order[place])
