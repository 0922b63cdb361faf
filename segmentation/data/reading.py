"""Slices of many subjects, read here or, ahead of their use, by processes of their own.

Nothing here needs torch, so that such a process is light and starts quickly. What it has read
is in memory without a name, whose handle goes through a pipe. That needs no room in /dev/shm, of
which containers have little, and a killed process leaves nothing behind. Workers of
torch's DataLoader would import torch, and put tensors into /dev/shm.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmentation.data.slices import Quantised, SubjectFile
from segmentation.errors import DatasetError, TrinatError
from segmentation.space.views import View

__all__ = ["Order", "Place", "SliceReaders", "StoredSlice", "SubjectFiles"]

# Open files are kept, up to this many: opening costs as much as reading two slices.
_OPEN_FILES = 256
# A signal goes to the whole process group. Readers ignore it and end with the process that they
# serve, which may have a step to finish and a state to save.
_NOT_THEIRS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_S = 20.0


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


@dataclass(eq=False)
class Part:
    """What one process reads of an order: which of its places; its answer, once it is here."""

    reader: _Reader
    every: slice
    places: Sequence[Place]
    answer: list[StoredSlice] | TrinatError | None = None


@dataclass(frozen=True)
class Order:
    """Slices that were asked for, and who reads which of them."""

    places: Sequence[Place]
    parts: Sequence[Part]


class SliceReaders:
    """`workers` processes among which each order is divided; with none, this process reads.

    Their number decides how soon slices are there, and nothing else. They end when this is
    closed or let go of, and with this process, however it ends. Elsewhere than on Linux there are
    none.
    """

    def __init__(self, files: SubjectFiles, workers: int, *, where: Path) -> None:
        self.files, self._turn = files, 0
        # macOS has no memory without a name, and wants each handle acknowledged in between orders.
        count = workers if hasattr(os, "memfd_create") else 0
        self._readers = [_Reader(files, where) for _ in range(count)]
        self.close = Finalize(self, _close, (self._readers,), exitpriority=0)

    def order(self, places: Sequence[Place]) -> Order:
        """Have slices read; without workers nothing is done before they are taken."""
        parts = []
        for number, reader in enumerate(self._readers):
            # In turn, also from one order to the next: a batch may be smaller than their number.
            every = slice((number - self._turn) % len(self._readers), None, len(self._readers))
            if places[every]:
                parts.append(Part(reader, every, places[every]))
                reader.ask(parts[-1])
        if self._readers:
            self._turn = (self._turn + len(places)) % len(self._readers)
        return Order(places, parts)

    def take(self, order: Order) -> list[StoredSlice]:
        """The slices of an order, in its order; waits for them."""
        if not order.parts:
            return [self.files.read(place) for place in order.places]
        slices: list[Any] = [None] * len(order.places)
        for part in order.parts:
            slices[part.every] = part.reader.fetch(part)
        return slices


class _Reader:
    """One process that reads, from the side of the one that asks; it answers order by order."""

    def __init__(self, files: SubjectFiles, where: Path) -> None:
        self._files, self._where = files, where
        self._asked: deque[Part] = deque()
        # Not forked: this process has threads, and perhaps a GPU.
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, files), daemon=True)
        # Started on the way, it would lift what is blocked.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_THEIRS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def ask(self, part: Part) -> None:
        self._asked.append(part)
        # If it is dead, that is said where the slices are missed.
        with suppress(ConnectionError):
            self._pipe.send(part.places)

    def fetch(self, part: Part) -> list[StoredSlice]:
        while part.answer is None:
            try:
                answer = _receive(self._pipe)
            except (EOFError, OSError, RuntimeError) as error:
                # The last: its handle did not arrive, as too many files are open here.
                raise self._death(error) from error
            self._asked.popleft().answer = answer
        if isinstance(part.answer, TrinatError):
            raise part.answer
        return part.answer

    def close(self) -> None:
        self._pipe.close()

    def gone(self) -> None:
        """Wait for its end; a disk that does not answer may keep it from that."""
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_PATIENCE_S)

    def _death(self, error: Exception) -> DatasetError:
        self._process.join(_PATIENCE_S)
        code = self._process.exitcode
        how = f"ended with status {code}"
        if code is None:
            how = f"lives, but its answer was not received ({error})"
        elif code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        places = self._asked[0].places
        names = " ".join(self._files.name(place) for place in places)
        return DatasetError(
            f"the process {self._process.pid}, which read ahead, {how} "
            f"at {places[0].view.value} slices {names}",
            where=self._where,
            remedy="look whether memory is short and whether those slices can be read",
        )


def _close(readers: Sequence[_Reader]) -> None:
    for reader in readers:
        reader.close()
    for reader in readers:
        reader.gone()


def _serve(pipe: Connection, files: SubjectFiles) -> None:
    """Read what is asked for until nobody is there to ask."""
    with suppress(EOFError, ConnectionError):
        while True:
            places = pipe.recv()
            try:
                slices = [files.read(place) for place in places]
            except TrinatError as error:
                pipe.send(error)
            else:
                _send(pipe, slices)


def _send(pipe: Connection, slices: Sequence[StoredSlice]) -> None:
    """Facts through the pipe, voxels in memory: all codes, then all labels."""
    with os.fdopen(os.memfd_create("trinat-slices"), "w+b") as memory:
        for array in (*(s.image.codes for s in slices), *(s.labels for s in slices)):
            memory.write(np.ascontiguousarray(array).data)
        memory.flush()
        pipe.send([(s.image.codes.shape, s.image.scale, s.image.zero) for s in slices])
        send_handle(pipe, memory.fileno(), None)


def _receive(pipe: Connection) -> list[StoredSlice] | TrinatError:
    """What `_send` was given, read-only, or the error in its place."""
    facts = pipe.recv()
    if isinstance(facts, TrinatError):
        return facts
    handle = recv_handle(pipe)
    try:
        memory = mmap(handle, 0, access=ACCESS_READ)
    finally:
        os.close(handle)
    images, start = [], 0
    for shape, scale, zero in facts:
        codes = np.ndarray(shape, np.uint16, memory, start)
        images.append(Quantised(codes, scale, zero))
        start += codes.nbytes
    slices = []
    for image in images:
        labels: NDArray[np.uint8] = np.ndarray(image.codes.shape[1:], np.uint8, memory, start)
        slices.append(StoredSlice(image, labels))
        start += labels.nbytes
    return slices
