"""metrics.csv: one number a row, in long form, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from segmentation.io.files import atomic_text, spreadsheet_safe
from segmentation.metrics import Measurement

__all__ = ["METRICS_COLUMNS", "metrics_frame", "write_table"]

METRICS_COLUMNS = (
    *("subject", "session", "model", "structure", "fs_id"),
    *("metric", "value", "unit", "note"),
)


def metrics_frame(scans: Iterable[tuple[Mapping[str, str], Iterable[Measurement]]]) -> pd.DataFrame:
    """One table of all scans' measurements; each scan brings its subject, session and model."""
    rows = [
        (*whose, m.structure, m.fs_id, m.metric, m.value, m.unit, m.note)
        for scan, measurements in scans
        for whose in [(scan["subject"], scan["session"], scan["model"])]
        for m in measurements
    ]
    frame = pd.DataFrame(rows, columns=list(METRICS_COLUMNS))
    return frame.astype({"fs_id": "Int64", "value": float})


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV whole or not at all; undefined numbers are empty cells."""
    safe = frame.copy()
    for column in safe.columns[[not pd.api.types.is_numeric_dtype(t) for t in safe.dtypes]]:
        safe[column] = [spreadsheet_safe(v) if isinstance(v, str) else v for v in safe[column]]
    with atomic_text(path) as file:
        safe.to_csv(file, index=False, lineterminator="\n")
