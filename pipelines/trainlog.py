"""What a training writes down as it goes: metrics.csv, validations.csv, events for TensorBoard."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segmentation.errors import ConfigError
from segmentation.files import atomic_text
from segmentation.labels import LabelScheme
from segmentation.training.loop import StepReport
from segmentation.training.network import classes_of
from segmentation.views import View

if TYPE_CHECKING:
    # Not at run time: it knows of all metrics, and through them of SciPy and nibabel.
    from segmentation.training.validation import Scores

__all__ = ["METRICS", "VALIDATIONS", "Metrics", "append_scores"]

METRICS, VALIDATIONS = "metrics.csv", "validations.csv"
_SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
_METRIC_COLUMNS = ("step", "epoch", "loss", "rate", "gradient_norm", "slices_per_second")
# Lines of metrics.csv: dense enough for a curve, few enough for a long run.
_REPORT_SECONDS = 10.0


class Metrics:
    """metrics.csv: the mean of the steps since the last line, about every ten seconds."""

    def __init__(self, folder: Path, step: int, *, events: bool) -> None:
        self.path = folder / METRICS
        rows = []
        if step and self.path.is_file():
            with self.path.open(newline="") as file:
                # What was written after the state that the run goes on from, is done again.
                rows = [row for row in csv.reader(file) if row[0].isdigit() and int(row[0]) <= step]
        with atomic_text(self.path) as file:
            csv.writer(file).writerows([_METRIC_COLUMNS, *rows])
        self.pending: list[StepReport] = []
        self.since = time.monotonic()
        self.events = _open_events(folder, step) if events else None

    def add(self, report: StepReport, *, last: bool) -> None:
        self.pending.append(report)
        if not last and time.monotonic() - self.since < _REPORT_SECONDS:
            return
        losses = [r.loss for r in self.pending if np.isfinite(r.loss)]
        spent = sum(r.seconds for r in self.pending)
        row = (
            report.step,
            report.epoch,
            f"{np.mean(losses):.6f}" if losses else "",
            f"{report.rate:.6g}",
            f"{report.gradient_norm:.4g}",
            f"{sum(r.slices for r in self.pending) / max(spent, 1e-9):.2f}",
        )
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)
        if self.events is not None:
            for name, value in zip(_METRIC_COLUMNS[2:], row[2:], strict=True):
                if value != "":
                    self.events.add_scalar(name, float(value), report.step)
            self.events.flush()
        self.pending, self.since = [], time.monotonic()


def _open_events(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("events need TensorBoard", remedy="install trinat[tracking]") from None
    # What an earlier attempt wrote after `step` is hidden, not shown twice.
    return SummaryWriter(str(folder / "events"), purge_step=step + 1)


def append_scores(folder: Path, step: int, scores: dict[View, Scores], scheme: LabelScheme) -> None:
    """validations.csv: one row a view and structure."""
    path = folder / VALIDATIONS
    kept = []
    if path.is_file():
        with path.open(newline="") as file:
            # A run that was killed after writing and before its state was, comes here again.
            kept = [row for row in csv.reader(file) if row[0].isdigit() and int(row[0]) < step]
    added = [
        (step, view.value, name, f"{dice:.4f}", f"{iou:.4f}")
        for view, score in scores.items()
        for name, dice, iou in zip(
            classes_of(view, scheme).names, score.dice, score.iou, strict=True
        )
        if np.isfinite(dice)
    ]
    with atomic_text(path) as file:
        csv.writer(file).writerows([_SCORE_COLUMNS, *kept, *added])
