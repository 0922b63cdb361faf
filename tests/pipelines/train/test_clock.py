"""Division of a time limit among jobs, by a clock that the tests move."""

from __future__ import annotations

import pytest

from trinat.pipelines.train import clock as trainclock
from trinat.pipelines.train.clock import TrainingClock


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trainclock, "time", clock)
    return clock


def job_of(
    clock: TrainingClock, done: float, others: int, *, validates: bool
) -> TrainingClock:
    clock.begin_job(done, others, validates=validates)
    return clock


def run_job(
    time: Clock, job: TrainingClock, step_s: float, writing_s: float = 0.0
) -> float:
    """Run steps until the schedule is done, and return the seconds that they took."""
    job.start(writing_s)
    began = time.now
    while job.share < 1:
        time.now += step_s
        job.tick(step_s)
    return time.now - began


def test_jobs_share_the_time_and_the_last_ends_before_it_is_over(time: Clock) -> None:
    limit = TrainingClock(90)
    assert run_job(time, job_of(limit, 0.0, 2, validates=False), 1) == pytest.approx(
        30, abs=1
    )
    # The time to start the second job is taken from its share and the third's.
    time.now += 10
    assert run_job(time, job_of(limit, 0.0, 1, validates=False), 1) == pytest.approx(
        25, abs=1
    )
    run_job(time, job_of(limit, 0.0, 0, validates=False), 1)
    assert 1088 <= time.now <= 1090
    assert not limit.why_over


def test_who_has_done_half_gets_half_as_much(time: Clock) -> None:
    job = job_of(TrainingClock(90), 0.5, 1, validates=False)
    assert run_job(time, job, 1) == pytest.approx(30, abs=1)


def test_what_is_written_and_validated_at_the_end_has_its_time(time: Clock) -> None:
    # Writing after the first step, twice as much at the end, and one step: of 100 seconds.
    limit = TrainingClock(100)
    limit.validation_s = 30
    spent = run_job(time, job_of(limit, 0.0, 0, validates=True), 1, writing_s=2.0)
    assert spent == pytest.approx(100 - 2 - 4 - 1 - 30, abs=1)


def test_three_views_that_validate_for_long_have_as_many_steps_each(
    time: Clock,
) -> None:
    # 200 seconds, of which each of three views validates for 50: 16 are left for steps.
    limit = TrainingClock(200)
    spent = []
    limit.validation_s = 50
    for others in (2, 1, 0):
        job = job_of(limit, 0.0, others, validates=True)
        spent.append(run_job(time, job, 1))
        time.now += 50
        limit.note_validation(50)
    assert spent == pytest.approx([16, 16, 16], abs=1.5)
    assert 1196 <= time.now <= 1200


def test_what_the_others_need_to_start_is_taken_from_all_alike(time: Clock) -> None:
    # 100 seconds, of which the second and the third take 11 and 1 each to start: 76 are left.
    limit = TrainingClock(101)
    spent = []
    for others in (2, 1, 0):
        job = job_of(limit, 0.0, others, validates=False)
        job.start(writing_s=1, opening_s=11)
        began = time.now
        while job.share < 1:
            time.now += 0.5
            job.tick(0.5)
        spent.append(time.now - began)
        time.now += 2 + 12
    assert spent == pytest.approx([22, 22, 22], abs=1.5)


def test_what_a_validation_took_counts_more_than_what_was_foreseen() -> None:
    limit = TrainingClock(100)
    limit.validation_s = 50
    limit.note_validation(20)
    assert limit.validation_s == 20
    limit.note_validation(30)
    limit.note_validation(10)
    assert limit.validation_s == 30


def test_who_has_too_few_seconds_for_a_view_is_told_of_what(time: Clock) -> None:
    limit = TrainingClock(90)
    limit.validation_s = 40
    assert limit.why_over == ""
    job_of(limit, 0.0, 2, validates=True).start(1.0)
    assert limit.why_over == (
        "90 seconds are too few: 29.0 of them are left for this job, "
        "and what it writes and validates takes 42.0"
    )


def test_a_time_that_is_over_says_so(time: Clock) -> None:
    limit = TrainingClock(90)
    job_of(limit, 0.0, 0, validates=False).start(0.0)
    time.now += 90
    assert limit.why_over == "the time limit of 90 seconds is over"


def test_a_busy_machine_makes_fewer_steps_and_not_more_seconds(time: Clock) -> None:
    assert run_job(time, job_of(TrainingClock(60), 0.0, 0, validates=False), 7) <= 60


def test_no_time_left_is_no_progress(time: Clock) -> None:
    limit = TrainingClock(5)
    job = job_of(limit, 0.25, 0, validates=False)
    job.start(writing_s=3)
    assert limit.why_over
    assert job.share == 0.25
