"""Progress lines in a log file: not too often, with the remaining time."""

from __future__ import annotations

import logging
import time

import pytest

from trinat.pipelines.jobs.progress import log_lines, progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_slow_items_are_a_line_each_with_time_left_and_failures(capsys) -> None:
    clock = Clock()
    with progress(False, terminal=False, clock=clock) as shown:
        for done in range(1, 5):
            clock.now += 100
            shown.show(f"{done}/4 sub-{done}", done, 4, failed=done // 3)
    assert capsys.readouterr().err.splitlines() == [
        "1/4 sub-1, 0:05:00 left",
        "2/4 sub-2, 0:03:20 left",
        "3/4 sub-3, 1 failed, 0:01:40 left",
        "4/4 sub-4, 1 failed",
    ]


def test_fast_items_are_a_line_every_few_seconds_and_one_at_the_end(capsys) -> None:
    clock = Clock()
    with progress(False, terminal=False, clock=clock) as shown:
        for done in range(1, 101):
            clock.now += 0.125
            shown.show(f"{done}/100", done, 100)
    lines = capsys.readouterr().err.splitlines()
    # 3 s are 24 items of 0.125 s.
    assert [line.split("/")[0] for line in lines] == ["24", "48", "72", "96", "100"]


def test_the_pace_is_that_of_the_last_ten_lines(capsys) -> None:
    clock = Clock()
    with progress(False, terminal=False, clock=clock) as shown:
        for done in range(1, 61):
            clock.now += 10 if done <= 40 else 60
            shown.show(f"{done}/100", done, 100)
    # Forty are left, at 60 s each.
    assert capsys.readouterr().err.splitlines()[-1] == "60/100, 0:40:00 left"


def test_what_was_there_before_says_nothing_of_the_time_left(capsys) -> None:
    clock = Clock()
    with progress(False, terminal=False, clock=clock) as shown:
        shown.begin(90)
        clock.now += 20
        shown.show("91/100", 91, 100)
    assert capsys.readouterr().err == "91/100, 0:03:00 left\n"


def test_quiet_is_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(True, terminal=False) as shown:
        shown.show("1/1", 1, 1)
        shown.say("said")
    assert capsys.readouterr().err == ""


def test_what_is_at_work_is_a_line_where_nothing_else_was_said(capsys) -> None:
    clock = Clock()
    with progress(False, terminal=False, clock=clock) as shown:
        shown.enter("0/2 loading", 0, 2, every_s=0)
        clock.now += 5
        shown.enter("0/2 a: reading", 0, 2)
        clock.now += 15
        shown.enter("0/2 a: segmenting", 0, 2)
        clock.now += 20
        shown.show("1/2 a", 1, 2)
    assert capsys.readouterr().err.splitlines() == [
        "0/2 loading",
        "0/2 a: segmenting",
        "1/2 a, 0:00:40 left",
    ]


def wait_for_text(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the first text on stderr within ten seconds."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        text = capsys.readouterr().err
        if text:
            return text
        time.sleep(0.01)
    return ""


def test_a_stage_that_begins_shortly_after_a_line_is_said_later(capsys) -> None:
    with progress(False, terminal=False) as shown:
        shown.enter("0/2 a: reading", 0, 2, every_s=0.1)
        shown.enter("0/2 a: segmenting", 0, 2, every_s=0.1)
        assert capsys.readouterr().err == ""
        assert wait_for_text(capsys) == "0/2 a: segmenting\n"


def test_a_stage_that_is_over_is_not_said_later(capsys) -> None:
    with progress(False, terminal=False) as shown:
        shown.enter("0/2 a: segmenting", 0, 2, every_s=0.1)
        # Too soon for another line.
        shown.show("1/2 a", 1, 2, every_s=60)
        time.sleep(0.3)
        shown.enter("1/2 b: segmenting", 1, 2, every_s=60)
    assert capsys.readouterr().err == ""


def test_what_is_logged_is_printed_once_within_the_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("trinat.tests")
    with log_lines(False), log_lines(False):
        log.info("%d of 2", 1)
        log.debug("a detail")
    log.info("after")
    assert capsys.readouterr().err == "1 of 2\n"


def test_only_warnings_are_printed_if_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("trinat.tests")
    with log_lines(True):
        log.info("a fact")
        log.warning("a failure")
    assert capsys.readouterr().err == "a failure\n"
