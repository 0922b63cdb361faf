"""Metrics of a training: metrics.csv, validations.csv, and curves for TensorBoard.

A line that was cut off by a power failure is ignored when the tables are read. When a run is
resumed, lines of steps after its state are replaced.
"""

from __future__ import annotations

import csv
import io
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.extras import require_extra
from trinat.segmentation.io.files import (
    append_whole,
    atomic_text,
    open_to_append,
    read_text,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.validation import Scores

METRICS_FILE = "metrics.csv"
VALIDATIONS_FILE = "validations.csv"
SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
METRIC_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "rate",
    "gradient_norm",
    "slices_per_second",
)
# Time between two lines of metrics.csv: a part of the time so far, within limits, so that a run of
# a minute has a curve and a run of hours has few lines.
_PART_OF_TIME = 0.05
_SHORTEST_S = 1.0
_LONGEST_S = 10.0
# Steps of a curve, and its values at these steps.
Curve = tuple[list[float], list[float]]


class Metrics:
    """Writer of metrics.csv in the folder of a job.

    It writes a line every 1 to 10 seconds, with means over the steps since the last line. `step` is
    the step from which the job continues: lines of later steps are dropped, because these steps are
    repeated. `events` is a SummaryWriter of TensorBoard, from `open_events`, which gets the same
    values; None without TensorBoard.
    """

    def __init__(self, folder: Path, step: int, events: Any = None) -> None:
        self.path = folder / METRICS_FILE
        kept = [row for row in read_rows(self.path) if int(row["step"]) <= step]
        lines = [list(row.values()) for row in kept]
        _write_table(self.path, METRIC_COLUMNS, lines)
        self.pending: list[StepReport] = []
        self.began = time.monotonic()
        self.since = self.began
        self.events = events

    def add(self, report: StepReport, *, last: bool) -> None:
        """Record a training step; write a line of metrics.csv if one is due.

        A line is always written for the `last` step of the job.
        """
        self.pending.append(report)
        now = time.monotonic()
        pause_s = _PART_OF_TIME * (now - self.began)
        pause_s = min(max(pause_s, _SHORTEST_S), _LONGEST_S)
        if not last and now - self.since < pause_s:
            return
        row = _metrics_row(self.pending)
        line = io.StringIO(newline="")
        csv.writer(line).writerow(row.values())
        with open_to_append(self.path) as file:
            append_whole(file, line.getvalue().encode(), self.path)
        values = {}
        for name in METRIC_COLUMNS[2:]:
            if row[name] != "":
                values[name] = float(row[name])
        self._add_events(values, report.step)
        self.pending = []
        self.since = time.monotonic()

    def add_scores(self, view: View, scores: Scores, step: int) -> None:
        """Send the mean Dice and IoU of a validation to TensorBoard."""
        means = {}
        if np.isfinite(scores.mean_dice):
            means[f"{view.value}/dice"] = scores.mean_dice
        if np.isfinite(scores.mean_iou):
            means[f"{view.value}/iou"] = scores.mean_iou
        self._add_events(means, step)

    def _add_events(self, values: Mapping[str, float], step: int) -> None:
        """Add a point at `step` to each of TensorBoard's curves in `values`, by name.

        Nothing is done without TensorBoard.
        """
        if self.events is None:
            return
        for name, value in values.items():
            self.events.add_scalar(name, value, step)
        self.events.flush()


def _metrics_row(steps: Sequence[StepReport]) -> dict[str, str]:
    """Return a line of metrics.csv, by column, that summarises consecutive steps.

    Loss and speed are means over the steps; other values are those of the last step. Steps without
    a finite loss are not part of the mean; the cell is empty if all lack it.
    """
    last = steps[-1]
    losses = [step.loss for step in steps if np.isfinite(step.loss)]
    mean_loss = ""
    if losses:
        mean_loss = f"{np.mean(losses):.6f}"
    slices = sum(step.slices for step in steps)
    seconds = sum(step.seconds for step in steps)
    return {
        "step": str(last.step),
        "epoch": str(last.epoch),
        "loss": mean_loss,
        "rate": f"{last.rate:.6g}",
        "gradient_norm": f"{last.gradient_norm:.4g}",
        "slices_per_second": f"{slices / max(seconds, 1e-9):.2f}",
    }


def _write_table(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Write a table as CSV, and replace an older one."""
    with atomic_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of metrics.csv or validations.csv; [] if there is no such file.

    Rows that were cut off by a power failure are left out.
    """
    if not path.is_file():
        return []
    text = read_text(path, errors="replace")
    # A last line without a newline may be incomplete. After a power failure a file may end in
    # zeros.
    whole, _, _ = text.rpartition("\n")
    lines = whole.splitlines()
    if not lines:
        return []
    columns = lines[0].split(",")
    rows = []
    for cells in csv.reader(lines[1:]):
        if len(cells) != len(columns):
            continue
        row = dict(zip(columns, cells, strict=True))
        if row["step"].isdigit():
            rows.append(row)
    return rows


def append_scores(
    folder: Path,
    step: int,
    view: View,
    scores: Scores,
    scheme: LabelScheme,
) -> None:
    """Add the Dice and IoU of a validation to validations.csv: a row for each structure.

    `step` is the number of training steps before the validation. Structures without a score have no
    row. Existing rows of this step and later ones are replaced: a run that was killed after it
    wrote them, but before it saved its next checkpoint, repeats the validation.
    """
    path = folder / VALIDATIONS_FILE
    earlier = [row for row in read_rows(path) if int(row["step"]) < step]
    rows: list[Sequence[object]] = [list(row.values()) for row in earlier]
    names = scheme.seen_in(view).names
    for name, dice, iou in zip(names, scores.dice, scores.iou, strict=True):
        if np.isfinite(dice):
            rows.append((step, view.value, name, f"{dice:.4f}", f"{iou:.4f}"))
    _write_table(path, SCORE_COLUMNS, rows)


def read_curves(job: Path) -> dict[str, Curve]:
    """Read the curves of a job from metrics.csv and validations.csv in its folder.

    A curve is a pair of lists: the steps, and the values at these steps. Keys are "loss", "rate"
    (the learning rate), and for each validated view "<view> dice" and "<view> iou", which are means
    over structures. The lists are empty if no step had a value.
    """
    curves: dict[str, Curve] = {}
    metrics = read_rows(job / METRICS_FILE)
    for key in ("loss", "rate"):
        known = [row for row in metrics if row[key]]
        steps = [float(row["step"]) for row in known]
        values = [float(row[key]) for row in known]
        curves[key] = (steps, values)
    validations = read_rows(job / VALIDATIONS_FILE)
    for metric in ("dice", "iou"):
        # By view and step, a score for each structure.
        scores_at: dict[tuple[str, float], list[float]] = defaultdict(list)
        for row in validations:
            step = float(row["step"])
            scores_at[row["view"], step].append(float(row[metric]))
        for (view, step), scores in scores_at.items():
            steps, means = curves.setdefault(f"{view} {metric}", ([], []))
            steps.append(step)
            means.append(sum(scores) / len(scores))
    return curves


def open_events(folder: Path, step: int) -> Any:
    """Open TensorBoard's SummaryWriter in a job's folder, as a context manager.

    Values that an earlier attempt wrote for steps after `step` are hidden. Raises ConfigError if
    TensorBoard is not installed.
    """
    require_extra("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "events"), purge_step=step + 1)
