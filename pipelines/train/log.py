"""What training writes as it goes on: metrics.csv, validations.csv, TensorBoard, MLflow."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from segmentation.errors import ConfigError
from segmentation.io.files import atomic_text, read_text
from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View
from segmentation.training.loop import StepReport
from segmentation.training.validation import Scores

__all__ = ["METRICS", "VALIDATIONS", "Metrics", "append_scores", "read_rows"]

METRICS, VALIDATIONS, MLFLOW_RUN = "metrics.csv", "validations.csv", "mlflow.txt"
_SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
_METRIC_COLUMNS = ("step", "epoch", "loss", "rate", "gradient_norm", "slices_per_second")
# Lines of metrics.csv: dense enough for a curve, few enough for a long run.
_REPORT_SECONDS = 10.0
# The most that one message to MLflow may have, and the pause if its server is unavailable.
_MLFLOW_PARAMS, _MLFLOW_METRICS, _MLFLOW_PAUSE_SECONDS = 100, 1000, 600.0


class _Curves(Protocol):
    """Where curves are kept beside metrics.csv: TensorBoard's writer, or a run of MLflow."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...

    def flush(self) -> None: ...


class Metrics:
    """metrics.csv: the mean of the steps since the last line, about every ten seconds."""

    def __init__(
        self,
        folder: Path,
        step: int,
        *,
        events: bool = False,
        mlflow: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`mlflow` is an experiment, whose run of this job shows the `settings`."""
        self.path = folder / METRICS
        # Steps after the state that the run resumes from are done again.
        rows = [row.values() for row in read_rows(self.path) if int(row["step"]) <= step]
        with atomic_text(self.path) as file:
            csv.writer(file).writerows([_METRIC_COLUMNS, *rows])
        self.pending: list[StepReport] = []
        self.since = time.monotonic()
        self.curves: list[_Curves] = []
        if events:
            self.curves.append(_open_events(folder, step))
        if mlflow is not None:
            self.curves.append(_MlflowRun(folder, mlflow, settings or {}))

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
        for curves in self.curves:
            for name, value in values.items():
                curves.add_scalar(name, value, step)
            curves.flush()


class _MlflowRun:
    """One job as a run in an experiment of MLflow, at the address in MLflow's own settings.

    A resumed job continues its run; steps that are done again are there twice. If the server is
    unavailable, training goes on and the values are sent later.
    """

    def __init__(self, folder: Path, experiment: str, settings: Mapping[str, Any]) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise ConfigError("curves in MLflow need it", remedy="install trinat[mlflow]") from None
        self.metric, self.failure = Metric, MlflowException
        self.pending: list[Any] = []
        self.asked_again_at = 0.0
        noted = folder / MLFLOW_RUN
        params = [Param(key, str(value)[:500]) for key, value in _flat(settings)]
        try:
            self.client = MlflowClient()
            if noted.is_file():
                self.run = noted.read_text("utf-8").strip()
                return
            known = self.client.get_experiment_by_name(experiment)
            number = known.experiment_id if known else self.client.create_experiment(experiment)
            name = "/".join(folder.parts[-3:])
            self.run = self.client.create_run(number, run_name=name).info.run_id
            self.client.log_batch(self.run, params=params[:_MLFLOW_PARAMS])
        except MlflowException as error:
            raise ConfigError(
                f"MLflow does not take the run ({str(error).splitlines()[0]})",
                remedy="see MLFLOW_TRACKING_URI, or leave `mlflow` out of the recipe",
            ) from error
        with atomic_text(noted) as file:
            file.write(self.run + "\n")

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        at_ms = int(time.time() * 1000)
        self.pending.append(self.metric(tag, scalar_value, at_ms, global_step))

    def flush(self) -> None:
        if time.monotonic() < self.asked_again_at:
            return
        try:
            while self.pending:
                self.client.log_batch(self.run, metrics=self.pending[:_MLFLOW_METRICS])
                del self.pending[:_MLFLOW_METRICS]
        except self.failure:
            self.asked_again_at = time.monotonic() + _MLFLOW_PAUSE_SECONDS


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """`key.in.it` and value of each setting that was made."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value


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
