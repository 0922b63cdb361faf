"""What training writes as it goes on: metrics.csv, validations.csv, and curves for services.

A line that a power cut has torn is left out where the tables are read; lines of steps after the
state that a run is resumed from are written again.
"""

from __future__ import annotations

import csv
import io
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from trinat.pipelines.train.tracking import Trackers
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
_SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
_METRIC_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "rate",
    "gradient_norm",
    "slices_per_second",
)
# Between two lines of metrics.csv: a part of the time so far, within limits, so that a run of a
# minute has a curve and one of hours has few lines.
_PART_OF_TIME = 0.05
_SHORTEST_S = 1.0
_LONGEST_S = 10.0
# Steps and the values there.
Curve = tuple[list[float], list[float]]


class Metrics:
    """metrics.csv: the mean of the steps since the last line, every one to ten seconds.

    `step` is the one that the run goes on from: later lines are dropped, their steps are done
    again. `trackers` get the same values.
    """

    def __init__(
        self, folder: Path, step: int, trackers: Trackers | None = None
    ) -> None:
        self.path = folder / METRICS_FILE
        kept = [row for row in read_rows(self.path) if int(row["step"]) <= step]
        lines = [list(row.values()) for row in kept]
        _write_table(self.path, _METRIC_COLUMNS, lines)
        self.pending: list[StepReport] = []
        self.began = time.monotonic()
        self.since = self.began
        self.trackers = trackers

    def add(self, report: StepReport, *, last: bool) -> None:
        """Note a step; write a line if it is time, or if the step is the last."""
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
        for name in _METRIC_COLUMNS[2:]:
            if row[name] != "":
                values[name] = float(row[name])
        if self.trackers is not None:
            self.trackers.log(values, report.step)
        self.pending = []
        self.since = time.monotonic()

    def add_scores(self, scores: Mapping[View, Scores], step: int) -> None:
        """Mean Dice and IoU of each view, for trackers; validations.csv has all structures."""
        if self.trackers is None:
            return
        for view, score in scores.items():
            means = {}
            if np.isfinite(score.mean_dice):
                means[f"{view.value}/dice"] = score.mean_dice
            if np.isfinite(score.mean_iou):
                means[f"{view.value}/iou"] = score.mean_iou
            self.trackers.log(means, step)


def _metrics_row(steps: Sequence[StepReport]) -> dict[str, str]:
    """A line of metrics.csv: the mean loss and speed of some steps, else what the last one has.

    Steps without a loss do not count; without any loss its cell is empty.
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
    """A whole table as CSV, in the place of an older one."""
    with atomic_text(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv or validations.csv, without one that a power cut has torn."""
    if not path.is_file():
        return []
    text = read_text(path, errors="replace")
    # A line without a newline may lack a digit, too. After a power cut a file may end in zeros.
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
    scores: Mapping[View, Scores],
    scheme: LabelScheme,
) -> None:
    """Add the scores at a step to validations.csv: one row a view and structure.

    Structures without a score have no row. A run that was killed between this and its next state
    repeats the validation: rows of this step and later ones are replaced.
    """
    path = folder / VALIDATIONS_FILE
    earlier = [row for row in read_rows(path) if int(row["step"]) < step]
    rows: list[Sequence[object]] = [list(row.values()) for row in earlier]
    for view, score in scores.items():
        names = scheme.seen_in(view).names
        scored = zip(names, score.dice, score.iou, strict=True)
        for name, dice, iou in scored:
            if np.isfinite(dice):
                rows.append((step, view.value, name, f"{dice:.4f}", f"{iou:.4f}"))
    _write_table(path, _SCORE_COLUMNS, rows)


def read_curves(job: Path) -> dict[str, Curve]:
    """The curves of one job over its steps, from the tables in its folder.

    They are "loss", "rate", and for each view that was validated "<view> dice" and "<view> iou",
    means over structures. A curve may be empty: of a job whose steps all had no loss.
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
