"""Where time goes: work is done in named stages, and who wants to know has the seconds of each."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

# Stage -> wall seconds, processor seconds.
Spent = Mapping[str, tuple[float, float]]


class Clock:
    """Seconds of each stage of one scan, or of a process with all its threads.

    What an inner stage takes does not count for the outer one. Stages of threads that work at the
    same time share it equally: the seconds of all stages add up to those of the clock.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        self._at_work: dict[int, str] = {}  # thread -> stage
        self._wall_since = time.perf_counter()
        self._processor_since = time.process_time()
        self.began = self._wall_since
        self._lock = threading.Lock()

    def switch(self, to: str | None) -> str | None:
        """From now on this thread is in another stage, or in none; returns the one before.

        The time until now counts for the stage before.
        """
        thread = threading.get_ident()
        with self._lock:
            self._add()
            before = self._at_work.pop(thread, None)
            if to is not None:
                self._at_work[thread] = to
            return before

    def take(self) -> Spent:
        """Seconds of each stage since they were last taken; "" is the time when none was."""
        with self._lock:
            self._add()
            spent = self._spent
            self._spent = {}
            return spent

    def _add(self) -> None:
        """Share the time since the last call out among the stages at work."""
        wall_now = time.perf_counter()
        processor_now = time.process_time()
        stages = list(self._at_work.values()) or [""]
        wall_share = (wall_now - self._wall_since) / len(stages)
        processor_share = (processor_now - self._processor_since) / len(stages)
        for name in stages:
            wall, processor = self._spent.get(name, (0.0, 0.0))
            self._spent[name] = wall + wall_share, processor + processor_share
        self._wall_since = wall_now
        self._processor_since = processor_now


_listener: ContextVar[Callable[[str], object] | None] = ContextVar(
    "_listener", default=None
)
_of_scan: ContextVar[Clock | None] = ContextVar("_of_scan", default=None)
_of_process: Clock | None = None
_wait: Callable[[], object] | None = None


def wait_first(wait: Callable[[], object]) -> None:
    """Call `wait` wherever a stage begins or ends on a clock, before its time is taken.

    Of a GPU it waits for the work in hand: else that would count for a later stage, which waits.
    """
    global _wait
    _wait = wait


def time_process() -> Clock:
    """The clock of this process, on from now; what went before is its stage "start".

    Calling it again gives the same clock. Until the first call stages cost nothing.
    """
    global _of_process
    if _of_process is None:
        _of_process = Clock()
        before_s = _age_s()
        _of_process.began -= before_s
        _of_process._spent["start"] = before_s, time.process_time()
    return _of_process


def _age_s() -> float:
    """Seconds since this process was created."""
    try:
        # psutil's is rounded to a second.
        text = Path("/proc/self/stat").read_text()
    except OSError:
        # Not on Linux: starting is mostly work.
        return time.process_time()
    # Behind the program's name, which may hold spaces: field 22, when the process was started.
    fields = text.rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


@contextmanager
def timed(clock: Clock) -> Iterator[None]:
    """Stages in this block are on a scan's clock, too."""
    token = _of_scan.set(clock)
    try:
        yield
    finally:
        _of_scan.reset(token)


@contextmanager
def heard_by(listener: Callable[[str], object]) -> Iterator[None]:
    """In this block `listener` is called with the name of each stage that begins after another."""
    last = ""

    def hear(name: str) -> None:
        nonlocal last
        if name != last:
            last = name
            listener(name)

    token = _listener.set(hear)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """The block is a stage, on every clock that is on; without any it costs nothing.

    Who listens (`heard_by`) hears its name. Stages may be nested: the inner one gets the time, and
    the outer one goes on when it ends.
    """
    listener = _listener.get()
    if listener is not None:
        listener(name)
    clocks = [clock for clock in (_of_scan.get(), _of_process) if clock is not None]
    waits = _wait if clocks else None
    if waits is not None:
        waits()
    before = [clock.switch(name) for clock in clocks]
    try:
        yield
    finally:
        if waits is not None:
            waits()
        for clock, outer in zip(clocks, before, strict=True):
            clock.switch(outer)


def together(parts: Iterable[Spent], *, side_by_side: int = 1) -> Spent:
    """The sum of parts; of what several processes spent side by side, wall time counts once.

    `side_by_side` is how many processes there were.
    """
    sums: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (wall, processor) in part.items():
            wall_before, processor_before = sums.get(name, (0.0, 0.0))
            wall_sum = wall_before + wall / side_by_side
            sums[name] = wall_sum, processor_before + processor
    return sums


def as_table(*parts: Spent) -> str:
    """Stages in the order in which they were begun, the rest, and this process's whole time.

    Several parts, as those of worker processes, are added. Times are in seconds; processor time may
    be more than wall time, since threads add up.
    """
    spent = together(parts)
    total_wall = time.perf_counter() - time_process().began
    rows = {name: seconds for name, seconds in spent.items() if name}
    _, other_processor = spent.get("", (0.0, 0.0))
    known_wall = sum(wall for wall, _ in rows.values())
    known_processor = sum(processor for _, processor in rows.values())
    rows["other"] = total_wall - known_wall, other_processor
    rows["total"] = total_wall, known_processor + other_processor
    lines = [f"{'stage':12} {'wall s':>9} {'share':>6} {'processor s':>12}"]
    for name, (wall, processor) in rows.items():
        share = wall / total_wall
        lines.append(f"{name:12} {wall:9.2f} {share:6.1%} {processor:12.2f}")
    return "\n".join(lines)
