"""Progress on a terminal, and silence in a log file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class OfSubject(Protocol):
    """The outcome of one subject, whatever was done with it."""

    @property
    def subject(self) -> str: ...


@contextmanager
def batch_progress(quiet: bool) -> Iterator[Callable[[OfSubject, int, int], None]]:
    """A bar of subjects, with the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        task = bar.add_task("subjects", total=None)

        def finished(outcome: OfSubject, done: int, total: int) -> None:
            bar.update(task, description=outcome.subject, completed=done, total=total)

        yield finished


@contextmanager
def byte_progress(name: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar of bytes, with rate and time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
    with bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
