"""The bench of many tiny scans: it runs, and tells what it promises."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from helpers.overfitted import random_model

from pipelines.bench.batch import memory_mib, run


def test_memory_is_that_of_the_process() -> None:
    before, _ = memory_mib(os.getpid())
    # Pages of its own: an array may get some that the process has kept.
    held = mmap.mmap(-1, 64 * 2**20)
    np.frombuffer(held, np.uint8)[:] = 1
    now, peak = memory_mib(os.getpid())
    assert peak >= now > before + 32
    held.close()


@pytest.mark.slow
def test_the_bench_tells_memory_and_what_a_second_worker_is_worth(capsys) -> None:
    run("4", "3", "1", str(random_model()))
    told = capsys.readouterr().out
    assert "after     4 scans" in told
    assert "one worker" in told.splitlines()[-1]
