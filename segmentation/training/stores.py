"""Training and validation from a slice store and a split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from segmentation.data.augmentation import Augmenter
from segmentation.data.dataset import BalancedSampler, open_slices
from segmentation.data.splits import read_split
from segmentation.data.store import Store
from segmentation.errors import DatasetError
from segmentation.labels import LabelScheme
from segmentation.training.config import StoreConfig
from segmentation.training.network import classes_of
from segmentation.training.sources import Batch
from segmentation.training.validation import Scan
from segmentation.views import View

__all__ = ["StoreSource", "store_scans"]


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
        """Cut around what is labelled, at a random place, or pad with background, to size."""
        missing = [max(0, want - have) for want, have in zip(self.size, labels.shape, strict=True)]
        edges = (0, missing[1], 0, missing[0])
        image, labels = pad(image, edges), pad(labels, edges)
        rows, columns = (
            _window(labels.any(axis), want, generator)
            for axis, want in zip((1, 0), self.size, strict=True)
        )
        return image[..., rows, columns], labels[rows, columns]


def _window(labelled: Tensor, want: int, generator: torch.Generator) -> slice:
    """`want` places of an axis: all that is labelled on it if they can, else none but such."""
    have = len(labelled)
    places = labelled.nonzero()
    low, high = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, have)
    first, last = sorted(min(max(0, start), have - want) for start in (high - want, low))
    start = torch.randint(first, last + 1, (), generator=generator, device=generator.device)
    return slice(int(start), int(start) + want)


def store_scans(store: Path, split: Path, view: View, limit: int) -> Iterator[Scan]:
    """Whole subjects of a split's validation part, the first `limit`."""
    opened, assignment = Store(store), read_split(split)
    assignment.check(opened.participants, opened.fingerprint, where=str(split))
    for subject in assignment.validation[:limit]:
        file = opened.file(subject)
        count = file.slice_count(view)
        images, labels = file.image(view, 0, count), file.labels(view, 0, count)
        file.close()
        yield Scan(subject, torch.from_numpy(images), torch.from_numpy(labels))
