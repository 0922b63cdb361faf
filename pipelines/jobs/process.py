"""A process: what it sets up, the processors that it may use, and the signals that stop it."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# glibc's names for these are macros in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Buffers up to this size are kept by the process when freed. A layer's activations are
# reused by the next layer, so the process grows by its largest layers once, not per call.
_KEPT_BYTES = 1 << 30
# After a signal, for what is in hand: less than a queue or a container waits may be too little for
# one scan on a processor, more than this is a scan that hangs.
GRACE_S = 60.0


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


def prepare_training(device: torch.device, *, deterministic: bool = False) -> None:
    """Let torch look for the fastest kernels of a GPU, which pays: in training sizes stay.

    Or for those that give the same bits each time; an operation that has none raises RuntimeError.
    """
    import torch

    if deterministic:
        torch.use_deterministic_algorithms(True)
    if device.type != "cuda":
        return
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


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
    """Call `stop` at SIGTERM, SIGUSR1, Ctrl-C or an alarm; only in the main thread.

    The handlers from before are back when the context ends. In another thread nothing is changed,
    as Python allows handlers in the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM)
    before = [signal.signal(number, handle) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)


class _OverdueError(BaseException):
    """Ends the block at once: what is in hand is left for the next run."""


@contextmanager
def stop_on_signal(on_stop: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a flag, which the yielded function returns.

    What is in hand can be finished so. A second signal, or the end of the grace, leaves the block
    at once, wherever it is. `on_stop` is called when the flag is first seen, and not by the handler
    of the signal: that may come in the middle of a line that is printed.
    """
    is_asked = False
    is_told = False

    def ask() -> None:
        nonlocal is_asked
        if is_asked:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise _OverdueError
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)
        is_asked = True

    def stop() -> bool:
        nonlocal is_told
        if is_asked and not is_told:
            is_told = True
            on_stop()
        return is_told

    with suppress(_OverdueError), stop_signals(ask):
        try:
            yield stop
        finally:
            if is_asked:
                signal.setitimer(signal.ITIMER_REAL, 0)
