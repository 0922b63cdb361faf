"""What training writes as it goes on (tables, TensorBoard, pages), and runs compared by it."""

from __future__ import annotations

import csv
import io
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.train.result import DONE
from trinat.segmentation.errors import ConfigError, TrainingError
from trinat.segmentation.io.files import (
    append_whole,
    atomic_text,
    atomic_write,
    open_to_append,
    read_text,
    write_whole,
)
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.page import render
from trinat.segmentation.report.pictures import (
    brain_window,
    label_colors,
    overlay,
    png_bytes,
)
from trinat.segmentation.space.views import View
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.state import Counters, differences, read_latest
from trinat.segmentation.training.validation import Examples, Scores

METRICS, VALIDATIONS = "metrics.csv", "validations.csv"
_SCORE_COLUMNS = ("step", "view", "structure", "dice", "iou")
_METRIC_COLUMNS = (
    "step",
    "epoch",
    "loss",
    "rate",
    "gradient_norm",
    "slices_per_second",
)
# Lines of metrics.csv: dense enough for a curve, few enough for a long run.
_REPORT_SECONDS = 10.0
Curve = tuple[list[float], list[float]]
# A table of a page: its caption, titles and rows.
Rows = tuple[str, Sequence[str], Sequence[Sequence[object]]]


class Metrics:
    """metrics.csv: the mean of the steps since the last line, about every ten seconds."""

    def __init__(self, folder: Path, step: int, *, events: bool = False) -> None:
        self.path = folder / METRICS
        # Steps after the state that the run resumes from are done again.
        rows = [
            row.values() for row in read_rows(self.path) if int(row["step"]) <= step
        ]
        with atomic_text(self.path) as file:
            csv.writer(file).writerows([_METRIC_COLUMNS, *rows])
        self.pending: list[StepReport] = []
        self.since = time.monotonic()
        self.events: Any = None
        if events:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                remedy = "install trinat[tracking]"
                raise ConfigError("events need TensorBoard", remedy=remedy) from None
            # What an earlier attempt wrote after `step` is hidden, not shown twice.
            self.events = SummaryWriter(str(folder / "events"), purge_step=step + 1)

    def add(self, report: StepReport, *, last: bool) -> None:
        self.pending.append(report)
        if not last and time.monotonic() - self.since < _REPORT_SECONDS:
            return
        losses = [step.loss for step in self.pending if np.isfinite(step.loss)]
        mean_loss = ""
        if losses:
            mean_loss = f"{np.mean(losses):.6f}"
        slices = sum(step.slices for step in self.pending)
        spent = sum(step.seconds for step in self.pending)
        row = (
            report.step,
            report.epoch,
            mean_loss,
            f"{report.rate:.6g}",
            f"{report.gradient_norm:.4g}",
            f"{slices / max(spent, 1e-9):.2f}",
        )
        line = io.StringIO(newline="")
        csv.writer(line).writerow(row)
        with open_to_append(self.path) as file:
            append_whole(file, line.getvalue().encode(), self.path)
        named = zip(_METRIC_COLUMNS[2:], row[2:], strict=True)
        self._draw(
            {name: float(value) for name, value in named if value != ""}, report.step
        )
        self.pending = []
        self.since = time.monotonic()

    def add_scores(self, scores: Mapping[View, Scores], step: int) -> None:
        """Mean Dice and IoU of each view, beside the other curves; validations.csv has them all."""
        for view, score in scores.items():
            means = {
                f"{view.value}/dice": score.mean_dice,
                f"{view.value}/iou": score.mean_iou,
            }
            self._draw(
                {name: mean for name, mean in means.items() if np.isfinite(mean)}, step
            )

    def _draw(self, values: Mapping[str, float], step: int) -> None:
        if self.events is not None:
            for name, value in values.items():
                self.events.add_scalar(name, value, step)
            self.events.flush()


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
    folder: Path, step: int, scores: dict[View, Scores], scheme: LabelScheme
) -> None:
    """validations.csv: one row a view and structure."""
    path = folder / VALIDATIONS
    # A run that was killed between this and its next state repeats the validation.
    kept = [row.values() for row in read_rows(path) if int(row["step"]) < step]
    added = []
    for view, score in scores.items():
        names = scheme.seen_in(view).names
        for name, dice, iou in zip(names, score.dice, score.iou, strict=True):
            if np.isfinite(dice):
                added.append((step, view.value, name, f"{dice:.4f}", f"{iou:.4f}"))
    with atomic_text(path) as file:
        csv.writer(file).writerows([_SCORE_COLUMNS, *kept, *added])


# Pages --------------------------------------------------------------------------------------


