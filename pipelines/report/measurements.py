"""Table of measurements, metrics.csv: one measurement a row, the source of the whole report.

This module builds and writes the table, and selects from it by model, structure, participant and
scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from trinat.segmentation.io.files import atomic_text, spreadsheet_safe
from trinat.segmentation.metrics.pair import Measurement

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
    """Return the table of metrics.csv: a row for each measurement of each scan.

    `scans` has a tuple for each scan: a mapping with `subject`, `session` and `model`, and its
    measurements. The columns are `METRICS_COLUMNS`. `fs_id` is missing (NA) for groups of
    structures. `value` is NaN if it is undefined, and `note` has the reason. Without scans the
    table has no rows.
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
    """Write a table to a CSV file atomically; undefined numbers are empty cells.

    Text that a spreadsheet would run as a formula is escaped. The frame is not changed; its index
    is not written.
    """
    safe = frame.copy()
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column].dtype):
            safe[column] = [
                spreadsheet_safe(value) if isinstance(value, str) else value
                for value in safe[column]
            ]
    with atomic_text(path) as file:
        safe.to_csv(file, index=False, lineterminator="\n")


def models_of(frame: pd.DataFrame) -> list[str]:
    """Return the models in the table of metrics.csv, in the order of the command line."""
    return [str(model) for model in frame["model"].unique()]


def structures_of(frame: pd.DataFrame) -> list[str]:
    """Return the names of the single structures in the table of metrics.csv.

    They are in the order of the label scheme; the right side of a pair follows the left one.
    Background and groups of structures are left out.
    """
    left_out = {"background", *groups_of(frame)}
    every = [str(name) for name in frame["structure"].unique()]
    names = [name for name in every if name not in left_out]
    # A right side is sorted to the place of its left one.
    first_place: dict[str, int] = {}
    for place, name in enumerate(names):
        first_place.setdefault(without_side(name), place)

    def place_of_pair(name: str) -> int:
        return first_place[without_side(name)]

    return sorted(names, key=place_of_pair)


def without_side(name: str) -> str:
    """Return a structure's name without "Left-" or "Right-"."""
    return name.removeprefix("Left-").removeprefix("Right-")


def groups_of(frame: pd.DataFrame) -> list[str]:
    """Return the groups of structures in metrics.csv, such as group:cortex, as they appear in it.

    `frame` is the table of metrics.csv. In addition to the rows of single structures, it has rows
    for groups of structures: the value of such a row is the mean of a metric over the group.
    """
    # Test the few distinct names instead of the many rows.
    names = frame[["structure"]].drop_duplicates()
    return [str(name) for name in names.loc[is_group(names), "structure"]]


def where(table: pd.DataFrame, **values: str) -> pd.DataFrame:
    """Return the rows of a table that have the given value in each of the given columns.

    `where(frame, metric="dice")` returns the rows with Dice.
    """
    chosen = np.ones(len(table), bool)
    for column, value in values.items():
        chosen &= (table[column] == value).to_numpy()
    return table[chosen]


def _in_order(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return `table`, whose columns are named by structures, with its columns in report order.

    Single structures come first, in the order of the label scheme and the right side after the left
    one; groups of structures (columns `group:<name>`) follow. `frame` is the table of metrics.csv,
    which decides the order. Columns with other names are dropped.
    """
    names = (*structures_of(frame), *groups_of(frame))
    return table[[name for name in names if name in table.columns]]


def by_participant(frame: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """Return one metric of a model as a table, a row for each participant.

    Columns are the single structures, then the groups of structures. `frame` is the table of
    metrics.csv. Values are means over a participant's scans; undefined values are ignored.
    """
    rows = where(frame, model=model, metric=metric)
    means = rows.groupby(["subject", "structure"])["value"].mean()
    return _in_order(means.unstack(), frame)


def by_scan(frame: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """Return one metric of a model as a table, a row for each scan.

    Columns are the single structures, then the groups of structures. `frame` is the table of
    metrics.csv. The index is (subject, session). Cells are NaN where a value is undefined or was
    not measured.
    """
    rows = where(frame, model=model, metric=metric)
    values = rows.set_index(["subject", "session", "structure"])["value"]
    return _in_order(values.unstack(), frame)


def volumes_by_participant(
    frame: pd.DataFrame, model: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the predicted volumes and those of the manual labels, as two tables of equal layout.

    Each table has a row for each participant, with means over their scans, and a column for each
    structure. `frame` is the table of metrics.csv. A scan in which a structure was not measured
    does not enter the means of this structure in either table.
    """
    predicted = by_scan(frame, model, "volume")
    true = by_scan(frame, model, "truth_volume").where(predicted.notna())
    return (
        predicted.groupby(level="subject").mean(),
        true.groupby(level="subject").mean(),
    )


def is_group(frame: pd.DataFrame) -> pd.Series:
    """Return a mask that is True for the rows of a group of structures, such as "group:cortex".

    `frame` is the table of metrics.csv, or another with a column `structure`.
    """
    return frame["structure"].str.startswith("group:").rename("is_group")
