"""Engines that do cases on this machine: in this process, or in worker processes.

Worker processes are fed, watched, and replaced when a scan brings one down.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from multiprocessing.connection import wait
from typing import Protocol

from trinat.pipelines.common.process import prepare_process
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.server import serve
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.predict.worker_process import CaseInHand, Target, WorkerProcess
from trinat.pipelines.scans.cases import Case
from trinat.segmentation.errors import DeviceError, TrinatError
from trinat.segmentation.timing import stage

# One being read, one in the networks, one being written.
_IN_HAND = 3
# Processes that may die before they are ready.
_FAILED_STARTS = 2
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


def _ignore_stage(case: str, stage: str) -> None:
    pass


class SerialEngine:
    """One scan after another in this process: no worker has to start, and a crash ends the run.

    A scan is written while the next one is in the networks. `on_stage` is as of `LocalEngine`; a
    scan has one stage here.
    """

    def __init__(
        self,
        settings: RunSettings,
        device: str = "cpu",
        on_stage: Callable[[str, str], None] = _ignore_stage,
    ) -> None:
        self._settings = settings
        self._device = device
        self._on_stage = on_stage

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`.

        One thread writes the results of a scan while the next one is segmented.
        """
        from trinat.pipelines.predict.case import CaseWorker

        prepare_process(self._settings.threads)
        worker = CaseWorker(self._settings, self._device)
        self._on_stage("", "ready")
        written: list[Future[Entry]] = []
        with ThreadPoolExecutor(1) as beside:
            for case in cases:
                if stop():
                    break
                finish = None
                if case is not None:
                    self._on_stage(case.id, "networks")
                    finish = worker.begin(case)
                yield from (entry.result() for entry in written)
                written = []
                if finish is not None:
                    written.append(beside.submit(finish))
                # It holds a scan, which is not kept here while the next one is read.
                del finish
                if case is None:
                    time.sleep(_POLL_S)
            yield from (entry.result() for entry in written)


