"""The thread in which the batch engine does what is in the queue.

The engine is that of `trinat predict`: it asks an endless iterator for cases, works on them in
processes or on a cluster, and yields a line of the ledger for each.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from trinat.pipelines.predict.engine import Engine, LocalEngine
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.scans.cases import Case
from trinat.pipelines.web.queue import Queue
from trinat.segmentation.errors import DeviceError, reason_of

# A scan waits no longer than this for a worker that has nothing to do.
_POLL_S = 0.05
# Between two looks for what is kept no longer.
_SWEEP_S = 60.0
# How long a stop waits for the engine.
_STOP_S = 10
_log = logging.getLogger("trinat.serve")


class _StoppedError(Exception):
    """What is in hand is left in the queue."""


class EngineThread(threading.Thread):
    """Takes scans from the queue, has the engine segment them, and gives back what came of each.

    `ready` once a model is loaded; `error` is what ended the engine, if anything did.
    """

    def __init__(self, queue: Queue, plan: PredictRequest, model: Path) -> None:
        """With the engine of `plan`, or worker processes on this machine if it has none."""
        super().__init__(name="engine", daemon=True)
        self.queue = queue
        self.error: Exception | None = None
        # An engine of the plan's own, on a cluster, says nothing of stages.
        self._silent = plan.engine is not None
        self.ready = self._silent
        settings = plan.settings(model, queue.folder / "staging")
        self._engine: Engine
        if plan.engine:
            self._engine = plan.engine(settings)
        else:
            self._engine = LocalEngine(
                settings,
                plan.worker_devices,
                timeout_s=plan.limit_s,
                poll_s=_POLL_S,
                on_stage=self._on_stage,
            )
        self._stopping = threading.Event()

    def run(self) -> None:
        """What the thread does; when the engine has ended by itself, it ends the server."""
        try:
            for entry in self._engine.run(self._cases(), self._leave_if_stopping):
                submission = self.queue.finish(entry)
                if submission:
                    took_s = submission.ended - submission.accepted
                    _log.info("%s %s, %.1f s", submission.id, submission.state, took_s)
            self.error = DeviceError("the engine came to its end")
        except _StoppedError:
            return
        except Exception as error:
            self.error = error
            _log.error("%s", reason_of(error, where=False))
        self.ready = False
        # The server ends with its engine; the queue stays for its next start.
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """Leave what is in hand to the next start."""
        self._stopping.set()
        self.join(_STOP_S)

    def _on_stage(self, case: str, stage: str) -> None:
        """What the engine calls at each stage of a case; with no case, a model is loaded."""
        if case:
            self.queue.enter(case, stage)
        elif not self.ready:
            self.ready = True
            _log.info("ready")

    def _leave_if_stopping(self) -> bool:
        """What the engine asks again and again; raises to leave it at once."""
        if self._stopping.is_set():
            raise _StoppedError
        return False

    def _cases(self) -> Iterator[Case | None]:
        """The scans of the queue without an end; None while none waits."""
        swept = 0.0
        while True:
            if time.monotonic() - swept > _SWEEP_S:
                self.queue.sweep()
                swept = time.monotonic()
            case = self.queue.next()
            if case and self._silent:
                self.queue.enter(case.id, "networks")
            yield case
