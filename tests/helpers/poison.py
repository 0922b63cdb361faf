"""Worker processes that crash, hang or run out of memory on scans with certain names."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

from trinat.pipelines.predict.engine import do_cases
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case


def serve_without_end(
    connection: Connection, settings: RunSettings, device: str
) -> None:
    """Serve as a worker that never finishes its first scan."""
    connection.send("ready")
    connection.send((connection.recv().id, "networks"))
    time.sleep(600)


def start_without_end(
    connection: Connection, settings: RunSettings, device: str
) -> None:
    """Start a worker that never becomes ready."""
    time.sleep(600)


def serve_poison(connection: Connection, settings: RunSettings, device: str) -> None:
    from trinat.pipelines.predict import engine

    read = engine.read

    def poisoned(case: Case, settings: RunSettings) -> engine.CaseInProgress:
        if case.stem.startswith("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if case.stem.startswith("hangs"):
            time.sleep(600)
        if case.stem.startswith("eats"):
            raise MemoryError
        return read(case, settings)

    engine.read = poisoned
    do_cases(connection, settings, device)
