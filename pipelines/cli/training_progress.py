"""Progress of a training: a bar on a terminal, a line a minute in a log file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pipelines.train import Job, Watcher
    from segmentation.training.loop import StepReport

_LINE_SECONDS = 60.0


@contextmanager
def training_progress(quiet: bool) -> Iterator[Watcher]:
    """A watcher that shows loss, rate, slices a second and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from pipelines.train import Watcher

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    spoken = time.monotonic()
    with bar:
        task = bar.add_task("starting", total=1.0)

        def step(job: Job, report: StepReport, progress: float) -> None:
            nonlocal spoken
            text = (
                f"{job.name} step {report.step} loss {report.loss:.3f} rate {report.rate:.2g} "
                f"{report.slices / report.seconds:.1f} slices/s"
            )
            bar.update(task, description=text, completed=progress)
            if console.is_terminal or quiet or time.monotonic() - spoken < _LINE_SECONDS:
                return
            spoken = time.monotonic()
            typer.echo(f"{text} {progress:.0%}", err=True)

        def say(line: str) -> None:
            if not quiet:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        yield Watcher(say=say, step=step)
