"""Scans one after another in the test's own process: real work without starting processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from helpers.overfitted import miniature, random_model
from pipelines.common.discovery import Case
from pipelines.predict.case import CaseWorker
from pipelines.predict.ledger import Entry
from pipelines.predict.outputs import OutputSettings, RunSettings
from pipelines.predict.run import Outcome, Plan, predict

QUICK = OutputSettings(picture=False)


class SerialEngine:
    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings

    def run(self, cases: Iterable[Case], stop: Callable[[], bool]) -> Iterator[Entry]:
        worker = CaseWorker(self.settings, "cpu")
        for case in cases:
            if stop():
                return
            yield worker.do(case)


def run_serially(inputs: Path | list[str], out: Path, **changes: Any) -> Outcome:
    given = [str(inputs)] if isinstance(inputs, Path) else inputs
    fields = {"model": str(random_model()), "engine": SerialEngine, "threads": 1, "output": QUICK}
    return predict(Plan(given, out, **(fields | changes)))


def write_scans(folder: Path, *names: str) -> Path:
    """Small scans, each with a noise of its own."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        miniature("RAS", seed=number)[0].write(path)
    return folder
