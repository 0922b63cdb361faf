"""Limits of time and memory within this process."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn


@contextlib.contextmanager
def time_limit(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise `error` if the block does not end in time; an outer limit continues afterwards."""

    def late(*_: object) -> NoReturn:
        raise error

    before = signal.signal(signal.SIGALRM, late)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left_s)


def limit_memory(extra_mib: int) -> None:
    """Limit the memory of this process to its present size plus `extra_mib`."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + extra_mib * 2**20
        resource.setrlimit(
            resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1])
        )
