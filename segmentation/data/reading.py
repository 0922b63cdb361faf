"""Slices of many subjects, read when they are asked for or, ahead of their use, by threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentation.data.slices import FILES, Quantised, SubjectFile
from segmentation.space.views import View

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


@dataclass(frozen=True)
class Order:
    """Slices that were asked for; each may be on its way."""

    places: Sequence[Place]
    coming: Sequence[Future[StoredSlice]]


class SliceReaders:
    """`workers` threads that read ahead; with none, slices are read when they are taken.

    Their number decides how soon slices are there, and nothing else. While zlib unpacks, and it
    takes most of the time, Python goes on: the thread that trains is hardly held up.
    """

    def __init__(self, files: SubjectFiles, workers: int) -> None:
        self.files = files
        self._threads = ThreadPoolExecutor(workers, "reader") if workers else None

    def order(self, places: Sequence[Place]) -> Order:
        """Have slices read; without workers nothing is done before they are taken."""
        threads = self._threads
        return Order(
            places, [threads.submit(self.files.read, p) for p in places] if threads else ()
        )

    def take(self, order: Order) -> list[StoredSlice]:
        """The slices of an order, in its order; waits for them."""
        if self._threads is None:
            return [self.files.read(place) for place in order.places]
        return [future.result() for future in order.coming]

    def close(self) -> None:
        """Read nothing more."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