def read_curves(job: Path) -> dict[str, Curve]:
    """Loss, rate and mean validation Dice of each view over the steps of one job."""
    curves: dict[str, Curve] = {}
    metrics = read_rows(job / METRICS)
    for key in ("loss", "rate"):
        known = [row for row in metrics if row[key]]
        steps = [float(row["step"]) for row in known]
        values = [float(row[key]) for row in known]
        curves[key] = (steps, values)
    for metric in ("dice", "iou"):
        # By view and step, a score for each structure.
        scores_at: dict[tuple[str, float], list[float]] = defaultdict(list)
        for row in read_rows(job / VALIDATIONS):
            scores_at[row["view"], float(row["step"])].append(float(row[metric]))
        for (view, step), scores in scores_at.items():
            steps, means = curves.setdefault(f"{view} {metric}", ([], []))
            steps.append(step)
            means.append(sum(scores) / len(scores))
    return curves


def write_page(job: Path, title: str, scheme: LabelScheme) -> None:
    """progress.png and run.html of one job, as it stands."""
    curves = read_curves(job)
    picture = _draw([("", curves)])
    write_whole(job / "progress.png", picture)
    pictures = [("curves of training", picture)]
    tables = []
    scores = read_rows(job / VALIDATIONS)
    if scores:
        pictures.append(
            ("Dice and IoU of each structure through time", _draw_structures(scores))
        )
        last = max(int(row["step"]) for row in scores)
        rows = [
            (f"{row['structure']}, {row['view']}", row["dice"], row["iou"])
            for row in scores
            if int(row["step"]) == last
        ]
        tables.append(
            (f"Validation at step {last}", ("Structure", "Dice", "IoU"), rows)
        )
    examples = []
    for path in sorted((job / "examples").glob("*.png")):
        view, step = path.stem.split("-")[:2]
        examples.append((f"{view}, step {int(step)}", path.read_bytes()))
    title = f"{title} ({scheme.name})"
    _write(
        job / "run.html",
        title=title,
        pictures=pictures,
        tables=tables,
        examples=examples,
    )


def write_examples(
    job: Path, step: int, view: str, examples: Examples, scheme: LabelScheme
) -> None:
    """Validation slices, the same at each step: image, truth and prediction."""
    from matplotlib.image import imsave

    colors = label_colors(scheme)
    plain = np.zeros_like(examples.truth)
    kinds = (plain, examples.truth, examples.predicted)
    # Cropped by the truth, so that pictures of all steps show the same field.
    window = (slice(None), *brain_window(examples.truth))
    panels = [overlay(examples.images[window], kind[window], colors) for kind in kinds]
    # (S, H, 3 W, 3) to one slice below another; row 0 of each stands at its bottom.
    rows = np.concatenate(panels, axis=2)[:, ::-1]
    folder = job / "examples"
    folder.mkdir(exist_ok=True)
    with atomic_write(folder / f"{view}-{step:09d}.png") as file:
        imsave(file, np.concatenate(rows), format="png")


def _write(path: Path, **context: Any) -> None:
    write_whole(path, render("run.html", style="plain.css", script="", **context))


