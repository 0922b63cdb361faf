"""Label maps of small ellipsoids as structures, and a reader for the metrics of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from trinat.segmentation.io.volume import Volume

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
# Centres and radii in voxels of a few structures, by FreeSurfer number.
BODIES = {
    2: ((8, 14, 14), 5),
    41: ((20, 14, 14), 5),
    17: ((8, 5, 8), 2.4),
    53: ((20, 5, 8), 2.4),
    16: ((14, 12, 4), 2.4),
    24: ((14, 22, 22), 2.2),
}


def brain(
    shift: tuple[int, int, int] = (0, 0, 0), *, without: tuple[int, ...] = ()
) -> np.ndarray:
    """Return FreeSurfer numbers of all bodies that are not left out, shifted by some voxels."""
    labels = np.zeros((28, 28, 28), np.int16)
    grid = np.indices(labels.shape)
    for number, (centre, radius) in BODIES.items():
        if number in without:
            continue
        moved = np.array(centre) + shift
        inside = ((grid - moved[:, None, None, None]) ** 2).sum(0) <= radius**2
        labels[inside] = number
    return labels


def write(path: Path, labels: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Volume(labels, affine).write(path, labels=True)


def read_metrics(path: Path) -> pd.DataFrame:
    """Read a table of metrics, keeping a subject called NA as text."""
    return pd.read_csv(
        path, keep_default_na=False, na_values={"value": "", "fs_id": ""}
    )


def value(
    metrics: pd.DataFrame, subject: str, model: str, structure: str, metric: str
) -> float:
    rows = metrics[
        (metrics["subject"] == subject)
        & (metrics["model"] == model)
        & (metrics["structure"] == structure)
        & (metrics["metric"] == metric)
    ]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])
