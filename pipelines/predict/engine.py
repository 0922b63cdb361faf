"""Engines that segment the cases of a run: in this process or in worker processes.

Imports no torch: a worker process reads its first scan while torch is being imported.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Protocol, TypeVar

from trinat.pipelines.jobs.pool import POLL_S, READY, WAITING, Done, Pool, ignore_stage
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.predict.case_in_progress import (
    CaseInProgress,
    failed_entries,
    read,
)
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Work
from trinat.pipelines.study.entry import Entry
from trinat.segmentation.errors import DeviceError, TrinatError, reason_of
from trinat.segmentation.timing import stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.predict.case import CaseWorker

# Cases that a worker process has at once: one being read, one in the networks, one being written.
_IN_HAND = 3
_T = TypeVar("_T")


class Engine(Protocol):
    """Engine that segments cases in any order.

    It yields the ledger entries of each case begun, one for each scan of the case.
    """

    def run(
        self, cases: Iterable[Work | None], stop: Callable[[], bool], /
    ) -> Iterator[list[Entry]]:
        """Segment cases until none are left or `stop` returns True; yield their ledger entries.

        `stop` is called often. Once it returns True, cases that were begun are finished and no more
        are begun. A None among the cases means that no case is ready yet: the iterator is asked
        again.
        """
        ...


class SerialEngine:
    """Engine that segments one scan after another in this process.

    No worker has to start, but a crash ends the run. The outputs of a scan are written while the
    networks segment the next scan. `on_stage` is called with ("", "ready") once the model is
    loaded, and with the id of a case and "networks" when the case is begun.
    """

    def __init__(
        self,
        settings: RunSettings,
        device: str = "cpu",
        on_stage: Callable[[str, str], None] = ignore_stage,
    ) -> None:
        self._settings = settings
        self._device = device
        self._on_stage = on_stage

    def run(
        self, cases: Iterable[Work | None], stop: Callable[[], bool]
    ) -> Iterator[list[Entry]]:
        """Segment cases until none are left or `stop` returns True; yield their ledger entries.

        A None among the cases means that no case is ready yet. One thread writes the results of a
        scan while the next scan is segmented.
        """
        from trinat.pipelines.predict.case import CaseWorker

        prepare_process(self._settings.threads)
        worker = CaseWorker(self._settings, self._device)
        self._on_stage("", READY)
        writing: _FinishingThread | None = None
        try:
            for case in cases:
                if stop():
                    break
                finish = None
                if case is not None:
                    self._on_stage(case.id, "networks")
                    finish = worker.begin(case)
                if writing is not None:
                    yield writing.entries()
                    writing = None
                if finish is not None:
                    writing = _FinishingThread(finish)
                # Drop the reference to the scan, so that it is released before the next scan is
                # read.
                del finish
                if case is None:
                    time.sleep(POLL_S)
            if writing is not None:
                yield writing.entries()
        finally:
            if writing is not None:
                writing.join()


class _FinishingThread(threading.Thread):
    """Thread that writes the outputs of a segmented case.

    `finish` is the function that does it and returns the ledger entries. A thread pool is not used,
    because its thread may die silently when memory runs out, and waiting for the result would then
    never end.
    """

    def __init__(self, finish: Callable[[], list[Entry]]) -> None:
        super().__init__(name="finish")
        self._finish = finish
        self._entries: list[Entry] | None = None
        self._error: BaseException = MemoryError()
        self.start()

    def run(self) -> None:
        """Write the outputs; keep the ledger entries, or the error that was raised."""
        try:
            self._entries = self._finish()
        except BaseException as error:
            self._error = error
        finally:
            # Drop the reference to the scan.
            del self._finish

    def entries(self) -> list[Entry]:
        """Wait until the outputs are written; return the ledger entries or raise the error."""
        self.join()
        if self._entries is None:
            raise self._error
        return self._entries


def do_cases(connection: Connection, settings: RunSettings, device: str) -> None:
    """Run a worker process, which reads, segments and writes different scans at the same time.

    It communicates with its parent through the pipe `connection`, as `Pool` describes: it receives
    cases and sends the ledger entries of each. It returns when the parent asks it to finish.
    """
    if settings.threads:
        # Threads started later read their number from here, not from torch's own setting.
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    if settings.timings:
        time_process()
    _Steps(connection, settings, device).run()


class _Steps:
    """Reading, segmenting and writing of scans in three threads of a worker process.

    The queues between the steps hold one case each, which bounds memory. The first scan is read
    while torch and the model are loaded.
    """

    def __init__(
        self,
        connection: Connection,
        settings: RunSettings,
        device: str,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._device = device
        self._worker: Future[CaseWorker] = Future()
        self._speaking = threading.Lock()
        self._stopping = threading.Event()
        # None marks the end of each queue.
        self._given: queue.Queue[Work | None] = queue.Queue()
        self._read: queue.Queue[CaseInProgress | None] = queue.Queue(1)
        self._segmented: queue.Queue[CaseInProgress | None] = queue.Queue(1)

    def run(self) -> None:
        """Load the model and segment incoming cases, with the networks in this thread.

        Returns when the parent asks to finish, or if the model cannot be loaded.
        """
        self._start_thread(self._listen)
        self._start_thread(self._read_all)
        writer = self._start_thread(self._write_all)
        try:
            with stage("start"):
                from trinat.pipelines.predict.case import CaseWorker

                prepare_process(self._settings.threads)
            self._worker.set_result(CaseWorker(self._settings, self._device))
        except TrinatError as error:
            self._send(error)
            return
        except Exception as error:
            self._send(DeviceError(f"a worker could not start: {error}"))
            return
        self._send(READY)
        self._infer_all()
        writer.join()

    def _start_thread(self, step: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=step, daemon=True, name=step.__name__)
        thread.start()
        return thread

    def _listen(self) -> None:
        """Receive cases from the parent until it asks to finish."""
        while True:
            try:
                case = self._connection.recv()
            except (EOFError, OSError):
                # The parent is gone; the next run repeats these cases.
                os._exit(1)
            if case is None:
                self._stopping.set()
                self._given.put(None)
                return
            self._given.put(case)

    def _read_all(self) -> None:
        """Run the first step: read scans and resample them to the networks' grid.

        Once the parent has asked to finish, the remaining cases are dropped.
        """
        while True:
            case = self._given.get()
            if case is None:
                break
            if self._stopping.is_set():
                continue
            scan = self._run_step("reading", case, partial(read, case, self._settings))
            if scan is not None:
                # The case waits here until the model is loaded.
                worker = self._worker.result()
                scan = self._run_step("reading", case, partial(worker.prepare, scan))
            if scan is not None:
                self._read.put(scan)
            # Drop the reference to the large scan before waiting for the next case.
            del scan
        self._read.put(None)

    def _infer_all(self) -> None:
        """Run the second step: segment scans with the networks."""
        worker = self._worker.result()
        while True:
            scan = self._read.get()
            if scan is None:
                break
            if not self._stopping.is_set():
                done = self._run_step(
                    "networks", scan.case, partial(worker.infer, scan)
                )
                if done is not None:
                    self._segmented.put(done)
                del done
            del scan
        self._segmented.put(None)

    def _write_all(self) -> None:
        """Run the third step: write the outputs of each case, and send its ledger entries."""
        while True:
            scan = self._segmented.get()
            if scan is None:
                return
            worker = self._worker.result()
            entries = self._run_step("writing", scan.case, partial(worker.write, scan))
            if entries is not None:
                self._send(Done(scan.case.id, entries))
            del scan

    def _run_step(self, name: str, case: Work, work: Callable[[], _T]) -> _T | None:
        """Call `work`, a step of a case, and return its result; send the progress to the parent.

        The parent is told that the case enters the step called `name`, and that it leaves it. If
        `work` fails, failed ledger entries are sent, and None is returned.
        """
        self._send((case.id, name))
        try:
            result = work()
        except Exception as error:
            reason = reason_of(error, where=False)
            failed = failed_entries(case, self._settings, reason)
            self._send(Done(case.id, failed))
            return None
        self._send((case.id, WAITING))
        return result

    def _send(self, message: object) -> None:
        """Send a message to the parent, from one thread at a time."""
        with self._speaking:
            self._connection.send(message)


def local_engine(
    settings: RunSettings,
    devices: Sequence[str],
    *,
    timeout_s: float | None = None,
    poll_s: float = POLL_S,
    on_stage: Callable[[str, str], None] = ignore_stage,
    target: Callable[..., None] = do_cases,
) -> Engine:
    """Return an engine with a worker process for each of `devices`.

    A device can be repeated: cpu twice gives two processes on the CPU. `timeout_s` is the limit in
    seconds for one scan; 0 or None: no limit. `poll_s` is the longest wait in seconds between two
    checks of this limit. `on_stage` is called with a case and the stage that it enters, and with
    ("", "ready") when a process is ready. `target` is the function that a process runs.
    """
    return Pool[Work, list[Entry]](
        target,
        (settings,),
        devices,
        failed=lambda case, reason: failed_entries(case, settings, reason),
        capacity=_IN_HAND,
        timeout_s=timeout_s,
        poll_s=poll_s,
        on_stage=on_stage,
    )
