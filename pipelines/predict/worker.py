"""What a worker process runs: reading, networks and writing of different scans at the same time.

It talks with its parent through one pipe, as `Pool` says: the answer to a case is its entry.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TypeVar

from trinat.pipelines.common.process import prepare_process
from trinat.pipelines.jobs.pool import READY, WAITING, Done
from trinat.pipelines.predict.case_in_progress import (
    CaseInProgress,
    PersonInProgress,
    read,
)
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.scans.cases import Case
from trinat.segmentation.errors import DeviceError, TrinatError, reason_of
from trinat.segmentation.timing import stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.predict.case import CaseWorker

_T = TypeVar("_T")
_InProgress = CaseInProgress | PersonInProgress


def do_cases(connection: Connection, settings: RunSettings, device: str) -> None:
    """What the process runs. Returns when it is asked to finish."""
    if settings.threads:
        # Threads started later take their number from here, not from torch's own setting.
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    if settings.timings:
        time_process()
    _Steps(connection, settings, device).run()


class _Steps:
    """Three steps in three threads, with room for one case between them: memory is bounded.

    The first scan is read while torch and the model are loaded.
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
        # None is the last in each queue.
        self._given: queue.Queue[Case | None] = queue.Queue()
        self._read: queue.Queue[_InProgress | None] = queue.Queue(1)
        self._segmented: queue.Queue[_InProgress | None] = queue.Queue(1)

    def run(self) -> None:
        """Load the model and do the cases that come; networks run in this thread."""
        self._start_thread(self._listen)
        self._start_thread(self._read_all)
        writer = self._start_thread(self._write_all)
        try:
            with stage("start"):
                from trinat.pipelines.predict.case import CaseWorker

                prepare_process(self._settings.threads)
            self._worker.set_result(CaseWorker(self._settings, self._device))
        except TrinatError as error:
            self._say(error)
            return
        except Exception as error:
            self._say(DeviceError(f"a worker could not start: {error}"))
            return
        self._say(READY)
        self._infer_all()
        writer.join()

    def _start_thread(self, step: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=step, daemon=True, name=step.__name__)
        thread.start()
        return thread

    def _listen(self) -> None:
        """Take what the parent sends, until it is to finish."""
        while True:
            try:
                case = self._connection.recv()
            except (EOFError, OSError):
                # The parent is gone: whoever runs next does these cases again.
                os._exit(1)
            if case is None:
                self._stopping.set()
                self._given.put(None)
                return
            self._given.put(case)

    def _read_all(self) -> None:
        """The first step: scans are read and brought to their grid, unless the run is to finish."""
        while True:
            case = self._given.get()
            if case is None:
                break
            if self._stopping.is_set():
                continue
            scan = self._step("reading", case, partial(read, case, self._settings))
            if scan is not None:
                # While the model is loaded the case waits.
                worker = self._worker.result()
                scan = self._step("reading", case, partial(worker.prepare, scan))
            if scan is not None:
                self._read.put(scan)
            # A scan is large: it is not held here while the next one is waited for.
            del scan
        self._read.put(None)

    def _infer_all(self) -> None:
        """The second step: networks."""
        worker = self._worker.result()
        while True:
            scan = self._read.get()
            if scan is None:
                break
            if not self._stopping.is_set():
                done = self._step("networks", scan.case, partial(worker.infer, scan))
                if done is not None:
                    self._segmented.put(done)
                del done
            del scan
        self._segmented.put(None)

    def _write_all(self) -> None:
        """The third step: outputs are written and the parent gets the entry."""
        while True:
            scan = self._segmented.get()
            if scan is None:
                return
            worker = self._worker.result()
            entry = self._step("writing", scan.case, partial(worker.write, scan))
            if entry is not None:
                self._say(Done(scan.case.id, entry))
            del scan

    def _step(self, name: str, case: Case, work: Callable[[], _T]) -> _T | None:
        """What the work gives; None if it failed, which the parent is sent as a failed entry."""
        self._say((case.id, name))
        try:
            result = work()
        except Exception as error:
            reason = reason_of(error, where=False)
            failed = Entry.failed(case, self._settings, reason)
            self._say(Done(case.id, failed))
            return None
        self._say((case.id, WAITING))
        return result

    def _say(self, message: object) -> None:
        """Send to the parent; one thread at a time."""
        with self._speaking:
            self._connection.send(message)
