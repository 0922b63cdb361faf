"""Training runs compared: settings that differ, curves, best scores, time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.common.config import read_yaml
from pipelines.train.page import Curve, Rows, read_curves, write_comparison
from pipelines.train.result import DONE
from segmentation.errors import TrainingError
from segmentation.training.state import Counters, differences, read_latest

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
        figures = (self.hours, self.final_loss, self.best_dice, self.iou)
        texts = ("" if value is None else f"{value:.3f}" for value in figures)
        return (self.name, str(self.steps), *texts)


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
    changed = [
        f"{name}: {line}"
        for name, config in zip(names[1:], configs[1:], strict=True)
        for line in differences(configs[0], config)
    ]
    if out is not None:
        curves: list[tuple[str, dict[str, Curve]]] = [
            (f"{run.name} {job.relative_to(run)}", read_curves(job))
            for run in runs
            for job in _jobs(run)
        ]
        rows = [(name, *job.shown) for name, jobs in summaries.items() for job in jobs]
        tables: list[Rows] = [("Scores", ("Run", *HEAD), rows)]
        if changed:
            tables.append(("Settings that differ", ("",), [(line,) for line in changed]))
        write_comparison(out, curves, tables)
    return changed, summaries


def _jobs(run: Path) -> list[Path]:
    return sorted(path.parent for path in run.glob("*/*/metrics.csv"))


def _counters(job: Path) -> Counters | None:
    """The counters at a job's end; of an unfinished job those of its last sound state."""
    done = job / DONE
    if done.is_file():
        return Counters(**json.loads(done.read_text("utf-8")))
    state, _ = read_latest(job)
    return state.counters if state else None


def _summarise_job(job: Path, run: Path) -> JobSummary:
    curves = read_curves(job)
    steps, losses = curves["loss"]
    counters = _counters(job)
    dice, iou = _means(curves, "dice"), _means(curves, "iou")
    best = dice.index(max(dice)) if dice else None
    return JobSummary(
        name=str(job.relative_to(run)),
        steps=counters.step if counters else int(steps[-1] if steps else 0),
        hours=counters.seconds / 3600 if counters else None,
        final_loss=losses[-1] if losses else None,
        best_dice=None if best is None else dice[best],
        iou=None if best is None else iou[best],
    )


def _means(curves: Mapping[str, Curve], metric: str) -> list[float]:
    """At each validation the mean over views that are trained together."""
    found = [values for key, (_, values) in curves.items() if key.endswith(f" {metric}")]
    return [sum(at) / len(at) for at in zip(*found, strict=False)]
