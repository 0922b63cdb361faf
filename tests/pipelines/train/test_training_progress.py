"""Progress of a training in a log file.

A line per epoch and per minute, with the remaining time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trinat.pipelines.train.progress import training_progress
from trinat.pipelines.train.result import Job
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import StageConfig
from trinat.segmentation.training.loop import StepReport


def job(view: View) -> Job:
    stage = StageConfig.model_validate({"data": {}, "schedule": {"steps": 100}})
    return Job(stage, view)


def report(step: int) -> StepReport:
    return StepReport(step, 0, 0.5, 0.004, 1.0, 2.0, 8)


def test_a_log_file_gets_a_line_a_minute_with_the_time_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    coronal, axial = job(View.CORONAL), job(View.AXIAL)
    with training_progress(False, lambda: now) as watcher:
        # Resumed at half of it; then a hundredth takes 50 s.
        for step in range(50, 55):
            watcher.step(coronal, report(step), step / 100)
            now += 50
        # Another job begins with its own speed: a hundredth takes 70 s.
        for step in range(2):
            watcher.step(axial, report(step), step / 100)
            now += 70
    assert capsys.readouterr().err.splitlines() == [
        "train/coronal epoch 0 step 52 loss 0.500 rate 0.004 4.0 slices/s 52%, 0:40:00 left",
        "train/coronal epoch 0 step 54 loss 0.500 rate 0.004 4.0 slices/s 54%, 0:38:20 left",
        "train/axial epoch 0 step 1 loss 0.500 rate 0.004 4.0 slices/s 1%, 1:55:30 left",
    ]


def test_each_epoch_is_a_line_that_counts_skipped_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, coronal = 0.0, job(View.CORONAL)
    with training_progress(False, lambda: now) as watcher:
        for step in range(1, 9):
            # The first epoch takes 4 s, the second is too fast for a line of its own.
            now += 1 if step <= 4 else 0.25
            loss = math.nan if step == 2 else 0.5
            line = replace(report(step), epoch=step // 4, loss=loss)
            watcher.step(coronal, line, step / 100)
    assert capsys.readouterr().err.splitlines() == [
        "train/coronal epoch 1 step 4 loss 0.500 rate 0.004 4.0 slices/s 4%, steps skipped: 1, "
        "0:01:36 left"
    ]


def test_a_quiet_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with training_progress(True, lambda: now) as watcher:
        for step in range(3):
            watcher.step(job(View.CORONAL), report(step), step / 100)
            now += 100
    assert capsys.readouterr().err == ""
