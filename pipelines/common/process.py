"""Processes that compute: what each sets up, and work on many items in several of them."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from typing import TYPE_CHECKING, TypeVar

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
    """Call once, at the start of every command that computes."""
    tune_allocation()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def tune_allocation() -> bool:
    """Keep large freed buffers instead of returning them to the kernel; True where it took effect.

    By default glibc maps each buffer above 32 MiB anew and unmaps it when freed, so each layer
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
    """Sizes do not change in training: a GPU's fastest kernels are worth looking for."""
    if device.type == "cuda":
        import torch

        torch.backends.cudnn.benchmark = True


def cpu_count() -> int:
    """Processors that this process may use: a job's share, not the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started here, and later by threads started here, never see a Ctrl-C.

    It reaches all processes of a terminal, and what it means is this one's to decide: it does when
    the block ends.
    """
    # Starting it, as the first process would, lets interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at SIGTERM, SIGUSR1, Ctrl-C or an alarm; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM)
    before = [signal.signal(number, lambda *_: stop()) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)


def isolated(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    jobs: int,
    *,
    killed: Callable[[Item], Result],
    finished: Callable[[Result, int, int], object] = lambda result, done, total: None,
    torch_threads: int | None = 1,
) -> list[Result]:
    """Results in the order of items; `killed` is the result of one whose process died.

    `finished(result, done, total)` is called as each comes. With one job all is done in this
    process. Without a number of threads torch is not touched: work that seldom needs it need not
    wait for its import.
    """
    results: dict[int, Result] = {}

    def take(number: int, result: Result) -> None:
        results[number] = result
        finished(result, len(results), len(items))

    jobs, waiting = min(jobs, len(items)), deque(range(len(items)))
    while waiting and jobs <= 1:
        number = waiting.popleft()
        take(number, work(items[number]))
    while waiting:
        crashed: list[int] = []
        with _pool(jobs, work, torch_threads) as pool:
            running: dict[Future[Result], int] = {}
            while running or (waiting and not crashed):
                # No more than are at work, so that a broken pool leaves few in doubt.
                while waiting and not crashed and len(running) < jobs:
                    number = waiting.popleft()
                    try:
                        running[pool.submit(work, items[number])] = number
                    except BrokenProcessPool:
                        crashed.append(number)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    try:
                        take(number, future.result())
                    except BrokenProcessPool:
                        crashed.append(number)
        # Whose fault it was is not told: each suspect gets a process of its own.
        for number in crashed:
            with _pool(1, work, torch_threads) as pool:
                try:
                    result = pool.submit(work, items[number]).result()
                except BrokenProcessPool:
                    result = killed(items[number])
            take(number, result)
    return [results[number] for number in range(len(items))]


def _pool(
    workers: int, work: Callable[[Item], Result], torch_threads: int | None
) -> ProcessPoolExecutor:
    # Workers are forked from one clean process that has imported everything once.
    context = get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    return ProcessPoolExecutor(workers, context, _start_worker, (torch_threads,))


def _start_worker(torch_threads: int | None) -> None:
    # Ctrl-C reaches the whole process group: the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nor does a worker outlive a parent that was killed, and write where another run is.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(torch_threads)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
