"""Where batches come from: label maps, a store, or both mixed; and the scans that validate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.data.augmentation import Augmenter
from trinat.segmentation.data.dataset import (
    BalancedSampler,
    Place,
    SliceReaders,
    StoredSlice,
    open_slices,
)
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise
from trinat.segmentation.synthetic.targets import aim
from trinat.segmentation.training.config import StoreConfig
from trinat.segmentation.training.validation import Scan


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (B, C, H, W) float32, classes (B, H, W) uint8, and what they are, for messages."""

    images: Tensor
    labels: Tensor
    what: str


class Source(Protocol):
    """Gives the same batch for the same arguments, so that a run can be resumed."""

    fingerprint: str

    def expect(self, view: View, first: int, count: int) -> None:
        """Announce slices that will be asked for soon, perhaps more than once."""
        return

    def draw(
        self, view: View, first: int, count: int, generator: torch.Generator
    ) -> Batch:
        """`count` slices, the first of which is the view's number `first` since the start."""

    def counts(self, view: View) -> Tensor:
        """(K,) pixels of each class, for the loss."""


class SyntheticSource(Source):
    """Synthetic slices from label maps, each of them new."""

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
        heads = aim(maps, scheme, device, learn_fluid=config.learn_fluid)
        # The label maps themselves are on the device once.
        views = (
            v for v in View if v != View.SAGITTAL or not scheme.has_unpartnered_sides
        )
        self.heads = {view: heads.seen_in(view) for view in views}

    def draw(
        self, view: View, first: int, count: int, generator: torch.Generator
    ) -> Batch:
        images, labels = synthesise(
            self.heads[view],
            self.config,
            view,
            count,
            self.size,
            generator,
            self.neighbours,
        )
        return Batch(
            images, labels, f"synthetic {view.value} slices {first}-{first + count - 1}"
        )

    def counts(self, view: View) -> Tensor:
        heads = self.heads[view]
        voxels = torch.bincount(
            heads.labels.flatten(), minlength=len(heads.classes)
        ).double()
        counts = torch.zeros(
            len(heads.scheme), dtype=torch.float64, device=voxels.device
        )
        counts.index_add_(0, heads.targets.long(), voxels)
        counts[0] = self.background * counts[1:].sum()
        return counts.cpu()


