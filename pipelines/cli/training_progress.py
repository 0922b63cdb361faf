"""Progress of a training: a bar on a terminal, a line a minute in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pipelines.train.job import Job, Watcher
    from segmentation.training.loop import StepReport

_LINE_SECONDS = 60.0


def _time_left(spent_s: float, before: float, now: float) -> str:
    """What remains of a job, at the speed at which it came from `before` to `now`."""
    if now <= before:
        return ""
    seconds = spent_s * (1 - now) / (now - before)
    return f", {timedelta(seconds=round(seconds))} left"


@contextmanager
def training_progress(
    quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """A watcher that shows loss, rate, slices a second and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from pipelines.train.job import Watcher

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    spoken = clock()
    # The job at work, and when and with what progress it was first heard of.
    began: tuple[Job | None, float, float] = (None, 0.0, 0.0)
    with bar:
        task = bar.add_task("starting", total=1.0)

        def step(job: Job, report: StepReport, progress: float) -> None:
            nonlocal spoken, began
            if began[0] is not job:
                began = (job, clock(), progress)
            text = (
                f"{job.name} step {report.step} loss {report.loss:.3f} rate {report.rate:.2g} "
                f"{report.slices / report.seconds:.1f} slices/s"
            )
            bar.update(task, description=text, completed=progress)
            if console.is_terminal or quiet or clock() - spoken < _LINE_SECONDS:
                return
            spoken = clock()
            left = _time_left(spoken - began[1], began[2], progress)
            typer.echo(f"{text} {progress:.0%}{left}", err=True)

        def say(line: str) -> None:
            if not quiet:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield Watcher(say=say, step=step)
