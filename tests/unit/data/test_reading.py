"""Slices from reading processes: the same as read here, errors and deaths told, nobody left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.small_store import damage, small_store

from segmentation.data.reading import Place, SliceReaders, SubjectFiles
from segmentation.data.slices import SubjectFile
from segmentation.errors import DatasetError, IntegrityError
from segmentation.space.views import View

SHAPES = {"a": (16, 18, 20), "b": (17, 15, 13)}
PLACES = [
    Place(file, view, middle, 3)
    for file, view, middle in (
        (0, View.AXIAL, 0),
        (1, View.CORONAL, 7),
        (1, View.AXIAL, 12),
        (0, View.CORONAL, 17),
        (0, View.AXIAL, 9),
    )
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("reading") / "store", SHAPES)


def files_of(store: Path) -> SubjectFiles:
    return SubjectFiles([SubjectFile(store / f"subjects/{name}.h5") for name in SHAPES])


def readers_of(store: Path, workers: int) -> SliceReaders:
    return SliceReaders(files_of(store), workers, where=store)


@pytest.fixture(scope="module")
def two(store: Path) -> Iterator[SliceReaders]:
    readers = readers_of(store, 2)
    yield readers
    readers.close()


def test_two_processes_give_what_this_one_reads_in_the_order_asked(
    store: Path, two: SliceReaders
) -> None:
    here = readers_of(store, 0)
    orders = [PLACES[:1], PLACES, PLACES[2:4], []]
    pairs = [(two.order(places), here.order(places)) for places in orders]
    for theirs, ours in reversed(pairs):
        got, expected = two.take(theirs), here.take(ours)
        assert len(got) == len(expected) == len(ours.places)
        for one, other in zip(got, expected, strict=True):
            assert np.array_equal(one.image.values(), other.image.values())
            assert np.array_equal(one.labels, other.labels)


def test_work_is_divided_evenly_also_of_orders_of_one(two: SliceReaders) -> None:
    orders = [two.order(PLACES[:1]) for _ in range(4)]
    readers = [part.reader for order in orders for part in order.parts]
    assert readers[0] is not readers[1]
    assert readers[:2] == readers[2:]
    for order in orders:
        two.take(order)


def test_a_system_without_memory_files_reads_here(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    readers = readers_of(store, 2)
    order = readers.order(PLACES)
    assert not order.parts
    assert len(readers.take(order)) == len(PLACES)


def test_a_damaged_slice_is_named_and_the_others_still_read(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", SHAPES)
    damage(store / "subjects/b.h5", View.AXIAL, "image", 4)
    readers = readers_of(store, 1)
    bad, good = (readers.order([Place(1, View.AXIAL, middle, 1)]) for middle in (4, 5))
    with pytest.raises(IntegrityError, match=r"b\.h5: damaged: axial image of slices 4 to 4"):
        readers.take(bad)
    assert len(readers.take(good)) == 1
    readers.close()


def test_a_killed_process_is_named_with_what_it_was_to_read(store: Path) -> None:
    readers = readers_of(store, 1)
    readers.take(readers.order(PLACES[:1]))
    (process,) = {p for p in active_children() if p.pid == readers._readers[0]._process.pid}
    process.kill()
    process.join()
    order = readers.order([PLACES[0], PLACES[4]])
    expected = rf"store: the process {process.pid}.* by signal 9 \(Killed\) at axial slices a:0 a:9"
    with pytest.raises(DatasetError, match=expected):
        readers.take(order)
    readers.close()


def test_processes_end_when_they_are_let_go_of(store: Path) -> None:
    readers = readers_of(store, 1)
    process = psutil.Process(readers._readers[0]._process.pid)
    del readers
    process.wait(20)


WAITS = """
import signal, sys, time
from pathlib import Path
from segmentation.data.reading import SliceReaders, SubjectFiles
if __name__ == "__main__":
    # A shell that starts tests in the background has them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    readers = SliceReaders(SubjectFiles([]), 2, where=Path())
    print(*(reader._process.pid for reader in readers._readers), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nobody_is_left_when_the_one_they_serve_is_stopped(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    ) as served:
        assert served.stdout is not None
        left = [psutil.Process(int(pid)) for pid in served.stdout.readline().split()]
        assert len(left) == 2
        # The group is told: they are not who decides.
        for process in left:
            process.send_signal(signal.SIGTERM)
        served.send_signal(number)
    _, alive = psutil.wait_procs(left, 60)
    assert alive == []
