"""Progress of a long work: a bar on a terminal, lines in a log file, both with the time left."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import typer

from trinat.segmentation.errors import one_line

MINUTE_S = 60.0
LINE_S = 3.0  # Between two lines of a log file, however fast the work.
_REMEMBERED = 11  # The pace is that of the last ten lines: what was current at first is forgotten.


class Progress:
    """What is done, said so that a log file stays readable; `bar` sees every step."""

    def __init__(
        self,
        say: Callable[[str], None],
        bar: Callable[[str, float, float | None], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.say, self._bar, self._clock = say, bar, clock
        self._spoken = clock()
        self.begin()

    def begin(self, done: float = 0) -> None:
        """The pace counts from here."""
        self._past = deque([(self._clock(), done)], maxlen=_REMEMBERED)

    def show(
        self,
        head: str,
        done: float,
        total: float | None,
        *,
        failed: int = 0,
        every_s: float = LINE_S,
    ) -> bool:
        """Show `head`; True if it is a line of the log: at the end, or `every_s` after the last."""
        now = self._clock()
        since, before = self._past[0]
        text = one_line(f"{head}, {failed} failed" if failed else head)
        if total and before < done < total:
            left = timedelta(
                seconds=round((now - since) * (total - done) / (done - before))
            )
            text += f", {left} left"
        if self._bar:
            self._bar(text, done, total)
        if now - self._spoken < every_s and done != total:
            return False
        self._spoken = now
        self._past.append((now, done))
        if not self._bar:
            self.say(text)
        return True


@contextmanager
def progress(
    quiet: bool,
    *,
    terminal: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """On stderr; a quiet one says nothing."""
    if quiet:
        yield Progress(lambda line: None, None, clock)
    elif not (sys.stderr.isatty() if terminal is None else terminal):
        yield Progress(lambda line: typer.echo(line, err=True), None, clock)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)
        with Bar(BarColumn(), text, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            yield Progress(
                lambda line: console.print(
                    line, markup=False, highlight=False, soft_wrap=True
                ),
                lambda text, done, total: bar.update(
                    task, description=text, completed=done, total=total
                ),
                clock,
            )


class OfSubject(Protocol):
    """The outcome of one subject, whatever was done with it."""

    @property
    def subject(self) -> str: ...

    @property
    def failure(self) -> str: ...


@contextmanager
def batch_progress(quiet: bool) -> Iterator[Callable[[OfSubject, int, int], None]]:
    """Subjects done, of how many, and how many of them failed."""
    failed = 0
    with progress(quiet) as shown:

        def finished(outcome: OfSubject, done: int, total: int) -> None:
            nonlocal failed
            failed += bool(outcome.failure)
            shown.show(f"{done}/{total} {outcome.subject}", done, total, failed=failed)

        yield finished


@contextmanager
def byte_progress(
    name: str, quiet: bool
) -> Iterator[Callable[[int, int | None], None]]:
    """Bytes of a download."""
    with progress(quiet) as shown:

        def fetched(done: int, total: int | None) -> None:
            if done != total:  # The command itself says that it has all.
                shown.show(f"{name} {done / 1e9:.2f} GB", done, total, every_s=MINUTE_S)

        yield fetched
