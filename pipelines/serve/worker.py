"""The thread in which the batch engine does what is in the queue."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from trinat.pipelines.common.cases import Case
from trinat.pipelines.predict.engine import Engine, LocalEngine
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.serve.queue import Queue
from trinat.segmentation.errors import DeviceError, reason_of

# A scan waits no longer than this for a worker that has nothing to do.
_POLL_S = 0.05

_SWEEP_S = 60.0
_log = logging.getLogger("trinat.serve")


class _StoppedError(Exception):
    """What is in hand is left in the queue."""


class Worker:
    """`ready` once a model is loaded; `error` is what ended the engine, if anything did."""

    def __init__(self, queue: Queue, plan: PredictRequest, model: Path) -> None:
        self.queue = queue
        self.error: Exception | None = None
        # A cluster says nothing of stages.
        self.ready = self._silent = plan.engine is not None
        settings = plan.settings(model, queue.folder / "staging")
        devices, limit_s = plan.worker_devices, plan.limit_s
        self._engine: Engine = (
            plan.engine(settings)
            if plan.engine
            else LocalEngine(
                settings,
                devices,
                timeout_s=limit_s,
                poll_s=_POLL_S,
                on_stage=self._on_stage,
            )
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leave what is in hand to the next start."""
        self._stopping.set()
        self._thread.join(10)

    def _on_stage(self, case: str, stage: str) -> None:
        if case:
            self.queue.enter(case, stage)
        elif not self.ready:
            self.ready = True
            _log.info("ready")

    def _stop(self) -> bool:
        if self._stopping.is_set():
            raise _StoppedError
        return False

    def _cases(self) -> Iterator[Case | None]:
        swept = 0.0
        while True:
            if time.monotonic() - swept > _SWEEP_S:
                self.queue.sweep()
                swept = time.monotonic()
            case = self.queue.next()
            if case and self._silent:
                self.queue.enter(case.id, "networks")
            yield case

    def _run(self) -> None:
        try:
            for entry in self._engine.run(self._cases(), self._stop):
                job = self.queue.finish(entry)
                if job:
                    _log.info(
                        "%s %s, %.1f s", job.id, job.state, job.ended - job.accepted
                    )
            self.error = DeviceError("the engine came to its end")
        except _StoppedError:
            return
        except Exception as error:
            self.error = error
            _log.error("%s", reason_of(error, where=False))
        self.ready = False
        # The server ends with its engine; the queue stays for its next start.
        os.kill(os.getpid(), signal.SIGTERM)
