"""trinat train: from a recipe to a model folder, stopped and resumed, refused in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipelines.config import with_settings
from pipelines.exits import Exit
from pipelines.runs import compare, summarise
from pipelines.train import Watcher, read_recipe, train
from segmentation.errors import ConfigError, TrainingError
from segmentation.models.checkpoint import load_model
from segmentation.training.state import read_latest
from segmentation.views import View

NETWORK = {
    "filters": 4,
    "kernel": 3,
    "depth": 2,
    "excitation": "none",
    "activation": "relu",
    "order": "convolution-norm-activation",
}
TINY = {
    "name": "tiny",
    "network": NETWORK,
    "views": ["coronal", "sagittal"],
    "data": {
        "synthetic": {"heads": "phantom"},
        "rows": 32,
        "columns": 32,
        "epoch_slices": 16,
    },
    "schedule": {"steps": 8},
    "batch": 4,
    "checkpoint_every_steps": 2,
}
TRINAT = (sys.executable, "-c", "from pipelines.cli import main; main()")
SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def trinat(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TRINAT, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def weights(run: Path, job: str) -> dict[str, list[float]]:
    state, problems = read_latest(run / job)
    assert state is not None
    assert not problems
    return {name: value.flatten().tolist() for name, value in state.network.items()}


@pytest.mark.parametrize(
    "name", ["fast", "finetune", "quicknat", "quicknat-paper", "smoke", "synthetic"]
)
def test_every_shipped_recipe_is_sound(name: str) -> None:
    assert read_recipe(name).name == name


def test_the_paper_recipe_is_the_papers() -> None:
    stage = read_recipe("quicknat-paper").stages[0]
    optimiser = stage.optimiser
    assert (optimiser.kind, optimiser.rate, optimiser.momentum) == ("sgd", 0.1, 0.95)
    assert (optimiser.weight_decay, stage.batch) == (1e-4, 4)
    assert (stage.schedule.factor, stage.schedule.every_epochs) == (0.1, 10)


def test_settings_reach_into_the_recipe(recipe_file: Path) -> None:
    recipe = read_recipe(str(recipe_file), ["batch=2", "data.synthetic.synthesis.noise=0.5"])
    stage = recipe.stages[0]
    assert stage.batch == 2
    assert stage.data.synthetic is not None
    assert stage.data.synthetic.synthesis.noise == 0.5


def test_settings_reach_into_a_stage() -> None:
    assert with_settings({"stages": [{"a": 1}]}, ["stages.0.a=2"]) == {"stages": [{"a": 2}]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batches=2", "batches: there is no such setting"),
        ("batch=0", "batch"),
        ("batch=many", "batch"),
        ("stages.7.batch=1", "no 7"),
        ("batch", "not key=value"),
    ],
)
def test_a_wrong_setting_is_named(recipe_file: Path, setting: str, message: str) -> None:
    content = {"stages": [{}], **TINY} if setting.startswith("stages") else TINY
    recipe_file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=message):
        read_recipe(str(recipe_file), [setting])


def test_seconds_are_shared_out_among_the_jobs(recipe_file: Path) -> None:
    stage = read_recipe(str(recipe_file), seconds=10).stages[0]
    assert (stage.schedule.seconds, stage.schedule.steps) == (5, None)


def test_a_run_within_a_time_ends_in_time_with_a_model(recipe_file: Path, tmp_path: Path) -> None:
    recipe = read_recipe(str(recipe_file), seconds=2)
    model = load_model(train(recipe, tmp_path / "run", SILENT))
    assert set(model.networks) == {View.CORONAL, View.SAGITTAL}
    done = json.loads((tmp_path / "run/train/coronal/done.json").read_text())
    assert done["step"] > 0
    assert 1 <= done["seconds"] < 10


def test_a_run_leaves_a_model_curves_and_its_settings(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        yaml.safe_dump(
            {
                **TINY,
                "validation": {"every_epochs": 2, "scans": 1},
                "stages": [
                    {"name": "together", "together": True},
                    {"name": "each", "schedule": {"steps": 2}},
                ],
            }
        )
    )
    run = tmp_path / "run"
    model = load_model(train(read_recipe(str(tmp_path / "r.yaml")), run, SILENT))
    assert model.networks[View.SAGITTAL].config.classes == 19
    assert model.info.not_predicted == ("CSF",)
    # 8 steps together, then 2 for each view, of 4 slices.
    assert model.info.training.slices_seen == 48
    jobs = ["each/coronal", "each/sagittal", "together/coronal-sagittal"]
    assert [job.name for job in summarise(run)] == jobs
    for job in jobs:
        assert (run / job / "progress.png").read_bytes().startswith(b"\x89PNG")
        assert "Validation at step" in (run / job / "run.html").read_text()
    with (run / jobs[2] / "metrics.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["step"] == "8"


def test_a_stage_starts_from_the_one_before(tmp_path: Path) -> None:
    content = {**TINY, "views": ["coronal"], "ema": 0}
    # A frozen second stage ends with the weights of the first.
    parts = dict.fromkeys(("encoders", "bottleneck", "decoders"), 0)
    content["stages"] = [{"name": "a"}, {"name": "b", "optimiser": {"parts": parts}}]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    train(read_recipe(str(tmp_path / "r.yaml")), tmp_path / "run", SILENT)
    first, second = (weights(tmp_path / "run", f"{name}/coronal") for name in "ab")
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"classifiers.coronal.weight", "classifiers.coronal.bias"}


def test_a_second_run_in_the_same_place_is_refused(recipe_file: Path, tmp_path: Path) -> None:
    recipe = read_recipe(str(recipe_file))
    train(recipe, tmp_path / "run", SILENT)
    with pytest.raises(TrainingError, match="--resume"):
        train(recipe, tmp_path / "run", SILENT)


def test_resuming_with_other_settings_is_refused_by_name(recipe_file: Path, tmp_path: Path) -> None:
    train(read_recipe(str(recipe_file)), tmp_path / "run", SILENT)
    with pytest.raises(TrainingError, match=r"stages|batch"):
        train(read_recipe(str(recipe_file), ["batch=2"]), tmp_path / "run", SILENT, resume=True)


def killed(recipe_file: Path, run: Path, number: int) -> int:
    """Start a run, send a signal once it has made some steps, return its exit status."""
    process = subprocess.Popen(
        [*TRINAT, "train", recipe_file, "--out", run],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(run.glob("train/coronal/state-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    return process.wait(120)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill-9", "term"])
def test_a_killed_run_resumes_to_the_bits_of_an_undisturbed_one(
    tmp_path: Path, number: int
) -> None:
    path = tmp_path / "long.yaml"
    long = {
        **TINY,
        "views": ["coronal"],
        "schedule": {"steps": 40},
        "data": {**TINY["data"], "epoch_slices": 999},
    }
    path.write_text(yaml.safe_dump(long))
    status = killed(path, tmp_path / "broken", number)
    assert status == (-signal.SIGKILL if number == signal.SIGKILL else Exit.INTERRUPTED)
    assert not (tmp_path / "broken/model").exists()
    resumed = trinat("train", path, "--out", tmp_path / "broken", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    straight = trinat("train", path, "--out", tmp_path / "straight", "--quiet")
    assert straight.returncode == 0, straight.stderr
    names = ("broken", "straight")
    first, second = (weights(tmp_path / name, "train/coronal") for name in names)
    assert first == second
    models = [(tmp_path / name / "model/coronal.safetensors").read_bytes() for name in names]
    assert models[0] == models[1]
    with (tmp_path / "broken/train/coronal/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 40


def test_two_processes_train_as_one(recipe_file: Path, tmp_path: Path) -> None:
    done = trinat("train", recipe_file, "--out", tmp_path / "run", "--nproc", "2")
    assert done.returncode == 0, done.stderr
    assert set(load_model(tmp_path / "run/model").networks) == {View.CORONAL, View.SAGITTAL}


def test_unknown_recipe_and_view_end_with_status_2(recipe_file: Path) -> None:
    for words in (("nothing",), (recipe_file, "--view", "oblique")):
        done = trinat("train", *words)
        assert done.returncode == Exit.USAGE
        assert len(done.stderr.strip().splitlines()) == 1


def test_runs_are_compared_by_settings_and_curves(recipe_file: Path, tmp_path: Path) -> None:
    for name, settings in (("a", []), ("b", ["batch=2"])):
        train(read_recipe(str(recipe_file), settings), tmp_path / name, SILENT)
    changed, summaries = compare([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    assert [line for line in changed if "batch: 4 -> 2" in line]
    assert [job.steps for jobs in summaries.values() for job in jobs] == [8, 8, 8, 8]
    page = (tmp_path / "page.html").read_text()
    assert "data:image/png;base64," in page
    assert "batch: 4 -&gt; 2" in page
