"""Where batches come from: drawn from label maps, read from a slice store, or both mixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from segmentation.data.augmentation import Augmenter
from segmentation.data.dataset import BalancedSampler, open_slices
from segmentation.data.splits import read_split
from segmentation.data.store import Store
from segmentation.errors import DatasetError
from segmentation.heads import HeadMaps, Heads, aim
from segmentation.labels import LabelScheme
from segmentation.synthesis import SynthesisConfig, synthesise
from segmentation.training.config import StoreConfig
from segmentation.training.network import classes_of
from segmentation.views import View

__all__ = ["Batch", "MixedSource", "Source", "StoreSource", "SyntheticSource"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (B, C, H, W) float32, classes (B, H, W) uint8, and what they are, for messages."""

    images: Tensor
    labels: Tensor
    what: str


class Source(Protocol):
    """Gives the same batch for the same arguments: a resumed run asks again."""

    fingerprint: str

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        """`count` slices, the first of which is the view's number `first` since the start."""

    def counts(self, view: View) -> Tensor:
        """(K,) pixels of each class, for the loss."""


class SyntheticSource:
    """Slices drawn from label maps, never twice the same."""

    # In a crop around the head, background covers about this many times the brain.
    background = 1.5

    def __init__(
        self,
        maps: HeadMaps,
        scheme: LabelScheme,
        config: SynthesisConfig,
        size: tuple[int, int],
        channels: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.size, self.neighbours = config, size, channels // 2
        self.fingerprint = maps.fingerprint
        self.full, self.merged = aim(maps, scheme, device)
        self.classes = {view: len(classes_of(view, scheme)) for view in View}

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        images, labels = synthesise(
            self._aimed(view),
            self.config,
            view,
            count,
            self.size,
            generator,
            neighbours=self.neighbours,
        )
        return Batch(images, labels, f"synthetic {view.value} slices {first}-{first + count - 1}")

    def counts(self, view: View) -> Tensor:
        heads = self._aimed(view)
        voxels = torch.bincount(heads.labels.flatten(), minlength=len(heads.classes)).double()
        counts = torch.zeros(self.classes[view], dtype=torch.float64, device=voxels.device)
        counts.index_add_(0, heads.targets.long(), voxels)
        counts[0] = self.background * counts[1:].sum()
        return counts.cpu()

    def _aimed(self, view: View) -> Heads:
        return self.merged if view is View.SAGITTAL else self.full


class StoreSource:
    """Slices of a store's training part, augmented; an epoch meets all, rare structures oftener."""

    # Of each epoch, drawn so that every structure is met as often as any other.
    balanced_share = 0.5

    def __init__(
        self,
        store: StoreConfig,
        views: Sequence[View],
        size: tuple[int, int],
        channels: int,
        seed: int,
        scheme: LabelScheme,
    ) -> None:
        self.size, self.seed = size, seed
        opened = Store(store.path)
        if opened.scheme.names != scheme.names:
            raise DatasetError(
                f"holds labels of {opened.scheme.name}, not {scheme.name}",
                where=store.path,
                remedy="prepare it with those labels, or change `scheme` in the recipe",
            )
        self.fingerprint = f"{opened.fingerprint} {read_split(store.split).model_dump_json()}"
        self.datasets = {
            view: open_slices(store.path, store.split, "train", view, thick=channels)
            for view in views
        }
        self.augmenters = {
            view: Augmenter(store.augmentation, view, classes_of(view, scheme)) for view in views
        }
        self._orders: dict[tuple[View, int], list[int]] = {}

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        dataset = self.datasets[view]
        items = [self._item(view, number) for number in range(first, first + count)]
        # Subjects may differ in shape, and networks take a batch of one: cut or padded alike.
        pairs = [self._fit(*dataset[item], generator) for item in items]
        images, labels = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        names = [f"{dataset.subjects[dataset.subject_of[i]]}:{dataset.slice_of[i]}" for i in items]
        images, labels = images.to(generator.device), labels.to(generator.device)
        images, labels = self.augmenters[view](images, labels, generator)
        return Batch(images, labels, f"{view.value} slices {' '.join(names)}")

    def counts(self, view: View) -> Tensor:
        return torch.from_numpy(self.datasets[view].voxels_per_class())

    def _item(self, view: View, number: int) -> int:
        dataset = self.datasets[view]
        epoch, place = divmod(number, len(dataset))
        if (view, epoch) not in self._orders:
            sampler = BalancedSampler(dataset, share=self.balanced_share, seed=self.seed)
            sampler.set_epoch(epoch)
            # A batch may reach from one epoch into the next; older orders are done with.
            self._orders = {k: v for k, v in self._orders.items() if k[1] >= epoch - 1}
            self._orders[view, epoch] = list(sampler)
        return self._orders[view, epoch][place]

    def _fit(
        self, image: Tensor, labels: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Cut at random, or pad with background, to rows and columns."""
        missing = [max(0, want - have) for want, have in zip(self.size, labels.shape, strict=True)]
        edges = (0, missing[1], 0, missing[0])
        image, labels = pad(image, edges), pad(labels, edges)
        top, left = (
            int(torch.randint(have - want + 1, (), generator=generator, device=generator.device))
            for want, have in zip(self.size, labels.shape, strict=True)
        )
        window = (..., slice(top, top + self.size[0]), slice(left, left + self.size[1]))
        return image[window], labels[window]


class MixedSource:
    """Drawn and real slices side by side: `share` of each batch is drawn, on the average."""

    def __init__(self, synthetic: Source, real: Source, share: float) -> None:
        self.synthetic, self.real, self.share = synthetic, real, share
        self.fingerprint = f"{share} {synthetic.fingerprint} {real.fingerprint}"

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        # Of the slices up to n, floor(share n) are drawn: exact over time for any batch size.
        start, end = (int(self.share * n) for n in (first, first + count))
        drawn = end - start
        batches = []
        if drawn:
            batches.append(self.synthetic.draw(view, start, drawn, generator))
        if drawn < count:
            batches.append(self.real.draw(view, first - start, count - drawn, generator))
        return Batch(
            torch.cat([batch.images for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            ", ".join(batch.what for batch in batches),
        )

    def counts(self, view: View) -> Tensor:
        parts = [s.counts(view).double() for s in (self.synthetic, self.real)]
        shares = (self.share, 1 - self.share)
        return torch.stack([q * p / p.sum() for q, p in zip(shares, parts, strict=True)]).sum(0)
