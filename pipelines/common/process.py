"""Processes that compute: what each sets up, and work on many items in several of them.

`prepare_process` sets up the process of a command. `isolated` works on many items in worker
processes, of which one that dies (killed for its memory, a fault in a library) costs one item.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# glibc's names for these are macros in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Buffers up to this size are kept by the process when freed. A layer's activations are
# reused by the next layer, so the process grows by its largest layers once, not per call.
_KEPT_BYTES = 1 << 30


def prepare_process(threads: int | None = None) -> None:
    """Set up memory and, if a number is given, torch's threads.

    To be called once, at the start of every command that computes.
    """
    tune_allocation()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def tune_allocation() -> bool:
    """Keep large freed buffers instead of returning them to the kernel; True where it took effect.

    By default glibc maps each buffer above 32 MiB when needed and unmaps it when freed: each layer
    of a network pays page faults for its whole output: a small convolutional network ran
    3.4 times faster with this call (docs/notes/speed.md). `mallopt` works on the running
    process: no environment variable to set before start, and nothing to inherit.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    kept = mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(kept and trimmed)


def prepare_training(device: torch.device) -> None:
    """Let torch look for the fastest kernels of a GPU, which pays: in training sizes stay."""
    if device.type == "cuda":
        import torch

        torch.backends.cudnn.benchmark = True


def cpu_count() -> int:
    """Processors that this process may use: a job's share, not the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _say_nothing(result: object, done: int, total: int) -> None:
    """What `isolated` calls for each result while nobody wants to hear of it."""


def isolated(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    *,
    killed: Callable[[Item], Result],
    finished: Callable[[Result, int, int], object] = _say_nothing,
    torch_threads: int | None = 1,
) -> list[Result]:
    """Results in the order of items; `killed` is the result of one whose process died.

    `finished(result, done, total)` is called as each comes. With one job all is done in this
    process. Without a number of threads torch is not touched: work that seldom needs it need not
    wait for its import.
    """
    results: dict[int, Result] = {}

    def keep(number: int, result: Result) -> None:
        results[number] = result
        finished(result, len(results), len(items))

    if min(jobs, len(items)) <= 1:
        for number, item in enumerate(items):
            keep(number, work(item))
    else:
        workers = _Workers(work, min(jobs, len(items)), torch_threads)
        waiting = deque(enumerate(items))
        while waiting:
            suspects = workers.run(waiting, keep)
            # Which of them ended its process is not known: each gets a process of its own.
            for number, item in suspects:
                try:
                    result = workers.run_alone(item)
                except BrokenProcessPool:
                    result = killed(item)
                keep(number, result)
    return [results[number] for number in range(len(items))]


@dataclass(frozen=True)
class _Workers(Generic[Item, Result]):
    """`count` processes that do `work`; a pool of them ends with the first that dies."""

    work: Callable[[Item], Result]
    count: int
    torch_threads: int | None

    def run(
        self,
        waiting: deque[tuple[int, Item]],
        keep: Callable[[int, Result], None],
    ) -> list[tuple[int, Item]]:
        """Work on numbered items from the left of `waiting`; those in work when a process died.

        Returns once all are done, or, after a death, once nothing is at work; then the items that
        were not begun are still in `waiting`.
        """
        crashed: list[tuple[int, Item]] = []
        running: dict[Future[Result], tuple[int, Item]] = {}
        with self._pool(self.count) as pool:
            while running or (waiting and not crashed):
                # No more than are at work, so that a broken pool leaves few in doubt.
                while waiting and not crashed and len(running) < self.count:
                    item = waiting.popleft()
                    try:
                        running[pool.submit(self.work, item[1])] = item
                    except BrokenProcessPool:
                        crashed.append(item)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    item = running.pop(future)
                    try:
                        keep(item[0], future.result())
                    except BrokenProcessPool:
                        crashed.append(item)
        return crashed

    def run_alone(self, item: Item) -> Result:
        """The result of one item, in a new process; raises BrokenProcessPool if that dies."""
        with self._pool(1) as pool:
            return pool.submit(self.work, item).result()

    def _pool(self, processes: int) -> ProcessPoolExecutor:
        return worker_pool(processes, self.work.__module__, self.torch_threads)


def worker_pool(
    processes: int, module: str, torch_threads: int | None = 1
) -> ProcessPoolExecutor:
    """Processes that end with this one, and have imported the module that their work is in.

    They are forked from one clean process that has imported it once. Torch has `torch_threads` in
    each; with None it is not touched.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    return ProcessPoolExecutor(processes, context, _start_worker, (torch_threads,))


def _start_worker(torch_threads: int | None) -> None:
    """What a worker does before its first item."""
    # Ctrl-C reaches the whole process group: the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nor does a worker outlive a parent that was killed, and write where another run is.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(torch_threads)


def _end_with_parent() -> None:
    """Wait for the parent's end, and end this process with it."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