def _draw(runs: Sequence[tuple[str, dict[str, Curve]]]) -> bytes:
    """Loss, rate, Dice and IoU over steps, as PNG."""
    # Figure, not pyplot: no global state, and no window system is asked for.
    from matplotlib.figure import Figure

    titles = {"dice": "mean validation Dice", "iou": "mean validation IoU"}
    known = {
        key.split()[-1]
        for _, curves in runs
        for key, (steps, _) in curves.items()
        if steps
    }
    # Without validation there is no Dice to draw.
    panels = ["loss", "rate", *(panel for panel in titles if panel in known)]
    figure = Figure(figsize=(11, 1.5 * len(panels)), layout="constrained")
    for panel, axes in zip(
        panels, figure.subplots(len(panels) // 2, 2).flat, strict=True
    ):
        named = 0
        for name, curves in runs:
            for key, (steps, values) in curves.items():
                if key != panel and not key.endswith(f" {panel}"):
                    continue
                label = " ".join(
                    word for word in (name, key.removesuffix(f" {panel}")) if word
                )
                axes.plot(
                    steps, values, label=label, marker="." if len(steps) < 30 else None
                )
                named += key != panel or bool(name)
        axes.set_title(titles.get(panel, panel))
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        if panel in titles:
            axes.set_ylim(0, 1)
        if named:
            axes.legend(fontsize="small")
    return png_bytes(figure, 110)


def _draw_structures(scores: Sequence[dict[str, str]]) -> bytes:
    """Dice and IoU of each structure at each validation, a row of panels a view, as PNG."""
    import pandas as pd
    from matplotlib.figure import Figure

    frame = pd.DataFrame(scores)
    views, lines = (
        list(frame["view"].unique()),
        len(frame.groupby(["view", "structure"])),
    )
    figure = Figure(figsize=(11, 1.5 + 0.17 * lines), layout="constrained")
    for panels, view in zip(
        figure.subplots(len(views), 2, squeeze=False), views, strict=True
    ):
        mine = frame[frame["view"] == view]
        names, steps = list(mine["structure"].unique()), list(mine["step"].unique())
        for panel, (metric, title) in zip(
            panels, (("dice", "Dice"), ("iou", "IoU")), strict=True
        ):
            table = mine.pivot_table(metric, "structure", "step", aggfunc="last")
            table = table.reindex(index=names, columns=steps).astype(float)
            shown = panel.imshow(
                table, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
            )
            panel.set_title(f"{title}, {view}")
            panel.set_yticks(range(len(names)), names, fontsize="x-small")
            # As many steps as can be read.
            some = range(0, len(steps), -(-len(steps) // 6))
            panel.set_xticks(some, [steps[i] for i in some])
            panel.set_xlabel("step")
            figure.colorbar(shown, ax=panel)
    return png_bytes(figure, 110)


# Runs compared --------------------------------------------------------------------------------

HEAD = ("Job", "Steps", "Hours", "Final loss", "Best Dice", "IoU there")


@dataclass(frozen=True)
class JobSummary:
    """One job of a run as its files say; None for what it has not."""

    name: str
    steps: int
    hours: float | None
    final_loss: float | None
    best_dice: float | None
    iou: float | None  # where the Dice is best

    @property
    def shown(self) -> tuple[str, ...]:
        """Under HEAD."""
        cells = [self.name, str(self.steps)]
        for value in (self.hours, self.final_loss, self.best_dice, self.iou):
            if value is None:
                cells.append("")
            else:
                cells.append(f"{value:.3f}")
        return tuple(cells)


def summarise(run: Path) -> list[JobSummary]:
    """All jobs of a run, in the order of their names."""
    if not (run / "config.yaml").is_file():
        raise TrainingError("no training run here (config.yaml is missing)", where=run)
    return [_summarise_job(job, run) for job in _jobs(run)]


def compare(
    runs: Sequence[Path], out: Path | None
) -> tuple[list[str], dict[str, list[JobSummary]]]:
    """Differences of settings to the first run, and each run's jobs; `out` gets a page of it."""
    names = [str(run) for run in runs]
    summaries = {name: summarise(run) for name, run in zip(names, runs, strict=True)}
    configs = [read_yaml(run / "config.yaml") for run in runs]
    changed = []
    for name, config in zip(names[1:], configs[1:], strict=True):
        changed += [f"{name}: {line}" for line in differences(configs[0], config)]
    if out is not None:
        curves: list[tuple[str, dict[str, Curve]]] = []
        for run in runs:
            curves += [
                (f"{run.name} {job.relative_to(run)}", read_curves(job))
                for job in _jobs(run)
            ]
        rows = []
        for name, jobs in summaries.items():
            rows += [(name, *job.shown) for job in jobs]
        tables: list[Rows] = [("Scores", ("Run", *HEAD), rows)]
        if changed:
            tables.append(
                ("Settings that differ", ("",), [(line,) for line in changed])
            )
        pictures = [("curves of training", _draw(curves))]
        _write(
            out, title="Runs compared", pictures=pictures, tables=tables, examples=()
        )
    return changed, summaries


def _jobs(run: Path) -> list[Path]:
    return sorted(path.parent for path in run.glob("*/*/metrics.csv"))


def _summarise_job(job: Path, run: Path) -> JobSummary:
    curves = read_curves(job)
    noted_steps, losses = curves["loss"]
    counters = _counters(job)
    steps = 0
    hours = None
    if counters is not None:
        steps = counters.step
        hours = counters.seconds / 3600
    elif noted_steps:
        steps = int(noted_steps[-1])
    final_loss = None
    if losses:
        final_loss = losses[-1]
    dice = _means(curves, "dice")
    best_dice = None
    iou = None
    if dice:
        best_dice = max(dice)
        iou = _means(curves, "iou")[dice.index(best_dice)]
    return JobSummary(
        str(job.relative_to(run)), steps, hours, final_loss, best_dice, iou
    )


def _counters(job: Path) -> Counters | None:
    """How far a job is, by its last word or its newest state; None where it has neither."""
    if (job / DONE).is_file():
        return Counters(**json.loads((job / DONE).read_text("utf-8")))
    state, _ = read_latest(job)
    if state is None:
        return None
    return state.counters


def _means(curves: Mapping[str, Curve], metric: str) -> list[float]:
    """At each validation the mean over views that are trained together."""
    found = [
        values for key, (_, values) in curves.items() if key.endswith(f" {metric}")
    ]
    return [sum(at) / len(at) for at in zip(*found, strict=False)]
