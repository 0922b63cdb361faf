"""Progress of a training, on a terminal or in a log file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trinat.pipelines.jobs.progress import (
    LINE_S,
    MINUTE_S,
    Progress,
    log_lines,
    progress,
)

if TYPE_CHECKING:
    from trinat.pipelines.train.job import Watcher
    from trinat.pipelines.train.result import Job
    from trinat.segmentation.training.loop import StepReport


@contextmanager
def training_progress(
    quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """Show the progress of a training on stderr: epoch, loss, learning rate and slices per second.

    Yields the callbacks to give to the training. Log messages are shown, too. On a terminal there
    is a bar; in a file a line is written for every epoch or minute. Nothing is shown if `quiet`.
    `clock` returns seconds.
    """
    from trinat.pipelines.train.job import Watcher

    with progress(quiet, clock=clock) as shown, log_lines(quiet):
        yield Watcher(step=_StepDisplay(shown).step)


class _StepDisplay:
    """Display of the steps of a training, of one job after another."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._job: Job | None = None
        # Epoch of the last line, and number of steps of the job without a finite loss.
        self._epoch = 0
        self._skipped = 0

    def step(self, job: Job, report: StepReport, done: float) -> None:
        """Show a training step; write a line if one is due.

        `done` is the completed part of the job's schedule, from 0 to 1.
        """
        if self._job is not job:
            self._job = job
            self._epoch = report.epoch
            self._skipped = 0
            self._shown.begin(done)
        if not math.isfinite(report.loss):
            self._skipped += 1
        slices_per_second = report.slices / report.seconds
        line = (
            f"{job.name} epoch {report.epoch} step {report.step} loss {report.loss:.3f} "
            f"rate {report.rate:.2g} {slices_per_second:.1f} slices/s {done:.0%}"
        )
        if self._skipped:
            line += f", steps skipped: {self._skipped}"
        every_s = LINE_S if report.epoch > self._epoch else MINUTE_S
        is_line = self._shown.show(line, done, 1.0, every_s=every_s)
        if is_line:
            self._epoch = report.epoch
