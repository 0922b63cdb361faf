"""A process that computes: what it sets up, and the processors that it may use."""

from __future__ import annotations

import ctypes
import os
import platform
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
