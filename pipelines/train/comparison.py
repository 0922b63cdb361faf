"""Runs compared by what their folders hold: settings that differ, time, loss and scores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from trinat.pipelines.common.config import read_yaml
from trinat.pipelines.train.log import METRICS, Curve, read_curves
from trinat.pipelines.train.pages import NamedCurves, draw_curves, write_run_page
from trinat.pipelines.train.result import CONFIG, DONE
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.report.page import Column, Columns, table
from trinat.segmentation.training.state import Counters, differences, read_latest

HEAD = ("Job", "Steps", "Hours", "Final loss", "Best Dice", "IoU there")
_COLUMNS: Columns = [
    Column("Run", pick=True),
    "Job",
    Column("Steps", 0),
    Column("Hours", 3),
    Column("Final loss", 3),
    Column("Best Dice", 3),
    Column("IoU there", 3),
]


@dataclass(frozen=True)
class JobSummary:
    """One job of a run as its files say; None for what it has not.

    `iou` is that of the validation with the best Dice.
    """

    name: str
    steps: int
    hours: float | None
    final_loss: float | None
    best_dice: float | None
    iou: float | None

    @property
    def shown(self) -> tuple[str, ...]:
        """Cells of a table, under HEAD."""
        cells = [self.name, str(self.steps)]
        for value in (self.hours, self.final_loss, self.best_dice, self.iou):
            if value is None:
                cells.append("")
            else:
                cells.append(f"{value:.3f}")
        return tuple(cells)


def summarise(run: Path) -> list[JobSummary]:
    """All jobs of a run, in the order of their names; a folder without a run is refused."""
    if not (run / CONFIG).is_file():
        raise TrainingError(f"no training run here ({CONFIG} is missing)", where=run)
    return [_summarise_job(job, run) for job in _jobs(run)]


def compare(
    runs: Sequence[Path], out: Path | None
) -> tuple[list[str], dict[str, list[JobSummary]]]:
    """Differences of settings to the first run, and each run's jobs by the run's path.

    Each difference is one line, that begins with the path of its run. `out`, if it is given,
    gets a page of both, with the curves of all jobs.
    """
    summaries = {str(run): summarise(run) for run in runs}
    configs = [read_yaml(run / CONFIG) for run in runs]
    changed = []
    first, *others = configs
    for run, config in zip(runs[1:], others, strict=True):
        changed += [f"{run}: {line}" for line in differences(first, config)]
    if out is not None:
        _write_comparison(out, runs, summaries, changed)
    return changed, summaries


def _write_comparison(
    out: Path,
    runs: Sequence[Path],
    summaries: Mapping[str, Sequence[JobSummary]],
    changed: Sequence[str],
) -> None:
    """The page: curves of all jobs, their scores, and the settings that differ."""
    curves: list[NamedCurves] = []
    for run in runs:
        for job in _jobs(run):
            name = f"{run.name} {job.relative_to(run)}"
            curves.append((name, read_curves(job)))
    rows = []
    for name, jobs in summaries.items():
        rows += [(name, *astuple(job)) for job in jobs]
    tables = [table("scores", "Scores", _COLUMNS, rows)]
    if changed:
        lines = [(line,) for line in changed]
        tables.append(table("settings", "Settings that differ", ["Setting"], lines))
    write_run_page(
        out,
        title="Runs compared",
        lead=f"{' and '.join(summaries)}: curves, scores, and settings that differ.",
        plots=[draw_curves(curves)],
        tables=tables,
    )


def _jobs(run: Path) -> list[Path]:
    """The folders of a run's jobs that have made a step."""
    return sorted(path.parent for path in run.glob(f"*/*/{METRICS}"))


def _summarise_job(job: Path, run: Path) -> JobSummary:
    """One job by its folder: its state where it has one, else its last noted step."""
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
        name=str(job.relative_to(run)),
        steps=steps,
        hours=hours,
        final_loss=final_loss,
        best_dice=best_dice,
        iou=iou,
    )


def _counters(job: Path) -> Counters | None:
    """How far a job is, by its last word or its newest state; None where it has neither."""
    done = job / DONE
    if done.is_file():
        return Counters(**json.loads(done.read_text("utf-8")))
    state, _ = read_latest(job)
    if state is None:
        return None
    return state.counters


def _means(curves: Mapping[str, Curve], metric: str) -> list[float]:
    """At each validation the mean over views that are trained together."""
    of_views = []
    for key, (_, values) in curves.items():
        if key.endswith(f" {metric}"):
            of_views.append(values)
    by_validation = zip(*of_views, strict=False)
    return [sum(values) / len(values) for values in by_validation]
