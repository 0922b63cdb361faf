"""Metrics of a training: metrics.csv, validations.csv, and curves at tracking services.

A line that was cut off by a power failure is ignored when the tables are read. When a run is
resumed, lines of steps after its state are replaced.

The services are TensorBoard, Weights & Biases and MLflow. A recipe names them in `tracking`, and
each is an extra of the installation. Each has an adapter with the same small interface, `Tracker`.
All values that they get are also in metrics.csv and validations.csv: if a service fails during a
training, its curves end and the training continues. Other people may be able to read a service.
Therefore it gets no folder names of this disk, and Weights & Biases does not add the name of the
host, the command line, the repository or the printed output, as it does by default.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
from pydantic_core import to_jsonable_python

from trinat.segmentation.errors import (
    ConfigError,
    InterruptedRunError,
    extra_remedy,
)
from trinat.segmentation.io.files import (
    append_whole,
    atomic_text,
    open_to_append,
    read_text,
    write_whole,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, Service
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.validation import Scores

_log = logging.getLogger(__name__)

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
# Time between two lines of metrics.csv: a part of the time so far, within limits, so that a run of
# a minute has a curve and a run of hours has few lines.
_PART_OF_TIME = 0.05
_SHORTEST_S = 1.0
_LONGEST_S = 10.0
# Steps of a curve, and its values at these steps.
Curve = tuple[list[float], list[float]]

# File in a job's folder with the ids of its runs at the services, so that a resumed job continues
# them.
_RUN_IDS_FILE = "tracking.json"
_EXTRAS = {"tensorboard": "tracking", "wandb": "wandb", "mlflow": "mlflow"}
# Final status of a job, in MLflow's terms. A stopped job can be resumed.
End = Literal["FINISHED", "FAILED", "KILLED"]


class Metrics:
    """Writer of metrics.csv.

    It writes a line every 1 to 10 seconds, with means over the steps since the last line. `step` is
    the step from which the job continues: lines of later steps are dropped, because these steps are
    repeated. `trackers` get the same values.
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
        """Record a step; write a line if it is due or if the step is the `last` of the job."""
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
        """Send the mean Dice and IoU of each view to the trackers.

        validations.csv has those of all structures.
        """
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
    """Make a line of metrics.csv from some steps.

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
    scores: Mapping[View, Scores],
    scheme: LabelScheme,
) -> None:
    """Add the scores at a step to validations.csv: a row for each view and structure.

    Structures without a score have no row. Existing rows of this step and later ones are replaced:
    a run that was killed after it wrote them, but before it saved its next state, repeats the
    validation.
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
    """Read the curves of a job from the tables in its folder, by name.

    The names are "loss", "rate", and for each validated view "<view> dice" and "<view> iou", which
    are means over structures. A curve is empty if no step had a value.
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


class Tracker(Protocol):
    """Adapter of a service that stores the curves of a job."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the values at a step to the curves with these names."""

    def close(self, end: End) -> None:
        """Record how the job ended, and send the remaining values."""


class _TensorBoard:
    """Event files in the job's folder."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Hides values that an earlier attempt wrote for steps after `step`.
        self._writer: Any = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, end: End) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run in the project with the recipe's name."""

    def __init__(self, folder: Path, recipe: Recipe, known: str | None) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=recipe.name,
            name=_title(folder),
            id=known,
            resume="allow",
            dir=folder,
            config=_settings_of(recipe),
            reinit="create_new",
            settings=wandb.Settings(
                host="",
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
            ),
        )
        self.id = str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self, end: End) -> None:
        self._run.finish(exit_code=0 if end == "FINISHED" else 1)


class _MLflow:
    """A run in the experiment with the recipe's name."""

    def __init__(self, folder: Path, recipe: Recipe, known: str | None) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        if known is None:
            experiment = self._client.get_experiment_by_name(recipe.name)
            number = (
                self._client.create_experiment(recipe.name)
                if experiment is None
                else experiment.experiment_id
            )
            run = self._client.create_run(number, run_name=_title(folder))
            known = run.info.run_id
            self._client.log_dict(known, _settings_of(recipe), "recipe.json")
        else:
            self._client.update_run(known, status="RUNNING")
        self.id = str(known)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self.id, name, value, step=step)

    def close(self, end: End) -> None:
        self._client.set_terminated(self.id, status=end)


def _title(folder: Path) -> str:
    """Return the last three parts of a job's folder, its run, stage and view: own/train/coronal."""
    return "/".join(folder.resolve().parts[-3:])


def _settings_of(recipe: Recipe) -> Any:
    """Return all settings of a recipe as JSON values; paths have only their last part."""
    return to_jsonable_python(_without_folders(recipe.model_dump()))


def _without_folders(value: Any) -> Any:
    """Replace each path in nested settings by its last part."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {key: _without_folders(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(one) for one in value]
    return value


class Trackers:
    """The tracking services that a recipe names, open for one job within a `with` block.

    The services are told how the block ended.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        step: int,
    ) -> None:
        """Connect to the services, for a job that continues from `step`.

        Raises ConfigError if a service is not installed or cannot begin.
        """
        self._open: dict[Service, Tracker] = {}
        runs: dict[str, str] = {}
        path = folder / _RUN_IDS_FILE
        if path.is_file():
            runs = json.loads(read_text(path))
        for service in recipe.tracking:
            try:
                tracker = _begin(service, folder, recipe, step, runs.get(service))
            except ImportError:
                remedy = extra_remedy(_EXTRAS[service])
                raise ConfigError(
                    f"tracking by {service} needs it installed", remedy=remedy
                ) from None
            except Exception as error:
                # Services have errors of their own, for a network, a key, a disk.
                remedy = "see its documentation, or leave it out of `tracking`"
                raise ConfigError(
                    f"{service} cannot begin: {_first_line(error)}", remedy=remedy
                ) from error
            self._open[service] = tracker
            if isinstance(tracker, _WeightsAndBiases | _MLflow):
                runs[service] = tracker.id
        if runs:
            write_whole(path, json.dumps(runs, indent=1))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add the values at a step to the curves with these names, at all services.

        A service that fails is logged and gets no more values.
        """
        for service, tracker in list(self._open.items()):
            try:
                tracker.log(values, step)
            except Exception as error:
                # Hours of training are worth more than their curves at a service.
                del self._open[service]
                _log.warning(
                    "curves are no longer sent to %s: %s; the training continues",
                    service,
                    _first_line(error),
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end: End = "FINISHED"
        if isinstance(error, InterruptedRunError | KeyboardInterrupt):
            end = "KILLED"
        elif error is not None:
            end = "FAILED"
        for service, tracker in self._open.items():
            try:
                tracker.close(end)
            except Exception as refusal:
                _log.warning("%s: %s", service, _first_line(refusal))


def _begin(
    service: Service, folder: Path, recipe: Recipe, step: int, known: str | None
) -> Tracker:
    """Connect to a service; `known` is the id of the job's earlier run there, or None."""
    if service == "wandb":
        return _WeightsAndBiases(folder, recipe, known)
    if service == "mlflow":
        return _MLflow(folder, recipe, known)
    return _TensorBoard(folder, step)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
