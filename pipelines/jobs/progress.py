"""Progress of a long work: a bar on a terminal, lines in a log file, both with the time left.

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
from trinat.segmentation.timing import heard_by

MINUTE_S = 60.0
LINE_S = 3.0  # Between two lines of a log file, however fast the work.
STAGE_S = 10.0  # Without a line in a log file, before one says what is at work.
_REMEMBERED = 11  # The pace is that of the last ten lines: what was current at first is forgotten.


class Progress:
    """What is done, said so that a log file stays readable.

    `say` prints a line. `bar`, on a terminal, is called at every step with the text, what is done
    and the total, and lines of progress are then left out. `clock` gives seconds.
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
        # What says a stage later, where a line was said too shortly before it.
        self._later: threading.Timer | None = None
        self.begin()

    def begin(self, done: float = 0) -> None:
        """Measure the pace from here, where this much is done already."""
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
        """Show `head`; True if it is a line of the log: at the end, or `every_s` after the last.

        `done` and `total` are in any one unit; None is a total that is not known, and gives no time
        left. A bar is drawn at every call.
        """
        now = self._clock()
        text = self._text(head, now, done, total, failed)
        if self._bar:
            self._bar(text, done, total)
        with self._lock:
            # It may be over, and who calls knows what is at work now.
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
        """Show what is at work meanwhile: a line once none was said for `every_s` seconds.

        Where the next line comes before that, this one is never said. It says nothing of the pace,
        since nothing more is done.
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
        """Say nothing more of what was at work."""
        with self._lock:
            self._forget()

    def _say_later(self, text: str) -> None:
        """Say what has been at work for a while, unless something was said or begun since."""
        with self._lock:
            if self._later is threading.current_thread():
                self._forget()
                self._said_at = self._clock()
                self.say(text)

    def _forget(self) -> None:
        """Nothing is to be said later."""
        if self._later:
            self._later.cancel()
        self._later = None

    def _text(
        self, head: str, now: float, done: float, total: float | None, failed: int
    ) -> str:
        """A line of progress, with the time left at the pace of the last lines, if it is known."""
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
    """Progress on stderr, a bar if that is a `terminal`; a quiet one says nothing.

    `terminal` None looks at stderr. `clock` gives seconds.
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
        """Print the message as a line; rich puts a bar's own stream in the place of stderr."""
        sys.stderr.write(one_line(record.getMessage()) + "\n")
        sys.stderr.flush()


@contextmanager
def log_lines(quiet: bool) -> Iterator[None]:
    """Print what trinat logs to stderr within the block, from INFO on; with `quiet` nothing.

    Within another such block it does nothing, so that no line is printed twice.
    """
    logger = logging.getLogger("trinat")
    if any(isinstance(each, _Stderr | logging.NullHandler) for each in logger.handlers):
        yield
        return
    # Without any handler Python itself would print warnings.
    handler: logging.Handler = logging.NullHandler()
    level = logger.level
    if not quiet:
        handler = _Stderr()
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _bar(clock: Callable[[], float]) -> Iterator[Progress]:
    """Progress as a bar on the terminal, gone after the block; what is said stands above it."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    description = TextColumn("{task.description}", markup=False)
    # Time that passes shows that a long step is alive.
    columns = (BarColumn(), TimeElapsedColumn(), description)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def step(text: str, done: float, total: float | None) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield Progress(say, step, clock)


class OfSubject(Protocol):
    """The outcome of one subject, whatever was done with it."""

    @property
    def subject(self) -> str:
        """What the subject is called."""

    @property
    def failure(self) -> str:
        """Why nothing came of it; "" where something did."""


@contextmanager
def batch_progress(quiet: bool) -> Iterator[Callable[[OfSubject, int, int], None]]:
    """Subjects done, of how many, and how many of them failed.

    Yields what to call after each subject, with its outcome, how many are done and of how many.
    """
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
    """Bytes of a download; yields what to call with those that are there, and their number.

    The number is None where the server does not say it.
    """
    with progress(quiet) as shown:

        def fetched(done: int, total: int | None) -> None:
            if done != total:  # The command itself says that it has all.
                shown.show(f"{name} {done / 1e9:.2f} GB", done, total, every_s=MINUTE_S)

        yield fetched


@contextmanager
def stage_progress(name: str, quiet: bool) -> Iterator[None]:
    """The stages that begin in the block, as a bar or a line each: `name` is what is worked on."""
    with progress(quiet) as shown:

        def begun(stage: str) -> None:
            shown.enter(f"{name}: {stage}", 0, None, every_s=0)

        with heard_by(begun):
            yield
