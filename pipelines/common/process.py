"""What a process that computes sets up before it starts."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
