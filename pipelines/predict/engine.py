"""Worker processes on this machine: fed, watched, and replaced when a scan brings one down."""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Protocol

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.process import deaf_to_interrupts, prepare_process
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import RunSettings
from trinat.pipelines.predict.server import WAITING, serve
from trinat.segmentation.errors import DeviceError, TrinatError
from trinat.segmentation.timing import stage

# One being read, one in the networks, one being written.
_IN_HAND = 3
_POLL_S = 0.5


class Engine(Protocol):
    """Does cases, in any order, and yields one entry for each that was begun."""

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """`stop` is asked often; once true, what is in hand is finished and no more begun.

        A None among the cases says that there is none yet: it is asked again.
        """
        ...


class SerialEngine:
    """One scan after another in this process: no worker has to start, and a crash ends the run.

    A scan is written while the next one is in the networks.
    """

    def __init__(self, settings: RunSettings, device: str = "cpu") -> None:
        self._settings, self._device = settings, device

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        from trinat.pipelines.predict.case import CaseWorker

        prepare_process(self._settings.threads)
        worker = CaseWorker(self._settings, self._device)
        written: list[Future[Entry]] = []
        with ThreadPoolExecutor(1) as beside:
            for case in cases:
                if stop():
                    break
                rest = worker.begin(case) if case else None
                yield from (entry.result() for entry in written)
                written = [beside.submit(rest)] if rest else []
                del rest
                if case is None:
                    time.sleep(_POLL_S)
            yield from (entry.result() for entry in written)


@dataclass
class _InHand:
    case: Case
    stage: str = WAITING
    since: float = 0.0
    spent_s: float = 0.0

    def enter(self, stage: str) -> None:
        now = time.monotonic()
        if self.stage != WAITING:
            self.spent_s += now - self.since
        self.stage, self.since = stage, now

    @property
    def seconds(self) -> float:
        running = time.monotonic() - self.since if self.stage != WAITING else 0.0
        return self.spent_s + running


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    device: str
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    finishing: bool = False
    alone: bool = False
    in_hand: dict[str, _InHand] = field(default_factory=dict)

    def give(self, case: Case) -> bool:
        """Hand a case over; False if the process is gone, which its death notice will tell."""
        try:
            self.connection.send(case)
        except OSError:
            return False
        self.in_hand[case.id] = _InHand(case)
        return True

    def finish(self) -> None:
        self.finishing = True
        with suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass(eq=False)
