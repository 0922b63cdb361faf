"""Times of calls, and figures measured in a fresh process, for the benchmarks."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def timing(work: Callable[[], Any], repetitions: int = 3) -> tuple[float, float]:
    """Return the median seconds of a call, by the clock and by the processor, after a first call.

    Other work on the machine stretches wall-clock time most of all.
    """
    work()
    taken = []
    for _ in range(repetitions):
        clock, processor = time.perf_counter(), time.process_time()
        work()
        taken.append((time.perf_counter() - clock, time.process_time() - processor))
    by_clock, by_processor = zip(*taken, strict=True)
    return statistics.median(by_clock), statistics.median(by_processor)


def in_process(call: str) -> dict[str, float]:
    """Run a Python expression in a fresh process and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
