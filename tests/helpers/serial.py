"""Scans segmented one after another in the process of the test, without starting workers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

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
    """Write heads of a third of the miniature's size, segmented quickly but not correctly."""
    return _write(folder, names, small_scan)


def write_heads(folder: Path, *names: str) -> Path:
    """Write scans of the miniature head, which the overfitted model knows."""
    return _write(folder, names, lambda number: miniature("RAS", number)[0])


def small_scan(seed: int = 0) -> Volume:
    """Return the miniature's brain at a third of its size, on a working grid of 32 voxels a side.

    With its upper right corner, the cells in which heads are sought would make the grid larger.
    """
    labels = head_labels()[6:34:3, 10:40:3, 8:38:3]
    labels[5:, 5:, 5:] = 0
    labels = np.pad(labels, [(3, 3), (4, 4), (3, 4)])
    image, affine = turned(head_image(labels, seed), "RAS")
    return Volume(image, affine)


def _write(
    folder: Path, names: tuple[str, ...], scan_of: Callable[[int], Volume]
) -> Path:
    """Write a scan for each name, with its own noise."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scan_of(number).write(path)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of a run."""
    return list(csv.DictReader(path.read_text().splitlines(), delimiter="\t"))
