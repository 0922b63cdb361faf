"""Progress of long tasks: a bar on a terminal, lines in a log file, both with the time left.

Commands use `progress` directly, or `batch_progress` for subjects and `byte_progress` for
downloads. A log file gets a line every few seconds at most, and always the last one.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol

import typer

from trinat.segmentation.errors import one_line

MINUTE_S = 60.0
LINE_S = 3.0  # minimum interval between lines of a log file
STAGE_S = 10.0  # silence in a log file before a line names the current stage
_REMEMBERED = 11  # points that the pace is measured from: the last ten intervals


class Progress:
    """Progress reporter: a bar on a terminal, or a line from time to time in a log file.

    `say` prints a line. `bar` draws the bar: it is called at every step with the text, the amount
    done and the total, and no lines are printed. It is None for a log file. `clock` returns
    seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        bar: Callable[[str, float, float | None], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.say = say
        self._bar = bar
        self._clock = clock
        self._said_at = clock()
        self._lock = threading.Lock()
        # Timer that prints a stage later if the last line is too recent.
        self._later: threading.Timer | None = None
        self.begin()

    def begin(self, done: float = 0) -> None:
        """Forget the pace so far, from which the remaining time is estimated.

        `done` is the amount that is done already.
        """
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
        """Show how much is done, with the text `head`, on the bar or as a line in a log file.

        A line is due at the end, and `every_s` seconds after the last one. `done` and `total` may
        have any common unit. `total` is None if it is unknown; no remaining time is then shown.
        `failed` is the number of failures so far. A bar is drawn at every call. Returns True if a
        line was due.
        """
        now = self._clock()
        text = self._text(head, now, done, total, failed)
        if self._bar:
            self._bar(text, done, total)
        with self._lock:
            # The stage whose line `enter` has delayed may be over.
            self._forget()
            is_soon = now - self._said_at < every_s
            if is_soon and done != total:
                return False
            self._said_at = now
            self._past.append((now, done))
            if not self._bar:
                self.say(text)
        return True

    def enter(
        self,
        head: str,
        done: float,
        total: float | None,
        *,
        failed: int = 0,
        every_s: float = STAGE_S,
    ) -> None:
        """Show that a stage begins; in a log file only if no other line is printed for a while.

        The line is printed `every_s` seconds after the last one, unless another line comes first.
        The pace is not affected, since a stage that begins adds nothing to `done`. The other
        parameters are those of `show`.
        """
        now = self._clock()
        text = self._text(head, now, done, total, failed)
        if self._bar:
            self._bar(text, done, total)
            return
        with self._lock:
            self._forget()
            wait_s = self._said_at + every_s - now
            if wait_s > 0:
                self._later = threading.Timer(wait_s, self._say_later, (text,))
                self._later.daemon = True
                self._later.start()
            else:
                self._said_at = now
                self.say(text)

    def end(self) -> None:
        """Stop reporting: cancel a line that `enter` has delayed."""
        with self._lock:
            self._forget()

    def _say_later(self, text: str) -> None:
        """Print the line that `enter` has delayed, unless it was cancelled or replaced."""
        with self._lock:
            if self._later is threading.current_thread():
                self._forget()
                self._said_at = self._clock()
                self.say(text)

    def _forget(self) -> None:
        """Cancel the line that `enter` has delayed; the lock must be held."""
        if self._later:
            self._later.cancel()
        self._later = None

    def _text(
        self, head: str, now: float, done: float, total: float | None, failed: int
    ) -> str:
        """Return a line of progress: head, number of failures, and remaining time if it is known.

        The remaining time follows from the pace of the last steps. `now` is the time by the clock.
        """
        text = head
        if failed:
            text += f", {failed} failed"
        text = one_line(text)
        since, done_before = self._past[0]
        if total and done_before < done < total:
            seconds = (now - since) * (total - done) / (done - done_before)
            text += f", {timedelta(seconds=round(seconds))} left"
        return text


@contextmanager
def progress(
    quiet: bool,
    *,
    terminal: bool | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Yield a progress reporter for stderr: a bar on a terminal, otherwise lines.

    With `quiet` nothing is printed. `terminal` says whether stderr is a terminal; if it is None,
    this is detected. `clock` returns seconds.
    """
    if terminal is None:
        terminal = not quiet and sys.stderr.isatty()
    if quiet:
        yield Progress(lambda line: None, lambda text, done, total: None, clock)
    elif terminal:
        with _bar(clock) as shown:
            yield shown
    else:
        shown = Progress(partial(typer.echo, err=True), None, clock)
        try:
            yield shown
        finally:
            shown.end()


class _Stderr(logging.Handler):
    """Log handler that prints messages to stderr, above a bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message as a line; rich redirects stderr while a bar is shown."""
        sys.stderr.write(one_line(record.getMessage()) + "\n")
        sys.stderr.flush()


@contextmanager
def log_lines(quiet: bool) -> Iterator[None]:
    """Print trinat's log to stderr within the block; with `quiet` only warnings.

    Nested blocks add nothing, so that no line is printed twice.
    """
    logger = logging.getLogger("trinat")
    if any(isinstance(each, _Stderr | logging.NullHandler) for each in logger.handlers):
        yield
        return
    handler = _Stderr()
    level = logger.level
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _bar(clock: Callable[[], float]) -> Iterator[Progress]:
    """Yield a progress reporter with a bar on the terminal, removed after the block.

    Lines appear above the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    description = TextColumn("{task.description}", markup=False)
    # The elapsed time shows that a long step is alive.
    columns = (BarColumn(), TimeElapsedColumn(), description)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def step(text: str, done: float, total: float | None) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield Progress(say, step, clock)


class OfSubject(Protocol):
    """Outcome of the work on one subject, in any task: its name, and the reason if it failed."""

    @property
    def subject(self) -> str:
        """Name of the subject."""

    @property
    def failure(self) -> str:
        """Reason of a failure; "" for a success."""


# Callback after each subject of a batch: its outcome, the number of subjects done, and of all.
BatchProgress = Callable[[OfSubject, int, int], object]


def no_progress(outcome: OfSubject, done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def batch_progress(quiet: bool) -> Iterator[BatchProgress]:
    """Yield a callback that shows how many subjects are done and how many have failed."""
    failed = 0
    with progress(quiet) as shown:

        def finished(outcome: OfSubject, done: int, total: int) -> None:
            nonlocal failed
            if outcome.failure:
                failed += 1
            shown.show(f"{done}/{total} {outcome.subject}", done, total, failed=failed)

        yield finished


@contextmanager
def byte_progress(
    name: str, quiet: bool
) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a download called `name`.

    Yields a function to call with the number of bytes so far and the total number of bytes, None if
    the server does not report it.
    """
    with progress(quiet) as shown:

        def fetched(done: int, total: int | None) -> None:
            if done != total:  # The command itself reports the end.
                shown.show(f"{name} {done / 1e9:.2f} GB", done, total, every_s=MINUTE_S)

        yield fetched
