"""The time of a call, divided among its jobs, by a clock that the tests move."""

from __future__ import annotations

import pytest

from trinat.pipelines.train import clock as trainclock
from trinat.pipelines.train.clock import JobClock, TimeLimit


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trainclock, "time", clock)
    return clock


def run_job(time: Clock, job: JobClock, step_s: float, writing_s: float = 0.0) -> float:
    """Steps until the schedule is done; returns the seconds that they took."""
    job.start(writing_s)
    began = time.now
    while job.share < 1:
        time.now += step_s
        job.tick(step_s)
    return time.now - began


def test_jobs_share_the_time_and_the_last_ends_before_it_is_over(time: Clock) -> None:
    limit = TimeLimit(90)
    assert run_job(time, JobClock(limit, 0.0, 2, validates=False), 1) == pytest.approx(
        30, abs=1
    )
    # What the second needs to start comes from its part and the third's.
    time.now += 10
    assert run_job(time, JobClock(limit, 0.0, 1, validates=False), 1) == pytest.approx(
        25, abs=1
    )
    run_job(time, JobClock(limit, 0.0, 0, validates=False), 1)
    assert 1088 <= time.now <= 1090
    assert not limit.is_over


def test_who_has_done_half_gets_half_as_much(time: Clock) -> None:
    job = JobClock(TimeLimit(90), 0.5, 1, validates=False)
    assert run_job(time, job, 1) == pytest.approx(30, abs=1)


def test_what_is_written_and_validated_at_the_end_has_its_time(time: Clock) -> None:
    # Writing after the first step, the same twice at the end, and one step: of 100 seconds.
    for validation_s, reserved in ((None, 0.1 * 98), (30.0, 30.0)):
        limit = TimeLimit(100)
        limit.validation_s = validation_s
        spent = run_job(time, JobClock(limit, 0.0, 0, validates=True), 1, writing_s=2.0)
        assert spent == pytest.approx(100 - 2 - 4 - 1 - reserved, abs=1)


def test_a_busy_machine_makes_fewer_steps_and_not_more_seconds(time: Clock) -> None:
    assert run_job(time, JobClock(TimeLimit(60), 0.0, 0, validates=False), 7) <= 60


def test_no_time_left_is_no_progress(time: Clock) -> None:
    limit = TimeLimit(5)
    job = JobClock(limit, 0.25, 0, validates=False)
    job.start(writing_s=3)
    assert limit.is_over
    assert job.share == 0.25
