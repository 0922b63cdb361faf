"""Messages about a failed scan, and at the end of a run."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from trinat.pipelines.predict.progress import listener
from trinat.pipelines.predict.recorder import Outcome
from trinat.pipelines.study.entry import Entry

BROKEN = Entry("b", "failed", "in/b\n.nii.gz", "cut short: copy it again")


@pytest.mark.parametrize("interactive", [False, True])
def test_a_failed_scan_is_one_line_like_every_message(
    interactive: bool, capsys
) -> None:
    with listener(quiet=False, as_json=False, interactive=interactive) as heard:
        heard.on_entry(BROKEN)
    assert (
        "trinat: in/b\\n.nii.gz: cut short: copy it again\n" in capsys.readouterr().err
    )


@pytest.mark.parametrize("interactive", [False, True])
def test_the_last_line_counts_what_was_skipped(interactive: bool, capsys) -> None:
    outcome = Outcome(0, 3, 2, interrupted=False)
    with listener(quiet=False, as_json=False, interactive=interactive) as heard:
        heard.on_end(outcome, Path("out"))
    assert "0 done; 3 skipped; 2 failed: out/report.html\n" in capsys.readouterr().err


def test_the_last_line_counts_grades(capsys) -> None:
    outcome = Outcome(3, 0, 0, interrupted=False, grades={"look": 1, "pass": 2})
    with listener(quiet=True, as_json=False, interactive=False) as heard:
        heard.on_end(outcome, Path("out"))
    assert capsys.readouterr().err.startswith("3 done: 2 pass, 1 look; 0 failed, ")


def test_a_log_file_gets_a_line_for_a_scan_with_the_failures(capsys) -> None:
    entries = [BROKEN, *(Entry(f"sub-{n}", "done") for n in (1, 2))]
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        heard.on_start(3)
        for entry in entries:
            heard.on_entry(entry)
    # Faster than a line every few seconds: only the failure and the last line.
    complaint, line = capsys.readouterr().err.splitlines()
    assert complaint.startswith("trinat: in/b")
    assert re.fullmatch(r"3/3 sub-2, [0-9.]+ scans/min, 1 failed", line)


def test_a_quiet_run_tells_failures_alone(capsys) -> None:
    with listener(quiet=True, as_json=False, interactive=False) as heard:
        heard.on_start(1)
        heard.on_stage("", "starting")
        heard.on_entry(BROKEN)
        heard.on_stop()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_one_long_scan_is_not_a_minute_of_silence(capsys) -> None:
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        heard.on_start(3)
        heard.on_stage("", "starting")
        heard.on_stage("a", "reading")
        heard.on_stage("", "ready")
        for stage in ("networks", "waiting", "writing"):
            heard.on_stage("a", stage)
        heard.on_entry(Entry("a", "done"))
        # Later on a line per scan is enough, unless it takes long.
        heard.on_stage("b", "networks")
    assert capsys.readouterr().err.splitlines() == [
        "0/3 loading the model",
        "0/3 a: segmenting",
        "0/3 a: writing",
    ]


def test_what_began_before_the_last_line_is_said_when_it_takes_long(
    capsys, monkeypatch
) -> None:
    monkeypatch.setattr("trinat.pipelines.predict.progress.STAGE_S", 0.1)
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        heard.on_start(3)
        heard.on_stage("", "ready")
        heard.on_stage("a", "writing")
        heard.on_stage("b", "networks")
        capsys.readouterr()
        heard.on_entry(Entry("a", "done"))
        time.sleep(0.5)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("1/3 b: segmenting")


def test_a_run_that_is_asked_to_stop_says_what_it_waits_for(capsys) -> None:
    with listener(quiet=False, as_json=False, interactive=False) as heard:
        heard.on_start(3)
        heard.on_stage("", "starting")
        heard.on_stage("a", "reading")
        heard.on_stage("b", "networks")
        heard.on_entry(Entry("a", "done"))
        capsys.readouterr()
        heard.on_stop()
    assert capsys.readouterr().err == (
        "stopping: finishing 1 scan, within 60 s; press Ctrl-C again to stop at once\n"
    )
