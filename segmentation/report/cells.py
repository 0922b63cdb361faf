"""Cells of an evaluation's tables: numbers in their metric's unit, intervals, shades, p values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trinat.segmentation.metrics.definitions import DIGITS, METRICS, Metric
from trinat.segmentation.report.page import Cell, number, short_name
from trinat.segmentation.report.summary import Evaluation

# The shade is full where the value is perfect; a distance of this has none.
_FAR_MM = 10.0


def digits_of(metric: str) -> int:
    """Digits after the point that a metric's unit has use for."""
    return DIGITS[METRICS[metric].unit]


def numbers_of(row: Mapping[Any, Any], *keys: str, sign: bool = False) -> list[Cell]:
    """Numbers of a metric, with as many digits as its unit has use for."""
    return [number(row[key], digits_of(row["metric"]), sign=sign) for key in keys]


def mean_with_interval(
    evaluation: Evaluation,
    model: str,
    metric: str,
    structure: str = "group:all",
) -> Cell:
    """A mean with its 95 % interval; a dash where there is none."""
    found = evaluation.statistic(model, metric, structure)
    if not found or np.isnan(found["mean"]):
        return number(None)
    mean, low, high = numbers_of(found, "mean", "low", "high")
    # A line breaks before the interval, never within it.
    text = f"{mean.text} [{low.text},\N{NO-BREAK SPACE}{high.text}]"
    hint = ""
    if found["undefined"]:
        hint = f"undefined values: {int(found['undefined'])}"
    return Cell(text, float(found["mean"]), hint=hint)


def shaded(metric: Metric, structure: str, value: float) -> Cell:
    """A number on a ground that says how good it is."""
    cell = number(value, 2)
    shade = None
    if not np.isnan(value):
        goodness = 1 - value / _FAR_MM
        if metric.better == "higher":
            goodness = value
        shade = round(20 * float(np.clip(goodness, 0, 1)))
    hint = f"{short_name(structure)}: {cell.hint or cell.text}"
    return Cell(cell.text, cell.order, shade, hint)


def p_value(value: float) -> Cell:
    """A p value; the smallest ones by their limit."""
    if np.isnan(value):
        return number(None, hint="no test")
    text = f"{value:.3f}"
    if value < 0.001:
        text = "< 0.001"
    return Cell(text, float(value))
