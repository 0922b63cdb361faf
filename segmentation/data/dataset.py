"""Slices of a store, read ahead or as a torch dataset, and the order of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from trinat.segmentation.data.quantised import Quantised
from trinat.segmentation.data.slices import FILES, SubjectFile
from trinat.segmentation.data.splits import Part
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View

_THICKNESSES = (1, 3, 5, 7)
# Of slices without a label every eighth is kept, in the order of the volume, so that background
# outside the brain is learnt too.
_KEEP_EVERY = 8

# Open files are kept, up to this many: opening costs as much as reading two slices.
_OPEN_FILES = 256


class Place(NamedTuple):
    """A slice of the file with that number, and neighbours that make it so thick."""

    file: int
    view: View
    middle: int
    thick: int


class StoredSlice(NamedTuple):
    """What a file holds of a slice: codes (C, H, W) and labels (H, W)."""

    image: Quantised
    labels: NDArray[np.uint8]


class SubjectFiles:
    """Subjects' files by number; when too many are open, the first that was opened is closed."""

    def __init__(self, files: Sequence[SubjectFile]) -> None:
        self._files = tuple(files)
        self._open: dict[int, None] = {}

    def __getitem__(self, number: int) -> SubjectFile:
        with FILES:
            if number not in self._open:
                if len(self._open) >= _OPEN_FILES:
                    oldest = next(iter(self._open))
                    del self._open[oldest]
                    self._files[oldest].close()
                self._open[number] = None
        return self._files[number]

    def read(self, place: Place) -> StoredSlice:
        file = self[place.file]
        labels = file.labels(place.view, place.middle, place.middle + 1)[0]
        return StoredSlice(file.slab(place.view, place.middle, place.thick), labels)

    def name(self, place: Place) -> str:
        return f"{self._files[place.file].path.stem}:{place.middle}"


class SliceReaders:
    """`workers` threads that read ahead; with none, slices are read when they are taken.

    Their number decides how soon slices are there, and nothing else. While zlib unpacks, and it
    takes most of the time, Python goes on: the thread that trains is hardly held up.
    """

    def __init__(self, files: SubjectFiles, workers: int) -> None:
        self.files = files
        self._threads = ThreadPoolExecutor(workers, "reader") if workers else None

    def order(self, places: Sequence[Place]) -> list[Callable[[], StoredSlice]]:
        """Have slices read; each is waited for, or without workers read, when it is called."""
        if self._threads is None:
            return [partial(self.files.read, place) for place in places]
        return [self._threads.submit(self.files.read, place).result for place in places]

    def close(self) -> None:
        """Read nothing more."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


class SliceDataset(Dataset[tuple[Tensor, Tensor]]):
    """Item: image (C, H, W) float32 of `thick` neighbouring slices, labels (H, W) uint8.

    Beyond the volume's ends the neighbours are background. An item depends on its index alone,
    not on the worker that reads it.
    """

    def __init__(
        self, store: Store, subjects: Sequence[str], view: View, *, thick: int = 1
    ) -> None:
        if thick not in _THICKNESSES:
            remedy = f"choose one of {_THICKNESSES}"
            raise ConfigError(f"slices cannot be {thick} thick", remedy=remedy)
        if view not in store.views:
            raise DatasetError(f"holds no {view.value} slices", where=store.root)
        self.view, self.thick = view, thick
        self.scheme: LabelScheme = store.scheme.seen_in(view)
        self.subjects = tuple(subjects)
        self.files = SubjectFiles([store.file(subject) for subject in subjects])
        self.subject_of, self.slice_of, self.class_counts = self._index(store)

    def __len__(self) -> int:
        return len(self.slice_of)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = self.files.read(self.place(index))
        return torch.from_numpy(image.values()), torch.from_numpy(labels)

    def place(self, index: int) -> Place:
        """Where an item stands among `files`."""
        file, middle = int(self.subject_of[index]), int(self.slice_of[index])
        return Place(file, self.view, middle, self.thick)

    def _index(
        self, store: Store
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint32]]:
        """Subject and slice of each item (M,), and its voxels per class (M, K)."""
        subjects, slices, counts = [], [], []
        for number, name in enumerate(self.subjects):
            entry, file = store.info.subjects[name], self.files[number]
            if not (entry.has_image and entry.has_labels):
                what = (
                    f"subject {name} has no {'labels' if entry.has_image else 'image'}"
                )
                raise DatasetError(
                    what, where=store.root, remedy="leave it out of the split"
                )
            per_slice = file.class_counts(self.view)
            kept = np.asarray(per_slice[:, 1:].any(axis=1))
            kept[np.flatnonzero(~kept)[::_KEEP_EVERY]] = True
            chosen = np.flatnonzero(kept)
            subjects.append(np.full(len(chosen), number, np.int32))
            slices.append(chosen.astype(np.int32))
            counts.append(per_slice[chosen])
            file.close()
        if not subjects:
            raise DatasetError("no subject to take slices from", where=store.root)
        return np.concatenate(subjects), np.concatenate(slices), np.concatenate(counts)


class BalancedSampler(Sampler[int]):
    """Draws items with repetition: a share of them for a class that they hold, the rest evenly.

    For the share, a foreground class is drawn first and then one of the items that hold it, so
    that the amygdala is met as often as the cortex. Seed and epoch decide all.
    """

    def __init__(self, dataset: SliceDataset, *, share: float, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"a share is between 0 and 1, not {share}")
        self._count = len(dataset)
        self._share, self._seed, self._epoch = share, seed, 0
        holders = (np.flatnonzero(column) for column in dataset.class_counts[:, 1:].T)
        self._holders = [items for items in holders if len(items)]

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self._seed, self._epoch))
        order = rng.permutation(self._count)
        if self._holders:
            replaced = rng.random(self._count) < self._share
            classes = rng.integers(len(self._holders), size=self._count)
            position = rng.random(self._count)
            for index in np.flatnonzero(replaced):
                holders = self._holders[classes[index]]
                order[index] = holders[int(position[index] * len(holders))]
        return iter(order.tolist())


def open_slices(
    store: Path, split: Path, part: Part, view: View, *, thick: int = 1
) -> SliceDataset:
    """The slices of one part of a split, after checking that the split fits the store."""
    opened = Store(store)
    return SliceDataset(opened, opened.part(part, split), view, thick=thick)