class LocalEngine:
    """One process a device name in `devices` (cpu twice for two on the processor).

    When a process dies with several cases in hand, each of them is done again in a process of its
    own: only the one that dies there too is to blame.
    """

    settings: RunSettings
    devices: list[str]
    _: KW_ONLY
    timeout_s: float | None = None
    poll_s: float = _POLL_S
    # Called with a case and the stage it enters; with ("", "ready") of a worker.
    on_stage: Callable[[str, str], None] = lambda case, stage: None
    target: Callable[[Connection, RunSettings, str], None] = serve
    _alone: deque[Case] = field(default_factory=deque, init=False)
    _again: deque[Case] = field(default_factory=deque, init=False)
    # Scans are read while a worker starts, until one has died of something before it was ready.
    _early: bool = field(default=True, init=False)

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        waiting = iter(cases)
        workers = [self._start(device) for device in self.devices]
        starts_failed = 0
        try:
            while workers:
                for worker in workers:
                    self._feed(worker, waiting, stop)
                for worker in self._hear(workers):
                    entries, alive = self._receive(worker)
                    yield from entries
                    if alive:
                        continue
                    workers.remove(worker)
                    if stop() and worker.process.exitcode == -signal.SIGTERM:
                        # A queue ends all processes of a job with one signal: what this one had
                        # in hand is not to blame, and is left for the next run.
                        worker.connection.close()
                        continue
                    if not worker.ready:
                        starts_failed += 1
                        self._early = False
                        if starts_failed > 2:
                            what = f"a worker process on {worker.device} dies when it starts"
                            remedy = "see trinat doctor; is there enough memory?"
                            raise DeviceError(f"{what} ({_how(worker)})", remedy=remedy)
                    yield from self._bury(worker)
                    if not worker.finishing:
                        workers.append(self._start(worker.device))
                for worker in list(workers):
                    late = self._late(worker)
                    if late is None:
                        continue
                    worker.kill()
                    workers.remove(worker)
                    reason = f"took longer than {self.timeout_s:g} s"
                    yield Entry.failed(late.case, self.settings, reason)
                    hands = worker.in_hand.values()
                    self._again.extend(hand.case for hand in hands if hand is not late)
                    if not stop():
                        workers.append(self._start(worker.device))
        finally:
            for worker in workers:
                worker.kill()

    def _start(self, device: str) -> _Worker:
        # Not fork: torch's and OpenMP's threads do not survive it.
        # A signal to the whole group ends this helper of Python's, too; Python starts it again.
        warnings.filterwarnings("ignore", "resource_tracker: process died unexpectedly")
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=self.target, args=(theirs, self.settings, device), daemon=True
        )
        # While it imports, too, where Python would print a traceback.
        with deaf_to_interrupts():
            process.start()
        theirs.close()
        return _Worker(process, ours, device)

    def _feed(
        self, worker: _Worker, waiting: Iterator[Case | None], stop: Callable[[], bool]
    ) -> None:
        """Give a worker what it has room for; tell it to finish when there is no more."""
        if worker.finishing or not (worker.ready or self._early):
            return
        if stop():
            worker.finish()
            return
        if worker.alone and worker.in_hand:
            return
        worker.alone = False
        if not worker.in_hand and self._alone:
            worker.alone = worker.give(self._alone.popleft())
            return
        while len(worker.in_hand) < _IN_HAND:
            if self._alone and worker.in_hand:
                # Let it run empty, so that a suspect can be tried by itself.
                return
            try:
                case = self._again.popleft() if self._again else next(waiting)
            except StopIteration:
                break
            if case is None:
                return
            if not worker.give(case):
                self._again.appendleft(case)
                return
        if not worker.in_hand and not self._alone:
            worker.finish()

    def _hear(self, workers: list[_Worker]) -> list[_Worker]:
        """Workers that have something to say, be it that they died."""
        over = all(worker.finishing for worker in workers)
        with stage("stop") if over else nullcontext():
            heard = set(wait([w.connection for w in workers], timeout=self.poll_s))
        return [worker for worker in workers if worker.connection in heard]

    def _receive(self, worker: _Worker) -> tuple[list[Entry], bool]:
        """Entries that a worker has sent, and whether it lives."""
        entries: list[Entry] = []
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if isinstance(message, Entry):
                    worker.in_hand.pop(message.case)
                    entries.append(message)
                elif isinstance(message, TrinatError):
                    raise message
                elif isinstance(message, Exception):
                    raise DeviceError(f"a worker could not start: {message}")
                elif message == "ready":
                    worker.ready = True
                    self.on_stage("", "ready")
                else:
                    case, entered = message
                    worker.in_hand[case].enter(entered)
                    self.on_stage(case, entered)
        except (EOFError, ConnectionResetError):
            with stage("stop"):
                worker.process.join()
            return entries, False
        return entries, True

    def _bury(self, worker: _Worker) -> Iterator[Entry]:
        """What becomes of the cases that a dead worker had in hand."""
        worker.connection.close()
        active = [hand for hand in worker.in_hand.values() if hand.stage != WAITING]
        if worker.finishing and worker.process.exitcode == 0:
            return
        if not worker.ready:
            # Perhaps it is the start that fails: the next worker begins none before it is ready.
            self._again.extend(hand.case for hand in worker.in_hand.values())
            return
        if len(worker.in_hand) == 1 and active:
            (hand,) = active
            reason = f"its process died while {hand.stage} ({_how(worker)})"
            yield Entry.failed(hand.case, self.settings, reason)
            return
        # One of those at work has done it; those that waited are innocent.
        self._alone.extend(hand.case for hand in active)
        self._again.extend(
            hand.case for hand in worker.in_hand.values() if hand.stage == WAITING
        )

    def _late(self, worker: _Worker) -> _InHand | None:
        if not self.timeout_s:
            return None
        if not worker.ready and time.monotonic() - worker.started > self.timeout_s:
            what = f"a worker process on {worker.device} did not start within"
            raise DeviceError(
                f"{what} {self.timeout_s:g} s", remedy="see trinat doctor"
            )
        return next(
            (h for h in worker.in_hand.values() if h.seconds > self.timeout_s), None
        )


def _how(worker: _Worker) -> str:
    code = worker.process.exitcode
    if code == -9:
        return "killed, perhaps for want of memory"
    return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