@dataclass(eq=False)
class LocalEngine:
    """A process for each device name in `devices` (cpu twice for two on the CPU).

    When a process dies with several cases in hand, each of them is done again in a process of its
    own: only the one that dies there too is to blame.

    `timeout_s` is the limit for one scan; 0 or None: none. `on_stage` is called with a case and
    the stage that it enters, and with ("", "ready") when a process is ready.
    """

    settings: RunSettings
    devices: list[str]
    _: KW_ONLY
    timeout_s: float | None = None
    poll_s: float = _POLL_S
    on_stage: Callable[[str, str], None] = _ignore_stage
    target: Target = serve
    # Cases of which one has brought a process down, and innocent ones that are to be given again.
    _suspects: deque[Case] = field(default_factory=deque, init=False)
    _again: deque[Case] = field(default_factory=deque, init=False)
    # Scans are read while a worker starts, until one has died of something before it was ready.
    _early: bool = field(default=True, init=False)
    _failed_starts: int = field(default=0, init=False)

    def run(
        self, cases: Iterable[Case | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """As of `Engine`.

        A process that dies is replaced, and its case fails; so does a case that takes longer than
        the limit. No process is left when the iterator ends or is closed.
        """
        waiting = iter(cases)
        workers = [self._start(device) for device in self.devices]
        self._failed_starts = 0
        try:
            while workers:
                for worker in workers:
                    self._feed(worker, waiting, stop)
                for worker in self._heard(workers):
                    entries, is_alive = self._receive(worker)
                    yield from entries
                    if not is_alive:
                        workers.remove(worker)
                        yield from self._replace_dead(worker, workers, stop)
                for worker in list(workers):
                    late = self._late_case(worker)
                    if late is not None:
                        worker.kill()
                        workers.remove(worker)
                        yield self._failed_late(worker, late)
                        if not stop():
                            workers.append(self._start(worker.device))
        finally:
            for worker in workers:
                worker.kill()

    def _start(self, device: str) -> WorkerProcess:
        return WorkerProcess.start(self.target, self.settings, device)

    def _feed(
        self,
        worker: WorkerProcess,
        waiting: Iterator[Case | None],
        stop: Callable[[], bool],
    ) -> None:
        """Give a worker the cases that it may have now; let it finish when there are no more."""
        may_begin = worker.ready or self._early
        if worker.finishing or not may_begin:
            return
        if stop():
            worker.finish()
            return
        if worker.alone and worker.in_hand:
            return
        worker.alone = False
        if self._suspects:
            # A suspect is tried by itself: a worker with other cases in hand runs empty first.
            if not worker.in_hand:
                self._give_suspect(worker)
            return
        self._fill(worker, waiting)

    def _give_suspect(self, worker: WorkerProcess) -> None:
        """Give a worker one suspect, and nothing beside it."""
        suspect = self._suspects.popleft()
        worker.alone = worker.give(suspect)
        if not worker.alone:
            # The process is gone: the suspect waits for the next one.
            self._suspects.appendleft(suspect)

    def _fill(self, worker: WorkerProcess, waiting: Iterator[Case | None]) -> None:
        """Give a worker cases until it has enough in hand, or there is none at the moment."""
        while len(worker.in_hand) < _IN_HAND:
            try:
                case = self._again.popleft() if self._again else next(waiting)
            except StopIteration:
                if not worker.in_hand:
                    worker.finish()
                return
            if case is None:
                return
            if not worker.give(case):
                # The process is gone, too.
                self._again.appendleft(case)
                return

    def _heard(self, workers: list[WorkerProcess]) -> list[WorkerProcess]:
        """Workers that have sent something, or have died."""
        is_over = all(worker.finishing for worker in workers)
        connections = [worker.connection for worker in workers]
        with stage("stop") if is_over else nullcontext():
            heard = set(wait(connections, timeout=self.poll_s))
        return [worker for worker in workers if worker.connection in heard]

    def _receive(self, worker: WorkerProcess) -> tuple[list[Entry], bool]:
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

    def _replace_dead(
        self,
        worker: WorkerProcess,
        workers: list[WorkerProcess],
        stop: Callable[[], bool],
    ) -> Iterator[Entry]:
        """Start another process for one that has died, unless it was to end.

        Yields the entry of the case that is to blame, if one is. DeviceError where processes die
        when they start.
        """
        if stop() and worker.process.exitcode == -signal.SIGTERM:
            # A queue ends all processes of a job with one signal: what this one had in hand is
            # not to blame, and is left for the next run.
            worker.connection.close()
            return
        if not worker.ready:
            self._early = False
            self._failed_starts += 1
            if self._failed_starts > _FAILED_STARTS:
                what = f"a worker process on {worker.device} dies when it starts"
                remedy = "see trinat doctor; is there enough memory?"
                raise DeviceError(f"{what} ({worker.how_it_died()})", remedy=remedy)
        yield from self._bury(worker)
        if not worker.finishing:
            workers.append(self._start(worker.device))

    def _bury(self, worker: WorkerProcess) -> Iterator[Entry]:
        """What becomes of the cases that a dead worker had in hand."""
        worker.connection.close()
        if worker.finishing and worker.process.exitcode == 0:
            return
        if not worker.ready:
            # Perhaps it is the start that fails: the next worker begins none before it is ready.
            self._again.extend(hand.case for hand in worker.in_hand.values())
            return
        at_work = worker.at_work
        if len(worker.in_hand) == 1 and at_work:
            (hand,) = at_work
            reason = f"its process died while {hand.stage} ({worker.how_it_died()})"
            yield Entry.failed(hand.case, self.settings, reason)
            return
        # One of those at work has done it; those that waited are innocent.
        self._suspects.extend(hand.case for hand in at_work)
        self._again.extend(hand.case for hand in worker.waiting)

    def _late_case(self, worker: WorkerProcess) -> CaseInHand | None:
        """A case that has taken too long; DeviceError if the worker takes too long to start."""
        if not self.timeout_s:
            return None
        if not worker.ready and time.monotonic() - worker.started > self.timeout_s:
            what = f"a worker process on {worker.device} did not start within"
            raise DeviceError(
                f"{what} {self.timeout_s:g} s", remedy="see trinat doctor"
            )
        for hand in worker.in_hand.values():
            if hand.seconds > self.timeout_s * hand.case.work:
                return hand
        return None

    def _failed_late(self, worker: WorkerProcess, late: CaseInHand) -> Entry:
        """The entry of a late case; the others of its process, which was ended, are given again."""
        for hand in worker.in_hand.values():
            if hand is not late:
                self._again.append(hand.case)
        assert self.timeout_s is not None
        limit_s = self.timeout_s * late.case.work
        reason = f"took longer than {limit_s:g} s"
        return Entry.failed(late.case, self.settings, reason)
