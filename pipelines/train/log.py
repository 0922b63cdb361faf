"""What training writes as it goes on: metrics.csv, validations.csv, TensorBoard."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segmentation.errors import ConfigError
from segmentation.io.files import atomic_text, read_text
from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View
from segmentation.training.loop import StepReport
from segmentation.training.validation import Scores

METRICS, VALIDATIONS = "metrics.csv", "validations.csv"
_SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
_METRIC_COLUMNS = ("step", "epoch", "loss", "rate", "gradient_norm", "slices_per_second")
# Lines of metrics.csv: dense enough for a curve, few enough for a long run.
_REPORT_SECONDS = 10.0


class Metrics:
    """metrics.csv: the mean of the steps since the last line, about every ten seconds."""

    def __init__(self, folder: Path, step: int, *, events: bool = False) -> None:
        self.path = folder / METRICS
        # Steps after the state that the run resumes from are done again.
        rows = [row.values() for row in read_rows(self.path) if int(row["step"]) <= step]
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
        named = zip(_METRIC_COLUMNS[2:], row[2:], strict=True)
        self._draw({name: float(value) for name, value in named if value != ""}, report.step)
        self.pending, self.since = [], time.monotonic()

    def add_scores(self, scores: Mapping[View, Scores], step: int) -> None:
        """Mean Dice and IoU of each view, beside the other curves; validations.csv has them all."""
        for view, score in scores.items():
            means = {"dice": score.mean_dice, "iou": score.mean_iou}
            values = {f"{view.value}/{name}": mean for name, mean in means.items()}
            self._draw({name: mean for name, mean in values.items() if np.isfinite(mean)}, step)

    def _draw(self, values: Mapping[str, float], step: int) -> None:
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(name, value, step)
            self.events.flush()


def _open_events(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("events need TensorBoard", remedy="install trinat[tracking]") from None
    # What an earlier attempt wrote after `step` is hidden, not shown twice.
    return SummaryWriter(str(folder / "events"), purge_step=step + 1)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv or validations.csv, without one that a power cut has torn."""
    if not path.is_file():
        return []
    text = read_text(path, errors="replace")
    # A line without a newline may lack a digit, too. After a power cut a file may end in zeros.
    head, *lines = [""] if "\n" not in text else text[: text.rindex("\n")].splitlines()
    columns = head.split(",")
    whole = (cells for cells in csv.reader(lines) if len(cells) == len(columns))
    rows = (dict(zip(columns, cells, strict=True)) for cells in whole)
    return [row for row in rows if row["step"].isdigit()]


def append_scores(folder: Path, step: int, scores: dict[View, Scores], scheme: LabelScheme) -> None:
    """validations.csv: one row a view and structure."""
    path = folder / VALIDATIONS
    # A run that was killed between this and its next state repeats the validation.
    kept = [row.values() for row in read_rows(path) if int(row["step"]) < step]
    added = [
        (step, view.value, name, f"{dice:.4f}", f"{iou:.4f}")
        for view, score in scores.items()
        for name, dice, iou in zip(scheme.seen_in(view).names, score.dice, score.iou, strict=True)
        if np.isfinite(dice)
    ]
    with atomic_text(path) as file:
        csv.writer(file).writerows([_SCORE_COLUMNS, *kept, *added])
