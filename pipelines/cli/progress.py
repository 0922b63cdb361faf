"""Progress on a terminal; in a log file silence, and of a training a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from pipelines.train.job import Job, Watcher
    from segmentation.training.loop import StepReport

_LINE_SECONDS = 60.0


class OfSubject(Protocol):
    """The outcome of one subject, whatever was done with it."""

    @property
    def subject(self) -> str: ...


@contextmanager
def batch_progress(quiet: bool) -> Iterator[Callable[[OfSubject, int, int], None]]:
    """A bar of subjects, with the time left."""
    from rich.progress import MofNCompleteColumn

    with _bar(MofNCompleteColumn(), quiet=quiet) as bar:
        task = bar.add_task("subjects", total=None)

        def finished(outcome: OfSubject, done: int, total: int) -> None:
            bar.update(task, description=outcome.subject, completed=done, total=total)

        yield finished


@contextmanager
def byte_progress(name: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar of bytes, with rate and time left."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    with _bar(DownloadColumn(), TransferSpeedColumn(), quiet=quiet) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def training_progress(
    quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """A watcher that shows loss, rate, slices a second and the time left."""
    from pipelines.train.job import Watcher

    spoken = clock()
    # The current job, and the time and progress of its first report.
    began: tuple[Job | None, float, float] = (None, 0.0, 0.0)
    with _bar(quiet=quiet) as bar:
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
            if bar.console.is_terminal or quiet or clock() - spoken < _LINE_SECONDS:
                return
            spoken = clock()
            left = _time_left(spoken - began[1], began[2], progress)
            typer.echo(f"{text} {progress:.0%}{left}", err=True)

        def say(line: str) -> None:
            if not quiet:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield Watcher(say=say, step=step)


def _bar(*columns: ProgressColumn, quiet: bool) -> Progress:
    """A description, a bar, these columns and the time left; on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def _time_left(spent_s: float, before: float, now: float) -> str:
    """What remains of a job, at the speed at which it came from `before` to `now`."""
    if now <= before:
        return ""
    seconds = spent_s * (1 - now) / (now - before)
    return f", {timedelta(seconds=round(seconds))} left"
