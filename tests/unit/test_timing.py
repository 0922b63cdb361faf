"""Timing: nested stages, threads, and several processes together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from trinat.segmentation import timing
from trinat.segmentation.timing import (
    Clock,
    report_stages_to,
    stage,
    timed,
    together,
    wait_first,
)


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_an_inner_stage_does_not_count_for_the_outer_one() -> None:
    clock = Clock()
    with timed(clock), stage("outer"):
        busy(0.05)
        with stage("inner"):
            busy(0.1)
        busy(0.05)
    spent = clock.take()
    assert list(spent) == ["", "outer", "inner"]
    assert spent["outer"][1] == pytest.approx(0.1, abs=0.02)
    assert spent["inner"][1] == pytest.approx(0.1, abs=0.02)


def test_time_without_work_is_no_processor_time() -> None:
    clock = Clock()
    with timed(clock), stage("waits"):
        time.sleep(0.1)
    wall, processor = clock.take()["waits"]
    assert wall >= 0.1
    assert processor < 0.05


def test_stages_of_threads_share_the_time_and_add_up_to_the_whole() -> None:
    began, clock = time.perf_counter(), Clock()
    both = threading.Barrier(2)

    def work(name: str) -> None:
        with timed(clock), stage(name):
            both.wait()
            time.sleep(0.1)
            both.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.1)
    spent = clock.take()
    assert sum(wall for wall, _ in spent.values()) == pytest.approx(
        time.perf_counter() - began, abs=0.01
    )
    assert spent["a"][0] == pytest.approx(spent["b"][0], abs=0.04)
    assert spent[""][0] >= 0.1


def test_a_stage_that_fails_is_over() -> None:
    clock = Clock()
    with timed(clock), pytest.raises(ValueError, match="wrong"), stage("fails"):
        raise ValueError("wrong")
    clock.take()
    assert list(clock.take()) == [""]


def test_of_processes_side_by_side_wall_time_counts_once() -> None:
    parts = [{"read": (2.0, 1.0)}, {"read": (4.0, 3.0), "write": (1.0, 1.0)}]
    assert together(parts, side_by_side=2) == {"read": (3.0, 4.0), "write": (0.5, 1.0)}


def test_the_table_of_a_process_adds_up_from_its_creation() -> None:
    code = (
        "import time; from trinat.segmentation.timing import as_table, stage, time_process\n"
        "clock = time_process()\n"
        "with stage('work'): time.sleep(0.3)\n"
        "print(as_table(clock.take()))"
    )
    began = time.perf_counter()
    answer = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    whole = time.perf_counter() - began
    lines = [line.split() for line in answer.stdout.splitlines()[1:]]
    walls = {name: float(wall) for name, wall, *_ in lines}
    assert list(walls) == ["start", "work", "other", "total"]
    # The system records the start of a process in hundredths of a second.
    assert 0.3 <= walls["work"] < walls["total"] <= whole + 0.02
    assert walls.pop("total") == pytest.approx(sum(walls.values()), abs=0.03)


def test_who_listens_hears_each_stage_that_follows_another() -> None:
    heard: list[str] = []
    with report_stages_to(heard.append):
        for name in ("reading", "coronal", "coronal", "axial"):
            with stage(name):
                pass
    with stage("later"):
        pass
    assert heard == ["reading", "coronal", "axial"]


def test_a_gpu_is_waited_for_before_a_time_is_taken_and_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that a GPU still has at the end of a stage belongs to that stage."""
    waits: list[float] = []

    def wait() -> None:
        waits.append(time.perf_counter())
        time.sleep(0.1)

    monkeypatch.setattr(timing, "_wait", None)
    wait_first(wait)
    with stage("untimed"):
        pass
    assert not waits
    clock = Clock()
    with timed(clock), stage("forward"):
        pass
    assert len(waits) == 2
    assert clock.take()["forward"][0] >= 0.1
