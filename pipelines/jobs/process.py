"""Process setup: memory, processors and the signals that stop it."""

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

# Parameters of mallopt, which glibc defines as macros in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Freed buffers up to this size are kept by the process. A layer's activations are reused by the
# next layer, so the process grows by its largest layers once, not per call.
_KEPT_BYTES = 1 << 30
# Time for the running items to finish after a signal. The grace period of a queue or a
# container may be too short for a scan on a CPU; a scan that needs longer than this hangs.
GRACE_S = 60.0


def prepare_process(threads: int | None = None) -> None:
    """Tune memory allocation and, if `threads` is given, set the number of torch's threads.

    Call it once, at the start of every command that computes.
    """
    tune_allocation()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def tune_allocation() -> bool:
    """Keep large freed buffers in the process; return True if it took effect.

    By default glibc maps each buffer above 32 MiB when needed and unmaps it when freed, so that
    each layer of a network pays page faults for its whole output: a small convolutional network
    ran 3.4 times faster with this call (docs/notes/speed.md). `mallopt` works on the running
    process: it needs no environment variable before the start, and nothing is inherited.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    kept = mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(kept and trimmed)


@contextmanager
def prepare_training(
    device: torch.device, *, deterministic: bool = False
) -> Iterator[None]:
    """Enable torch's search for the fastest GPU kernels, as training has constant sizes.

    With `deterministic`, select reproducible kernels instead; an operation without one raises
    RuntimeError. At the end of the block, torch's settings and its global generators of random
    numbers are restored, because the process may be a notebook.
    """
    import torch

    was_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    searched = torch.backends.cudnn.benchmark
    gpus = [device] if device.type == "cuda" else []
    try:
        if deterministic:
            torch.use_deterministic_algorithms(True)
        if gpus:
            torch.backends.cudnn.benchmark = not deterministic
        if gpus and deterministic:
            # cuBLAS reads the variable when it is first used.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        with torch.random.fork_rng(gpus):
            yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic, warn_only=warns_only)
        torch.backends.cudnn.benchmark = searched


def cpu_count() -> int:
    """Return the number of processors that this process may use.

    In a job of a batch queue, it is the share of the job.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes that are started within the block, and in their threads.

    Ctrl-C reaches all processes of a terminal, but this process alone decides what to do; it
    receives the signal when the block ends.
    """
    # Starting the tracker later, with the first process, would unblock interrupts again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` on SIGTERM, SIGUSR1, SIGINT (Ctrl-C) or SIGALRM within the block.

    The previous handlers are restored at the end of the block. In other threads than the main
    thread this does nothing, since Python allows signal handlers in the main thread only.
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
    """Raised to leave a block at once, without waiting for the items that are being processed.

    These are left for the next run.
    """


@contextmanager
def stop_on_signal(on_stop: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Let a run finish the items it works on after a signal such as Ctrl-C, and then stop.

    Yields a function that returns True after a signal; the run has to ask it before each item.
    `on_stop` is called when that function first returns True. The signal handler does not call it,
    because it may interrupt the printing of a line. A second signal, or the end of the grace period
    (`GRACE_S`), leaves the block at once, wherever it is.
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
