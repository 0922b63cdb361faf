"""trinat train --fold: folds and views as separate jobs, in any order and in parallel."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.refusals import refusal
from helpers.small_store import small_store
from helpers.tiny_training import SILENT, tiny_recipe, weights, write_recipe
from helpers.warm import Started, Warm
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.jobs.lock import run_lock
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import ConfigError, LockedError, TrainingError
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import PROVENANCE_FILE
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SCRIPT = Path(__file__).parents[3] / "scripts/slurm/folds.sh"
FOLDS = 3
VIEWS = ("coronal", "axial")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six participants in three folds, with coronal and axial slices."""
    root = tmp_path_factory.mktemp("folds") / "store"
    small_store(root, dict.fromkeys("abcdef", (16, 17, 18)))
    done = CliRunner().invoke(app, ["split", str(root), "--kfold", str(FOLDS)])
    assert done.exit_code == 0, done.output
    return root


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recipe of 12 steps per view.

    Most of them remain if a job is killed at its first state.
    """
    return write_recipe(
        tmp_path_factory.mktemp("recipe"),
        scheme="tissue4",
        views=["coronal", "axial", "sagittal"],
        data={"rows": 16, "columns": 16, "epoch_slices": 48},
        schedule={"steps": 12},
    )


def start(warm: Warm, recipe: Path, store: Path, out: Path, *more: object) -> Started:
    words = ("trinat", "train", recipe, "--store", store, "--out", out, "--quiet")
    return warm.start(*words, *more, environment=ENVIRONMENT)


def files_of_models(runs: Path) -> dict[str, bytes]:
    """Return all files of the models of all folds except their provenance, which has dates."""
    found = {}
    for path in sorted(runs.glob("fold-*/model/*")):
        if path.name != PROVENANCE_FILE:
            found[str(path.relative_to(runs))] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def in_turn(
    warm: Warm, recipe: Path, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """Return the models of a single call with --folds."""
    runs = tmp_path_factory.mktemp("in-turn")
    assert start(warm, recipe, store, runs, "--folds").wait() == 0
    return files_of_models(runs)


@pytest.mark.slow
@pytest.mark.important
def test_jobs_in_any_order_two_at_a_time_each_killed_once_make_the_models_of_one_call(
    warm: Warm, recipe: Path, store: Path, in_turn: dict[str, bytes], tmp_path: Path
) -> None:
    jobs = [(fold, view) for fold in range(FOLDS) for view in VIEWS]
    random.Random(49).shuffle(jobs)

    def train_one(job: tuple[int, str]) -> int:
        fold, view = job
        words = ("--fold", fold, "--view", view, "--resume")
        first = start(warm, recipe, store, tmp_path, *words)
        folder = tmp_path / f"fold-{fold}/train/{view}"
        while first.poll() is None and not list(folder.glob("state-*")):
            time.sleep(0.01)
        first.kill()
        assert first.wait() == -signal.SIGKILL
        return start(warm, recipe, store, tmp_path, *words).wait()

    with ThreadPoolExecutor(2) as two:
        assert list(two.map(train_one, jobs)) == [0] * len(jobs)
    assert len(in_turn) == FOLDS * (len(VIEWS) + 1)
    assert files_of_models(tmp_path) == in_turn
    assert not list(tmp_path.rglob(".lock"))


def test_a_view_is_trained_beside_another_of_its_run(tmp_path: Path) -> None:
    """The other process holds its job, and now and then the folder of the run."""
    recipe, run = tiny_recipe(tmp_path, schedule={"steps": 1}), tmp_path / "run"
    train(recipe, run, SILENT, views=[View.CORONAL])
    with run_lock(run / "train/coronal/.lock"):
        train(recipe, run, SILENT, views=[View.SAGITTAL], resume=True)
        with refusal(LockedError, run / "train/coronal"):
            train(recipe, run, SILENT, views=[View.CORONAL], resume=True)
    assert set(load_model(run / "model").networks) == {View.CORONAL, View.SAGITTAL}
    assert weights(run, "train/sagittal")


def test_a_refused_start_leaves_the_run_of_another_that_is_about_to_begin(
    tmp_path: Path,
) -> None:
    recipe, run = tiny_recipe(tmp_path, tensorboard=True), tmp_path / "run"
    other = run / "train/coronal/.lock"

    def refuse(*_: object) -> None:
        """Raise as if another process had begun a job of the run."""
        held.__enter__()
        raise ConfigError("something is missing")

    held = run_lock(other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trinat.pipelines.train.run._train_jobs", refuse)
        patch.setattr("trinat.pipelines.train.run.save_run", refuse)
        patch.setattr("trinat.pipelines.train.run.refuse_too_large", refuse)
        with pytest.raises(ConfigError, match="something is missing"):
            train(recipe, run, SILENT, views=[View.SAGITTAL])
    assert (run / "config.yaml").is_file()
    held.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--fold", "0"], "--fold 0 without --store"),
        (["--fold", "0", "--folds"], "--folds with --fold 0"),
        (["--fold", "3", "--store"], "has no fold 3: choose a fold from 0 to 2"),
    ],
)
def test_a_fold_that_there_is_not_is_refused(
    store: Path, recipe: Path, asked: list[str], message: str
) -> None:
    if "--store" in asked:
        asked = [*asked, str(store)]
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["train", str(recipe), *asked], catch_exceptions=False)


def test_one_call_says_which_fold_its_lines_are_of(
    store: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trinat.pipelines.train.run.train_by_settings", lambda *_: Path()
    )
    words = ["train", str(recipe), "--store", str(store), "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--folds"], catch_exceptions=False)
    folds = [line for line in done.stderr.splitlines() if line.startswith("fold ")]
    assert folds == [f"fold {n + 1} of 3: {tmp_path / f'fold-{n}'}" for n in range(3)]


def test_a_view_alone_waits_for_the_one_that_it_starts_from(
    store: Path, tmp_path: Path
) -> None:
    stages = [
        {"name": "first", "views": ["coronal"]},
        {"name": "second", "views": ["axial"]},
    ]
    recipe = write_recipe(
        tmp_path,
        scheme="tissue4",
        views=["coronal", "axial"],
        data={"rows": 16, "columns": 16, "epoch_slices": 16},
        stages=stages,
    )
    words = ["train", str(recipe), "--store", str(store), "--out", str(tmp_path)]
    fold = ["--fold", "1", "--device", "cpu"]

    def call(*more: str) -> None:
        CliRunner().invoke(app, [*words, *fold, *more], catch_exceptions=False)

    with refusal(TrainingError, tmp_path / "fold-1", remedy="--view"):
        call("--view", "axial")
    call("--view", "coronal")
    call("--view", "axial", "--resume")
    assert len(load_model(tmp_path / "fold-1/model").networks) == 2


@pytest.mark.parametrize(
    ("task", "fold", "view"),
    [(0, "0", "coronal"), (4, "1", "axial"), (14, "4", "sagittal")],
)
def test_a_task_of_a_slurm_array_is_a_view_of_a_fold(
    tmp_path: Path, task: int, fold: str, view: str
) -> None:
    (tmp_path / "trinat").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "trinat").chmod(0o755)
    surroundings = {
        "SLURM_ARRAY_TASK_ID": str(task),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["sh", SCRIPT, "quicknat"], capture_output=True, text=True, env=surroundings
    )
    assert done.stdout.split() == [
        *("train", "quicknat", "--fold", fold, "--view", view, "--resume", "--quiet")
    ]
