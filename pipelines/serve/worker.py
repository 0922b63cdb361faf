"""The thread in which the batch engine does what is in the queue, and the server beside it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator

from pipelines.common.discovery import Case
from pipelines.common.lock import run_lock
from pipelines.common.process import cpu_count
from pipelines.predict.engine import Engine, LocalEngine
from pipelines.predict.outputs import RunSettings
from pipelines.predict.run import Plan
from pipelines.serve.queue import Limits, Queue
from pipelines.web.start import answer
from segmentation.errors import DeviceError, LockedError, reason_of
from segmentation.io.files import sha256_of
from segmentation.models.zoo import MODEL_FILE, find_model

__all__ = ["Worker", "serve"]

# A scan waits no longer than this for a worker that has nothing to do.
_POLL_S = 0.05

_SWEEP_S = 60.0
_log = logging.getLogger("trinat.serve")


class _StoppedError(Exception):
    """What is in hand is left in the queue."""


class Worker:
    """`make` gets what the engine says to of stages; `error` is what ended it, if anything did.

    An engine that is `ready` from the start says nothing of stages.
    """

    def __init__(
        self, queue: Queue, make: Callable[[Callable[[str, str], None]], Engine], *, ready: bool
    ) -> None:
        self.queue, self.ready, self._silent = queue, ready, ready
        self.error: Exception | None = None
        self._engine = make(self._on_stage)
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
                    _log.info("%s %s, %.1f s", job.id, job.state, job.ended - job.accepted)
            self.error = DeviceError("the engine came to its end")
        except _StoppedError:
            return
        except Exception as error:
            self.error = error
            _log.error("%s", reason_of(error, where=False))
        self.ready = False
        # The server ends with its engine; the queue stays for its next start.
        os.kill(os.getpid(), signal.SIGTERM)


def serve(
    plan: Plan,
    limits: Limits,
    *,
    host: str,
    port: int,
    names: Collection[str],
    max_body: int,
    say: Callable[[str], None],
) -> None:
    """Answer until a signal; `plan.out` is the queue's folder."""
    from pipelines.serve.app import make_app, read_scheme

    model, folder = find_model(plan.model), plan.out
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with run_lock(folder / "lock"):
            queue = Queue(folder, limits)
            settings = RunSettings(
                out=folder,
                model=model,
                model_sha256=sha256_of(model / MODEL_FILE),
                staging=folder / "staging",
                threads=plan.threads
                or (None if plan.engine else max(1, cpu_count() // len(plan.worker_devices))),
            )

            def engine(on_stage: Callable[[str, str], None]) -> Engine:
                if plan.engine:
                    return plan.engine(settings)
                return LocalEngine(
                    settings,
                    plan.worker_devices,
                    timeout_s=plan.limit_s,
                    poll_s=_POLL_S,
                    on_stage=on_stage,
                )

            worker = Worker(queue, engine, ready=plan.engine is not None)

            def begin(address: str) -> None:
                worker.start()
                say(address)

            app = make_app(queue, worker, plan.model, read_scheme(model))
            answer(
                app,
                queue.token(),
                host=host,
                port=port,
                names=names,
                max_body=max_body,
                say=begin,
            )
            worker.stop()
    except LockedError as error:
        error.remedy = "stop it, or give another --queue"
        raise
    if worker.error:
        raise worker.error
