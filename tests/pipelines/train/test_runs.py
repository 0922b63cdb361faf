"""trinat runs: figures of each job from the files of a training."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import refusal
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.train.log import Metrics, append_scores
from trinat.pipelines.train.pages import JobSummary, compare, summarise
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.state import Counters, State, write_state
from trinat.segmentation.training.validation import Scores

SCHEME = load_scheme("tissue4")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write a job: losses 3 and 1.

    Mean Dice 0.4 at step 10, then 0.6 and 0.5.
    """
    (tmp_path / "config.yaml").write_text("name: run\n")
    job = tmp_path / "train/coronal"
    job.mkdir(parents=True)
    metrics = Metrics(job, 0)
    for step, loss in ((15, 3.0), (30, 1.0)):
        metrics.add(StepReport(step, 0, loss, 0.1, 1.0, 0.5, 4), last=True)
    for step, dice in ((10, 0.4), (20, 0.6), (30, 0.5)):
        append_scores(job, step, View.CORONAL, scored(dice), SCHEME)
    return job


def scored(dice: float) -> Scores:
    """Return scores of two structures whose mean Dice is `dice`, and of one that no subject has."""
    values = np.array([np.nan, dice - 0.1, dice + 0.1, np.nan])
    return Scores(values, values / 2)


def finish(job: Path, counters: Counters) -> None:
    (job / "done.json").write_text(json.dumps(asdict(counters)))


def only(job: Path) -> JobSummary:
    (summary,) = summarise(job.parents[1])
    return summary


def test_a_finished_job_has_its_time_last_loss_and_best_dice(job: Path) -> None:
    finish(job, Counters(step=30, seconds=5400))
    summary = only(job)
    assert (summary.name, summary.steps, summary.hours) == (
        "train/coronal",
        30,
        1.5,
    )
    assert summary.final_loss == 1
    # At step 20, which has the best Dice.
    assert (summary.best_dice, summary.iou) == (pytest.approx(0.6), pytest.approx(0.3))


def test_a_job_that_was_stopped_has_the_time_of_its_last_sound_state(job: Path) -> None:
    for step in (20, 28):
        write_state(job, State(Counters(step=step, seconds=step * 90), {}, {}, {}))
    assert (only(job).steps, only(job).hours) == (28, 0.7)
    newest = job / "state-000000028.state"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert (only(job).steps, only(job).hours) == (20, 0.5)


def test_a_job_before_its_first_state_and_validation_has_steps_and_a_loss(
    job: Path,
) -> None:
    (job / "validations.csv").unlink()
    assert only(job) == JobSummary("train/coronal", 30, None, 1.0, None, None)


def test_runs_as_json_have_numbers_and_what_differs(job: Path) -> None:
    run = job.parents[1]
    (run / "config.yaml").write_text("name: tiny\n")
    other = run.with_name("other")
    shutil.copytree(run, other)
    (other / "config.yaml").write_text("name: large\n")
    printed = CliRunner().invoke(app, ["runs", str(run), str(other), "--json"]).output
    found = json.loads(printed)
    assert list(found["runs"]) == [str(run), str(other)]
    (summary,) = found["runs"][str(run)]
    assert (summary["steps"], summary["final_loss"]) == (30, 1.0)
    (difference,) = found["differences"]
    assert difference.startswith(f"{other}: name")


def test_names_of_runs_are_whole_in_a_terminal_of_80_columns(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = job.parents[1]
    (run / "config.yaml").write_text("name: tiny\n")
    long = run.with_name("run-of-the-seventh-participant-with-another-rate")
    run.rename(long)
    monkeypatch.chdir(long.parent)
    monkeypatch.setenv("COLUMNS", "80")
    printed = CliRunner().invoke(app, ["runs", long.name]).output
    assert "…" not in printed
    first_column = [line.split("  ")[0] for line in printed.splitlines()]
    assert "".join(first_column) == f"Run{long.name}"


def test_a_folder_of_runs_stands_for_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("fold-10", "fold-2", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "fold-2/config.yaml").write_text("batch: 2\n")
    (tmp_path / "fold-10/config.yaml").write_text("batch: 4\n")
    changed, summaries = compare([tmp_path])
    assert list(summaries) == [str(tmp_path / "fold-2"), str(tmp_path / "fold-10")]
    assert changed == [f"{tmp_path / 'fold-10'}: batch: 2 -> 4"]
    with refusal(TrainingError, tmp_path / "notes"):
        compare([tmp_path / "notes"])
