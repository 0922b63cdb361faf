"""Scans one after another in the test's own process: real work without starting processes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from helpers.overfitted import miniature, random_model
from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.recorder import Outcome
from trinat.pipelines.predict.run import predict
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest

QUICK = OutputSettings(picture=False, brain_mask=False)


def run_serially(inputs: Path | list[str], out: Path, **changes: Any) -> Outcome:
    given = [str(inputs)] if isinstance(inputs, Path) else inputs
    fields = {
        "model": str(random_model()),
        "engine": SerialEngine,
        "threads": 1,
        "output": QUICK,
    }
    return predict(PredictRequest(given, out, **(fields | changes)))


def write_scans(folder: Path, *names: str) -> Path:
    """Small scans, each with a noise of its own."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        miniature("RAS", seed=number)[0].write(path)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a table of a run."""
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))
