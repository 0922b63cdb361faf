"""Scans one after another in the test's own process: real work without starting processes."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.miniatures import head_image, head_labels, turned
from helpers.overfitted import miniature, random_model
from trinat.pipelines.predict.engine import SerialEngine
from trinat.pipelines.predict.recorder import Outcome
from trinat.pipelines.predict.run import predict
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest
from trinat.segmentation.io.volume import Volume

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
    """Scans of heads of half the miniature's size: whatever is found in them, it is found soon."""
    return _write(folder, names, small_scan)


def write_heads(folder: Path, *names: str) -> Path:
    """Scans of the miniature head, which the overfitted model knows."""
    return _write(folder, names, lambda number: miniature("RAS", number)[0])


def small_scan(seed: int = 0) -> Volume:
    """The miniature head at half its size."""
    labels = head_labels()[::2, ::2, ::2]
    image, affine = turned(head_image(labels, seed), "RAS")
    return Volume(image, affine)


def _write(
    folder: Path, names: tuple[str, ...], scan_of: Callable[[int], Volume]
) -> Path:
    """Write a scan for each name, with a noise of its own."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scan_of(number).write(path)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a table of a run."""
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))
