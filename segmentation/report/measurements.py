"""Tables as files: metrics.csv has one measurement a row, and all else is computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from trinat.segmentation.io.files import atomic_text, spreadsheet_safe
from trinat.segmentation.metrics.measurement import Measurement

METRICS_COLUMNS = (
    "subject",
    "session",
    "model",
    "structure",
    "fs_id",
    "metric",
    "value",
    "unit",
    "note",
)


def metrics_frame(
    scans: Iterable[tuple[Mapping[str, str], Iterable[Measurement]]],
) -> pd.DataFrame:
    """One table of all scans' measurements; each scan brings its subject, session and model.

    The columns are `METRICS_COLUMNS`. `fs_id` is missing (NA) for groups, `value` is NaN where it
    is undefined, and `note` says why. No scans give a table without rows.
    """
    rows = []
    for scan, measurements in scans:
        whose = (scan["subject"], scan["session"], scan["model"])
        for measured in measurements:
            what = (measured.structure, measured.fs_id, measured.metric)
            found = (measured.value, measured.unit, measured.note)
            rows.append((*whose, *what, *found))
    frame = pd.DataFrame(rows, columns=list(METRICS_COLUMNS))
    return frame.astype({"fs_id": "Int64", "value": float})


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV whole or not at all; undefined numbers are empty cells.

    Text that a spreadsheet would run as a formula is made harmless. The frame is not changed; its
    index is not written.
    """
    safe = frame.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column].dtype):
            safe[column] = [_safe(value) for value in safe[column]]
    with atomic_text(path) as file:
        safe.to_csv(file, index=False, lineterminator="\n")


def _safe(value: Any) -> Any:
    """Text that no spreadsheet takes for a formula; anything else as it is."""
    if isinstance(value, str):
        return spreadsheet_safe(value)
    return value
