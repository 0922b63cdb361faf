"""Engines, which do cases: in this process, in worker processes, or on a cluster.

Imports no torch: a worker process reads its first scan while that loads.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from trinat.pipelines.jobs.pool import POLL_S, READY, WAITING, Done, Pool, ignore_stage
from trinat.pipelines.jobs.process import cpu_count, prepare_process
from trinat.pipelines.predict.case_in_progress import (
    CaseInProgress,
    PersonInProgress,
    read,
)
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Work
from trinat.pipelines.study.entry import Entry
from trinat.segmentation.errors import DeviceError, TrinatError, reason_of
from trinat.segmentation.timing import stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.jobs.cluster import Cluster
    from trinat.pipelines.predict.case import CaseWorker

# One being read, one in the networks, one being written.
_IN_HAND = 3
_T = TypeVar("_T")
_InProgress = CaseInProgress | PersonInProgress


class Engine(Protocol):
    """Does cases, in any order, and yields one entry for each that was begun."""

    def run(
        self, cases: Iterable[Work | None], stop: Callable[[], bool], /
    ) -> Iterator[Entry]:
        """`stop` is asked often; once true, what is in hand is finished and no more begun.

        A None among the cases says that there is none yet: it is asked again.
        """
        ...


class SerialEngine:
    """One scan after another in this process: no worker has to start, and a crash ends the run.

    A scan is written while the next one is in the networks. `on_stage` is as of `local_engine`; a
    scan has one stage here.
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
    ) -> Iterator[Entry]:
        """Do the cases, as `Engine` says.

        One thread writes the results of a scan while the next one is segmented.
        """
        from trinat.pipelines.predict.case import CaseWorker

        prepare_process(self._settings.threads)
        worker = CaseWorker(self._settings, self._device)
        self._on_stage("", READY)
        writing: _Beside | None = None
        try:
            for case in cases:
                if stop():
                    break
                finish = None
                if case is not None:
                    self._on_stage(case.id, "networks")
                    finish = worker.begin(case)
                if writing is not None:
                    yield writing.entry()
                    writing = None
                if finish is not None:
                    writing = _Beside(finish)
                # It holds a scan, which is not kept here while the next one is read.
                del finish
                if case is None:
                    time.sleep(POLL_S)
            if writing is not None:
                yield writing.entry()
        finally:
            if writing is not None:
                writing.join()


class _Beside(threading.Thread):
    """Finishes a case while this thread goes on.

    No pool of threads: where memory ends, its thread may die without a word, and whoever waits for
    the result waits for ever.
    """

    def __init__(self, finish: Callable[[], Entry]) -> None:
        super().__init__(name="finish")
        self._finish = finish
        self._entry: Entry | None = None
        self._error: BaseException = MemoryError()
        self.start()

    def run(self) -> None:
        """Finish the case, in the thread."""
        try:
            self._entry = self._finish()
        except BaseException as error:
            self._error = error
        finally:
            # It holds a scan.
            del self._finish

    def entry(self) -> Entry:
        """What became of the case, when it is finished; or the error that there was."""
        self.join()
        if self._entry is None:
            raise self._error
        return self._entry


def do_cases(connection: Connection, settings: RunSettings, device: str) -> None:
    """What a worker process runs: reading, networks and writing of different scans at once.

    It talks with its parent through one pipe, as `Pool` says: the answer to a case is its entry.
    Returns when it is asked to finish.
    """
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
        self._given: queue.Queue[Work | None] = queue.Queue()
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
        """The second step: networks segment what was read."""
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

    def _step(self, name: str, case: Work, work: Callable[[], _T]) -> _T | None:
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


def local_engine(
    settings: RunSettings,
    devices: Sequence[str],
    *,
    timeout_s: float | None = None,
    poll_s: float = POLL_S,
    on_stage: Callable[[str, str], None] = ignore_stage,
    target: Callable[..., None] = do_cases,
) -> Engine:
    """An engine with a process for each of `devices` (cpu twice for two on the CPU); see `Pool`.

    `timeout_s` is the limit for one scan; 0 or None: none. `on_stage` is called with a case and
    the stage that it enters, and with ("", "ready") when a process is ready.
    """
    return Pool[Work, Entry](
        target,
        (settings,),
        devices,
        failed=lambda case, reason: Entry.failed(case, settings, reason),
        room=_IN_HAND,
        timeout_s=timeout_s,
        poll_s=poll_s,
        on_stage=on_stage,
    )


class DaskEngine:
    """Each scan is a task of a cluster; `where` and `config` are as of `Cluster`."""

    def __init__(
        self,
        settings: RunSettings,
        where: str,
        config: Path | None = None,
        *,
        device: str = "auto",
        task: Callable[[RunSettings, str, Work], Entry] | None = None,
    ) -> None:
        # With asyncio, which no worker process is to wait for.
        from trinat.pipelines.jobs.cluster import Cluster, local_workers

        count = local_workers(where)
        if count and not settings.threads:
            settings = replace(settings, threads=max(1, cpu_count() // count))
        self.settings = settings
        self._cluster: Cluster[Work, Entry] = Cluster(
            where,
            config,
            partial(task or segment, settings, device),
            failed=lambda case, reason: Entry.failed(case, settings, reason),
        )

    def run(
        self, cases: Iterable[Work | None], stop: Callable[[], bool]
    ) -> Iterator[Entry]:
        """Do the cases, as `Engine` says."""
        yield from self._cluster.run(cases, stop)


def segment(settings: RunSettings, device: str, case: Work) -> Entry:
    """On a worker of a cluster: one scan, with the model that the worker has loaded once.

    The entry says how it ended, also if it failed. `device` is a device of the worker's machine.
    """
    from distributed import get_worker

    # As many as the worker was started for: the machine that asks knows nothing of this one. This
    # is set for every scan, since a worker may do each in another thread with its own number.
    prepare_process(settings.threads or get_worker().state.nthreads)
    return _worker(settings, device).do(case)


# One only: workers of a scheduler that lives on see run after run, with other models.
@lru_cache(maxsize=1)
def _worker(settings: RunSettings, device: str) -> CaseWorker:
    """The case worker of this process, with its model loaded."""
    from trinat.pipelines.predict.case import CaseWorker

    return CaseWorker(settings, device)
