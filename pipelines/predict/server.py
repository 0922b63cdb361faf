"""What a worker process runs: reading, networks and writing of different scans at the same time.

Talks with its parent through one pipe. In: a Case, or None to finish what is in hand. Out: "ready",
then (case id, stage) as stages begin and an Entry as each case ends.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, TypeVar

from pipelines.common.discovery import Case
from pipelines.predict.ledger import Entry
from pipelines.predict.outputs import RunSettings

if TYPE_CHECKING:
    from pipelines.predict.case import CaseWorker, Job

__all__ = ["WAITING", "serve"]

_T = TypeVar("_T")

# The stage of a case that waits for its turn: its clock stands still.
WAITING = "waiting"
_KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def serve(connection: Connection, settings: RunSettings, device: str) -> None:
    """Entry point of the process. Returns when told to finish; exits with its parent."""
    # Ctrl-C reaches every process of a terminal: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent()
    if settings.threads:
        # Threads started later take their number from here, not from torch's own setting.
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    from pipelines.common.process import prepare_process

    prepare_process(settings.threads)
    from pipelines.predict.case import CaseWorker

    try:
        worker = CaseWorker(settings, device)
    except Exception as error:
        connection.send(error)
        return
    connection.send("ready")
    _Server(connection, worker).run()


def _die_with_parent() -> None:
    """A killed run leaves no process behind that goes on writing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL)


class _Server:
    """Three steps in three threads, with room for one case between them: memory is bounded."""

    def __init__(self, connection: Connection, worker: CaseWorker) -> None:
        self._connection = connection
        self._worker = worker
        self._speaking = threading.Lock()
        self._stopping = threading.Event()
        self._given: queue.Queue[Case | None] = queue.Queue()
        self._read: queue.Queue[Job | None] = queue.Queue(1)
        self._segmented: queue.Queue[Job | None] = queue.Queue(1)

    def run(self) -> None:
        threads = [
            threading.Thread(target=step, daemon=True, name=step.__name__)
            for step in (self._listen, self._read_all, self._write_all)
        ]
        for thread in threads:
            thread.start()
        self._infer_all()
        threads[-1].join()

    def _listen(self) -> None:
        while True:
            try:
                case = self._connection.recv()
            except (EOFError, OSError):
                # The parent is gone: whoever runs next does these cases again.
                os._exit(1)
            if case is None:
                self._stopping.set()
            self._given.put(case)
            if case is None:
                return

    def _read_all(self) -> None:
        while (case := self._given.get()) is not None:
            if not self._stopping.is_set():
                self._step("reading", self._worker.read, case, case, self._read)
        self._read.put(None)

    def _infer_all(self) -> None:
        while (job := self._read.get()) is not None:
            if not self._stopping.is_set():
                self._step("networks", self._worker.infer, job, job.case, self._segmented)
            del job
        self._segmented.put(None)

    def _write_all(self) -> None:
        while (job := self._segmented.get()) is not None:
            self._step("writing", self._worker.write, job, job.case)
            del job

    def _step(
        self,
        stage: str,
        work: Callable[[_T], Entry | Job],
        item: _T,
        case: Case,
        following: queue.Queue[Job | None] | None = None,
    ) -> None:
        self._say((case.id, stage))
        try:
            result = work(item)
        except Exception as error:
            result = self._worker.failed(case, error)
        if isinstance(result, Entry):
            self._say(result)
        elif following is not None:
            self._say((case.id, WAITING))
            following.put(result)

    def _say(self, message: object) -> None:
        with self._speaking:
            self._connection.send(message)
