"""Report page of a training job (run.html) with its curves, and comparisons of runs.

Runs are compared by the files in their folders: settings that differ, time, loss and scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from natsort import natsorted

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.report.drawing import Drawing, canvas, model_color
from trinat.pipelines.report.page import (
    Column,
    Columns,
    Table,
    render,
    table,
)
from trinat.pipelines.train.log import (
    METRICS_FILE,
    VALIDATIONS_FILE,
    Curve,
    read_curves,
    read_rows,
)
from trinat.pipelines.train.result import CONFIG, DONE
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.training.state import Counters, differences, read_latest

# Header of a table of jobs.
HEAD = ("Job", "Steps", "Hours", "Final loss", "Best Dice", "IoU there")

_WIDTH_IN = 8.6
_CURVE_IN = 2.2  # the height of a panel of curves
# Titles of the panels with the curves of validation.
_VALIDATED = {"dice": "mean validation Dice", "iou": "mean validation IoU"}
# Curves with fewer steps than this have a mark at each step.
_FEW_STEPS = 30


def write_page(job: Path, title: str, scheme: LabelScheme) -> None:
    """Write run.html of the folder `job`, with its curves so far.

    Once the job has been validated, the page also has a table with the last scores of each
    structure.
    """
    tables = []
    scores = read_rows(job / VALIDATIONS_FILE)
    if scores:
        tables.append(_last_scores(scores))
    page = render(
        "run.html",
        title=title,
        lead=f"One job of a training, as it is now. Label scheme: {scheme.name}.",
        plots=[draw_curves(read_curves(job))],
        tables=tables,
    )
    write_whole(job / "run.html", page)


def _last_scores(scores: Sequence[Mapping[str, str]]) -> Table:
    """Return the table of Dice and IoU of each structure and view at the last validation.

    `scores` are the rows of validations.csv.
    """
    last = max(int(row["step"]) for row in scores)
    rows = []
    for row in scores:
        if int(row["step"]) == last:
            dice = float(row["dice"])
            iou = float(row["iou"])
            rows.append((row["structure"], row["view"], dice, iou))
    columns: Columns = [
        "Structure",
        Column("View", pick=True),
        Column("Dice", 3),
        Column("IoU", 3),
    ]
    return table("scores", f"Validation at step {last}", columns, rows)


def draw_curves(curves: Mapping[str, Curve]) -> Drawing:
    """Draw loss, learning rate, Dice and IoU of a job over steps, a panel for each.

    `curves` are from `read_curves`. Panels of Dice and IoU are missing if the job was not
    validated.
    """
    # Kinds of curves that have values: without validation there is no Dice.
    known = {key.split()[-1] for key, (steps, _) in curves.items() if steps}
    panels = ["loss", "rate", *(panel for panel in _VALIDATED if panel in known)]
    rows = len(panels) // 2
    with canvas(_WIDTH_IN, _CURVE_IN * rows, rows, 2) as (figure, axes):
        for panel, axis in zip(panels, axes.flat, strict=True):
            _draw_panel(axis, panel, curves)
    return Drawing(
        "curves",
        figure,
        "Curves of training over steps: loss, learning rate, and scores of validation",
    )


def _draw_panel(axis: Any, panel: str, curves: Mapping[str, Curve]) -> None:
    """Draw all curves of one kind into a matplotlib Axes, `axis`.

    `panel` is the kind: "loss", "rate", "dice" or "iou". The last two have a curve for each view,
    with a label.
    """
    number = 0
    for key, (steps, values) in curves.items():
        view, _, kind = key.rpartition(" ")
        if kind != panel:
            continue
        marker = "." if len(steps) < _FEW_STEPS else None
        axis.plot(
            steps, values, color=model_color(number), lw=1.2, label=view, marker=marker
        )
        number += 1
    axis.set_title(_VALIDATED.get(panel, panel))
    axis.set_xlabel("step")
    axis.grid()
    if panel in _VALIDATED:
        axis.set_ylim(0, 1)
    # The curves of IoU have the colours of those of Dice.
    if panel == "dice":
        axis.legend(fontsize="small", frameon=False)


@dataclass(frozen=True)
class JobSummary:
    """Row of the table that compares jobs; values that a job does not have are None.

    `steps`, `hours` and `final_loss` are those at the newest checkpoint or at the end. `best_dice`
    is the best mean Dice of a validation, and `iou` the mean IoU of the same validation.
    """

    name: str
    steps: int
    hours: float | None
    final_loss: float | None
    best_dice: float | None
    iou: float | None

    @property
    def shown(self) -> tuple[str, ...]:
        """Cells of the job's row in the table, in the order of `HEAD`; "" for None."""
        cells = [self.name, str(self.steps)]
        for value in (self.hours, self.final_loss, self.best_dice, self.iou):
            if value is None:
                cells.append("")
            else:
                cells.append(f"{value:.3f}")
        return tuple(cells)


def summarise(run: Path) -> list[JobSummary]:
    """Return a summary of each job of a run, sorted by name.

    Raises TrainingError if the folder `run` has no run.
    """
    if not (run / CONFIG).is_file():
        raise TrainingError(f"no training run here ({CONFIG} is missing)", where=run)
    jobs = sorted(path.parent for path in run.glob(f"*/*/{METRICS_FILE}"))
    return [_summarise_job(job, run) for job in jobs]


def compare(
    given: Sequence[Path],
) -> tuple[list[str], dict[str, list[JobSummary]]]:
    """Compare runs by their settings and their jobs.

    `given` are folders of runs, or folders that contain runs, such as those of a cross-validation.
    The first result lists the settings in which a run differs from the first run, as lines that
    begin with the path of the run. The second maps the path of each run to the summaries of its
    jobs.
    """
    runs = []
    for place in given:
        configs = natsorted(place.glob(f"*/{CONFIG}"))
        if (place / CONFIG).is_file() or not configs:
            runs.append(place)
        else:
            runs += [config.parent for config in configs]
    summaries = {str(run): summarise(run) for run in runs}
    configs = [read_yaml(run / CONFIG) for run in runs]
    changed = []
    first, *others = configs
    for run, config in zip(runs[1:], others, strict=True):
        changed += [f"{run}: {line}" for line in differences(first, config)]
    return changed, summaries


def _summarise_job(job: Path, run: Path) -> JobSummary:
    """Return steps, hours, final loss and best scores of the job in the folder `job`.

    Steps and hours are taken from done.json, or from the newest checkpoint; without both, the steps
    are the last in metrics.csv and the hours are None.
    """
    curves = read_curves(job)
    noted_steps, losses = curves["loss"]
    counters = None
    done = job / DONE
    if done.is_file():
        counters = Counters(**json.loads(done.read_text("utf-8")))
    else:
        state, _ = read_latest(job)
        if state is not None:
            counters = state.counters
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
        name=str(job.relative_to(run)),
        steps=steps,
        hours=hours,
        final_loss=final_loss,
        best_dice=best_dice,
        iou=iou,
    )


def _means(curves: Mapping[str, Curve], metric: str) -> list[float]:
    """Return the mean of a metric over structures for each validation of a job."""
    for key, (_, values) in curves.items():
        if key.endswith(f" {metric}"):
            return values
    return []