class MixedSource(Source):
    """Synthetic and real slices: `share` of each batch is synthetic, on average."""

    def __init__(self, synthetic: Source, real: Source, share: float) -> None:
        self.synthetic, self.real, self.share = synthetic, real, share
        self.fingerprint = f"{share} {synthetic.fingerprint} {real.fingerprint}"

    def expect(self, view: View, first: int, count: int) -> None:
        for source, start, part in self._parts(first, count):
            source.expect(view, start, part)

    def draw(
        self, view: View, first: int, count: int, generator: torch.Generator
    ) -> Batch:
        batches = [
            source.draw(view, start, part, generator)
            for source, start, part in self._parts(first, count)
        ]
        return Batch(
            torch.cat([batch.images for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            ", ".join(batch.what for batch in batches),
        )

    def _parts(self, first: int, count: int) -> list[tuple[Source, int, int]]:
        """Whose slices they are, from which of its own on, and how many."""
        # Of the slices up to n, floor(share n) are synthetic: exact over time for any batch size.
        start, end = (int(self.share * n) for n in (first, first + count))
        more = end - start
        parts = (self.synthetic, start, more), (self.real, first - start, count - more)
        return [part for part in parts if part[2]]

    def counts(self, view: View) -> Tensor:
        parts = [s.counts(view).double() for s in (self.synthetic, self.real)]
        shares = (self.share, 1 - self.share)
        return torch.stack(
            [q * p / p.sum() for q, p in zip(shares, parts, strict=True)]
        ).sum(0)


class StoreSource(Source):
    """Slices of a store's training part, augmented; rare structures come more often.

    Readers give whole slices as they are stored. Cropping and augmentation are done here, with the
    batch's own generator, so that the number of readers changes no bit.
    """

    # Share of each epoch that is sampled so that all structures are equally frequent.
    balanced_share = 0.5

    def __init__(
        self,
        store: StoreConfig,
        views: Sequence[View],
        size: tuple[int, int],
        channels: int,
        seed: int,
        scheme: LabelScheme,
        workers: int = 0,
    ) -> None:
        self.size, self.seed = size, seed
        opened = Store(store.path)
        if opened.scheme.names != scheme.names:
            raise DatasetError(
                f"holds labels of {opened.scheme.name}, not {scheme.name}",
                where=store.path,
                remedy="prepare it with those labels, or change `scheme` in the recipe",
            )
        self.fingerprint = (
            f"{opened.fingerprint} {read_split(store.split).model_dump_json()}"
        )
        self.datasets = {
            view: open_slices(store.path, store.split, "train", view, thick=channels)
            for view in views
        }
        self.augmenters = {
            view: Augmenter(store.augmentation, view, scheme.seen_in(view))
            for view in views
        }
        self._orders: dict[tuple[View, int], list[int]] = {}
        # Of whatever view: all have the same subjects.
        files = self.datasets[views[0]].files
        self._readers = SliceReaders(files, workers)
        self._expected: dict[
            tuple[View, int, int], list[Callable[[], StoredSlice]]
        ] = {}

    def close(self) -> None:
        """Read nothing ahead any more."""
        self._readers.close()

    def expect(self, view: View, first: int, count: int) -> None:
        if (view, first, count) not in self._expected:
            places = self._places(view, first, count)
            self._expected[view, first, count] = self._readers.order(places)

    def draw(
        self, view: View, first: int, count: int, generator: torch.Generator
    ) -> Batch:
        self.expect(view, first, count)
        slices = [read() for read in self._expected.pop((view, first, count))]
        images, labels = self._cut(slices, generator)
        images, labels = self.augmenters[view](images, labels, generator)
        places = self._places(view, first, count)
        names = " ".join(self._readers.files.name(place) for place in places)
        return Batch(images, labels, f"{view.value} slices {names}")

    def counts(self, view: View) -> Tensor:
        return torch.from_numpy(
            self.datasets[view].class_counts.sum(axis=0, dtype=np.int64)
        )

    def _places(self, view: View, first: int, count: int) -> list[Place]:
        items = (self._item(view, number) for number in range(first, first + count))
        return [self.datasets[view].place(item) for item in items]

    def _item(self, view: View, number: int) -> int:
        dataset = self.datasets[view]
        epoch, place = divmod(number, len(dataset))
        if (view, epoch) not in self._orders:
            sampler = BalancedSampler(
                dataset, share=self.balanced_share, seed=self.seed
            )
            sampler.set_epoch(epoch)
            # A batch may reach from one epoch into the next; older orders are done with.
            self._orders = {k: v for k, v in self._orders.items() if k[1] >= epoch - 1}
            self._orders[view, epoch] = list(sampler)
        return self._orders[view, epoch][place]

    def _cut(
        self, slices: Sequence[StoredSlice], generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Cut around what is labelled, at a random place, or pad with background, to size.

        Subjects may differ in shape. -> images (B, C, H, W) and labels (B, H, W) on the device.
        """
        device = generator.device
        # All at once, since a GPU is waited for when its numbers are looked at.
        shares = torch.rand(
            (len(slices), 2), generator=generator, device=device
        ).tolist()
        pinned = device.type == "cuda"
        shape = (len(slices), len(slices[0].image.codes), *self.size)
        codes = torch.empty(shape, dtype=torch.uint16, pin_memory=pinned)
        labels = torch.zeros(
            (len(slices), *self.size), dtype=torch.uint8, pin_memory=pinned
        )
        for stored, share, image, truth in zip(
            slices, shares, codes.numpy(), labels.numpy(), strict=True
        ):
            rows, columns = (
                _window(np.asarray(stored.labels.any(axis)), want, part)
                for axis, want, part in zip((1, 0), self.size, share, strict=True)
            )
            inside = stored.labels[rows, columns]
            height, width = inside.shape
            truth[:height, :width] = inside
            image[...] = stored.image.zero
            image[:, :height, :width] = stored.image.codes[:, rows, columns]
        scales, zeros = zip(
            *((s.image.scale, s.image.zero) for s in slices), strict=True
        )
        images = _to_float(codes.to(device, non_blocking=True), scales, zeros)
        return images, labels.to(device, non_blocking=True)


def _to_float(codes: Tensor, scales: Sequence[float], zeros: Sequence[int]) -> Tensor:
    """Codes (B, C, H, W) as values, each by its own scale and zero, on the device of the codes.

    As `Quantised.values` does it, operation by operation, so that no bit differs.
    """

    def each(numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=codes.device).view(
            -1, 1, 1, 1
        )

    images = codes.float()
    if any(zeros):
        images -= each(zeros)
    images *= each(scales)
    return images


def _window(labelled: NDArray[np.bool_], want: int, share: float) -> slice:
    """`want` places of an axis: all that is labelled on it if they can, else none but such.

    `share`, from 0 to below 1, says which of the windows that do; an axis may be too short.
    """
    have = len(labelled)
    places = np.flatnonzero(labelled)
    low, high = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, have)
    latest = max(0, have - want)
    first, last = sorted(min(max(0, start), latest) for start in (high - want, low))
    start = first + int(share * (last + 1 - first))
    return slice(start, start + want)


def store_scans(store: Path, split: Path, view: View, limit: int) -> Iterator[Scan]:
    """Whole subjects of a split's validation part, the first `limit`."""
    opened = Store(store)
    for subject in opened.part("validation", split)[:limit] if limit else ():
        file = opened.file(subject)
        count = file.slice_count(view)
        images, labels = file.image(view, 0, count), file.labels(view, 0, count)
        file.close()
        yield Scan(subject, torch.from_numpy(images), torch.from_numpy(labels))
