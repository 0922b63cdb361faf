"""Tables of lesions that were found and missed, by scan, size and region."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from trinat.pipelines.report.page import Column, NamedColumns, Table, record_table
from trinat.segmentation.labels.lesions import LesionCounts

_MOST_SCANS = 200  # on the page; lesions.csv has all


def class_row(
    scan: Mapping[str, str], by: str, name: str, counts: LesionCounts
) -> dict[str, Any]:
    """Return a row of lesion_classes.csv: the lesions of a scan in one class of size or region.

    `scan` has subject, session and model; `by` is the kind of class, and `name` the class.
    """
    return {**scan, "by": by, "class": name, **_columns(counts)}


def scan_row(
    scan: Mapping[str, str], counts: LesionCounts, values: Mapping[str, float]
) -> dict[str, Any]:
    """Return a row of lesions.csv: all lesions of a scan, and the overlap and volumes of its masks.

    `scan` has subject, session and model, and `values` the metrics of the masks by key.
    """
    row = {**scan, "dice": values["dice"], **_columns(counts)}
    # Voxels of lesions that are too small to be counted belong to these volumes, too.
    row["true_mm3"] = values["truth_volume"]
    row["predicted_mm3"] = values["volume"]
    row["difference_mm3"] = values["volume"] - values["truth_volume"]
    row["difference_percent"] = values["volume_difference"]
    return row


def _columns(counts: LesionCounts) -> dict[str, float]:
    """Return the counts by column."""
    return {
        "true_lesions": counts.true,
        "found_lesions": counts.found,
        "predicted_lesions": counts.predicted,
        "false_lesions": counts.predicted - counts.right,
        "true_mm3": counts.true_mm3,
        "predicted_mm3": counts.predicted_mm3,
        "recall": counts.recall,
        "precision": counts.precision,
        "f1": counts.f1,
    }


def pooled(counts: Iterable[tuple[tuple[str, str, str], LesionCounts]]) -> pd.DataFrame:
    """Return the lesions of all scans together, a row for each model and class.

    `counts` has model, kind of class and class with the counts of each scan.
    """
    sums: dict[tuple[str, str, str], LesionCounts] = {}
    for key, of_scan in counts:
        sums[key] = sums[key] + of_scan if key in sums else of_scan
    rows = [
        {"model": model, "by": by, "class": name, **_columns(of_all)}
        for (model, by, name), of_all in sums.items()
    ]
    return pd.DataFrame(rows)


def tables_of_lesions(scans: pd.DataFrame, classes: pd.DataFrame) -> list[Table]:
    """Return the tables of the page: lesions by size and region over all scans, and by scan.

    `scans` is the table of lesions.csv, and `classes` that of `pooled`.
    """
    shares: NamedColumns = {
        "f1": Column("Lesion F1", 2),
        "recall": Column("Lesion recall", 2, "Found of true"),
        "precision": Column("Lesion precision", 2, "Right of predicted"),
    }
    counts: NamedColumns = {
        "true_lesions": Column("True", 0),
        "found_lesions": Column("Found", 0, "True lesions that were found"),
        "predicted_lesions": Column("Predicted", 0),
        "false_lesions": Column("False", 0, "Predicted lesions without a true lesion"),
        "true_mm3": Column("True volume (mm³)", 0),
        "predicted_mm3": Column("Predicted volume (mm³)", 0),
    }
    by_class = record_table(
        "lesion-class-table",
        "Lesions of all scans together, by size and region",
        {
            "by": "By",
            "class": "Class",
            "model": Column("Model", pick=True),
            **shares,
            **counts,
        },
        classes.to_dict("records"),
        note="A lesion counts in the class of its own size and region.",
    )
    note = ""
    if len(scans) > _MOST_SCANS:
        note = f"The {_MOST_SCANS} worst of {len(scans)}; lesions.csv has all."
    worst = scans.sort_values("f1", na_position="last").head(_MOST_SCANS)
    by_scan = record_table(
        "lesion-scan-table",
        "Lesions of every scan, the worst first",
        {
            "subject": "Subject",
            "session": "Session",
            "model": Column("Model", pick=True),
            "dice": Column("Dice", 2),
            **shares,
            **counts,
            "difference_percent": Column("Volume difference (%)", 1, sign=True),
        },
        worst.to_dict("records"),
        note=note,
    )
    return [by_class, by_scan]
