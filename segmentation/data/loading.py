"""Batches of slices, read by worker processes.

Workers send what the files hold, 16-bit codes, and the receiver makes float32 of them: half the
bytes on the way between processes, a sixth of all processor time (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from segmentation.data.dataset import SliceDataset

__all__ = ["SliceLoader", "to_float"]

# Codes (C, H, W) uint16, labels (H, W) uint8, scale and zero of the codes.
_Stored = tuple[Tensor, Tensor, float, int]


class SliceLoader:
    """A dataset's items in batches: images (B, C, H, W) float32 and labels (B, H, W) uint8.

    The sampler decides the order, the number of workers nothing. Workers start with the first
    batch and stay until the loader is let go of; with none, this process reads.
    """

    def __init__(
        self,
        dataset: SliceDataset,
        sampler: Sampler[int],
        *,
        batch_size: int,
        workers: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._loader: DataLoader[Any] = DataLoader(
            _StoredSlices(dataset),
            batch_size,
            sampler=sampler,
            num_workers=workers,
            collate_fn=_together,
            persistent_workers=workers > 0,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for codes, labels, scales, zeros in self._loader:
            yield to_float(codes.to(self.device), scales, zeros), labels.to(self.device)


def to_float(codes: Tensor, scales: Sequence[float], zeros: Sequence[int]) -> Tensor:
    """Codes (B, C, H, W) as values, each by its own scale and zero, on the device of the codes.

    As `Quantised.values` does it, operation by operation, so that no bit differs.
    """

    def each(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=codes.device).view(-1, 1, 1, 1)

    images = codes.float()
    if any(zeros):
        images -= each(zeros)
    images *= each(scales)
    return images


class _StoredSlices(Dataset[_Stored]):
    def __init__(self, dataset: SliceDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> _Stored:
        image, labels = self.dataset.stored(index)
        return torch.from_numpy(image.codes), torch.from_numpy(labels), image.scale, image.zero


def _together(items: Sequence[_Stored]) -> tuple[Tensor, Tensor, list[float], list[float]]:
    """Voxels as tensors, which travel through shared memory; a tensor of a few numbers would cost
    as much to send as one of a slice."""
    codes, labels, scales, zeros = zip(*items, strict=True)
    return default_collate(list(codes)), default_collate(list(labels)), list(scales), list(zeros)
