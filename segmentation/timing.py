"""Wall and processor time by named stage."""

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
    """Seconds spent in each stage, for one scan or for a process with all its threads.

    Time of a nested stage does not count for the outer stage. If several threads are in stages at
    the same time, they share the elapsed time equally, so that the seconds of all stages add up to
    those of the clock.
    """

    def __init__(self) -> None:
        self._spent: dict[str, tuple[float, float]] = {}
        self._at_work: dict[int, str] = {}  # thread -> stage
        self._wall_since = time.perf_counter()
        self._processor_since = time.process_time()
        self.began = self._wall_since
        self._lock = threading.Lock()

    def switch(self, to: str | None) -> str | None:
        """Switch this thread to another stage, or to none (None); return its previous stage.

        A stage is a named part of the work, such as "reading". The time until now counts for the
        previous stage.
        """
        thread = threading.get_ident()
        with self._lock:
            self._add_elapsed()
            before = self._at_work.pop(thread, None)
            if to is not None:
                self._at_work[thread] = to
            return before

    def take(self) -> Spent:
        """Return the wall and processor seconds of each stage since the last call.

        The key "" is the time outside of stages.
        """
        with self._lock:
            self._add_elapsed()
            spent = self._spent
            self._spent = {}
            return spent

    def _add_elapsed(self) -> None:
        """Divide the time since the last call equally among running stages; needs the lock."""
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
    """Set a function that is called before the clock is read at the begin and end of each stage.

    On a GPU it waits for running kernels, whose time would otherwise count for a later stage.
    """
    global _wait
    _wait = wait


def time_process() -> Clock:
    """Start and return the clock of this process; later calls return the same clock.

    The time from the start of the process to the first call counts as its stage "start". Until the
    first call, stages cost nothing.
    """
    global _of_process
    if _of_process is None:
        _of_process = Clock()
        before_s = _process_age_s()
        _of_process.began -= before_s
        _of_process._spent["start"] = before_s, time.process_time()
    return _of_process


def _process_age_s() -> float:
    """Return the time since this process was created, in seconds."""
    try:
        # psutil rounds this to a second.
        text = Path("/proc/self/stat").read_text()
    except OSError:
        # Not on Linux: start-up is mostly processor time.
        return time.process_time()
    # Field 22 is the start time; it is counted from the end of the program's name, which may
    # contain spaces.
    fields = text.rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


@contextmanager
def timed(clock: Clock) -> Iterator[None]:
    """Count the stages of this block on `clock`, the clock of a scan, too."""
    token = _of_scan.set(clock)
    try:
        yield
    finally:
        _of_scan.reset(token)


@contextmanager
def report_stages_to(listener: Callable[[str], object]) -> Iterator[None]:
    """Call `listener` with the name of each stage that begins in this block.

    It is not called again if the next stage has the same name.
    """
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
    """Time this block as a stage on every active clock; without a clock it costs nothing.

    The listener set by `report_stages_to` receives its name. Stages may be nested: time counts for
    the inner stage only, and the outer stage continues when that ends.
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
    """Sum the times of several parts by stage.

    If `side_by_side` processes ran in parallel, their wall times are divided by this number, so
    that parallel time counts once.
    """
    sums: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (wall, processor) in part.items():
            wall_before, processor_before = sums.get(name, (0.0, 0.0))
            wall_sum = wall_before + wall / side_by_side
            sums[name] = wall_sum, processor_before + processor
    return sums


def as_table(*parts: Spent) -> str:
    """Format the times of stages as a table of text, in their order of first use.

    The times of several parts, such as worker processes, are added. The last rows are the remaining
    time and the total of this process. Times are in seconds. Processor time may exceed wall time,
    because the times of all threads are added.
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
