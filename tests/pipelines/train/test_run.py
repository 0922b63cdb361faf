"""trinat train: from a recipe to a model folder, stopped and resumed, refused in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.small_store import all_train, small_store
from matplotlib.image import imread

from pipelines.common.config import with_settings
from pipelines.common.exits import Exit, exit_code
from pipelines.train.data import usual_readers
from pipelines.train.job import Job, Watcher
from pipelines.train.run import read_recipe, train
from pipelines.train.runs import compare, summarise
from segmentation.errors import (
    ConfigError,
    DatasetError,
    InterruptedRunError,
    ModelError,
    TrainingError,
    TrinatError,
)
from segmentation.models.checkpoint import load_model, save_model
from segmentation.models.model_info import Description, Training
from segmentation.models.quicknat import QuickNat, QuickNatConfig
from segmentation.space.views import View
from segmentation.synthetic.heads import phantom_heads
from segmentation.training.loop import StepReport
from segmentation.training.state import read_latest
from segmentation.training.validation import Scan, synthetic_scans

NETWORK = {
    "filters": 4,
    "kernel": 3,
    "depth": 2,
    "excitation": "none",
    "activation": "relu",
    "order": "convolution-norm-activation",
}
TINY: dict[str, Any] = {
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
FROZEN = dict.fromkeys(("encoders", "bottleneck", "decoders"), 0)
TRINAT = (sys.executable, "-c", "from pipelines.cli import main; main()")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)


@pytest.fixture(scope="module", autouse=True)
def heads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The phantom's head at 4 mm: an eighth of the voxels that "phantom" would give."""
    path = tmp_path_factory.mktemp("heads") / "heads.npz"
    phantom_heads(4).save(path)
    TINY["data"]["synthetic"]["heads"] = str(path)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


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


def test_the_published_recipe_is_what_it_says() -> None:
    """64 filters of 5x5, both excitations, an average, compiled, three views, half stored."""
    recipe = read_recipe("quicknat")
    stage = recipe.stages[0]
    assert (recipe.network.filters, recipe.network.kernel, recipe.network.depth) == (64, 5, 4)
    assert recipe.network.excitation == "both"
    assert (stage.precision, stage.compile, stage.ema > 0) == ("auto", True, True)
    assert (stage.data.rows, stage.data.columns) == (256, 256)
    assert set(recipe.views) == set(View)
    assert (recipe.stored, recipe.scheme) == ("float16", "quicknat33")


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


@pytest.mark.parametrize(
    ("device", "cores", "readers"),
    [("cpu", 16, 0), ("cuda", 16, 4), ("cuda", 3, 2), ("cuda", 1, 1)],
)
def test_a_gpu_has_slices_read_for_it(device: str, cores: int, readers: int) -> None:
    assert usual_readers(torch.device(device), cores) == readers


def test_the_number_of_readers_is_no_part_of_what_a_run_is() -> None:
    settings = [f"data.store.workers={number}" for number in (0, 3)]
    one, other = (read_recipe("quicknat-paper", [setting]) for setting in settings)
    assert one.stages[0].data.store != other.stages[0].data.store
    assert one.model_dump() == other.model_dump()


def test_who_starts_from_a_model_and_names_no_network_gets_the_models() -> None:
    recipe = read_recipe("finetune", ["start=fast"])
    assert (recipe.network.filters, recipe.network.channels) == (32, 3)
    own = read_recipe("finetune", ["start=fast", "network={filters: 8}"])
    assert own.network.filters == 8


def test_a_start_that_is_no_model_is_refused_before_any_scan_is_read() -> None:
    with pytest.raises(ModelError, match="no such model"):
        read_recipe("finetune", ["start=nothing"])


@pytest.mark.slow
@pytest.mark.parametrize("validation", [None, {"scans": 1}])
def test_a_run_within_a_time_ends_in_time_with_a_model(
    recipe_file: Path, tmp_path: Path, validation: dict[str, int] | None
) -> None:
    settings = [f"validation={json.dumps(validation)}", "data.epoch_slices=400"]
    recipe = read_recipe(str(recipe_file), settings)
    first: list[float] = []
    watcher = Watcher(lambda line: None, lambda *_: first.append(time.monotonic()))
    model = load_model(train(recipe, tmp_path / "run", watcher, seconds=40))
    assert 36 <= time.monotonic() - first[0] <= 44
    assert set(model.networks) == {View.CORONAL, View.SAGITTAL}
    for view in ("coronal", "sagittal"):
        done = json.loads((tmp_path / f"run/train/{view}/done.json").read_text())
        assert done["share"] == 1


def test_a_run_that_is_stopped_does_the_rest_in_the_time_of_the_next_call(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a page takes longer than the call.
    monkeypatch.setattr("pipelines.train.job.write_page", lambda *_: None)
    recipe, run = read_recipe(str(recipe_file), ["views=[coronal]"]), tmp_path / "run"
    job = run / "train/coronal"

    def stop_at_half(job: Job, report: StepReport, progress: float) -> None:
        if progress > 0.5:
            signal.raise_signal(signal.SIGTERM)

    halted = Watcher(lambda line: None, stop_at_half)
    with pytest.raises(InterruptedRunError, match="its state is saved"):
        train(recipe, run, halted, seconds=6)
    before, _ = read_latest(job)
    assert before is not None
    assert before.counters.share is not None
    assert 0.5 < before.counters.share < 1
    with pytest.raises(TrainingError, match="--resume --seconds N"):
        train(recipe, run, SILENT, resume=True)
    shares: list[float] = []
    watcher = Watcher(lambda line: None, lambda job, report, progress: shares.append(progress))
    train(recipe, run, watcher, resume=True, seconds=4)
    # The first step of a call is no progress, and none is lost.
    assert shares[0] == before.counters.share
    assert shares == sorted(shares)
    assert json.loads((job / "done.json").read_text())["share"] == 1


def test_a_call_whose_time_is_over_after_the_first_step_saves_and_makes_no_progress(
    recipe_file: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(str(recipe_file), ["views=[coronal]"])
    with pytest.raises(InterruptedRunError, match="stopped at step 1"):
        train(recipe, tmp_path / "run", SILENT, seconds=1e-3)
    state, _ = read_latest(tmp_path / "run/train/coronal")
    assert state is not None
    assert state.counters.share == 0


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
        page = (run / job / "run.html").read_text()
        assert "Validation at step" in page
        assert "sagittal, step" in page or "coronal, step" in page
        # Three slices, one below another; of each image, truth and prediction side by side.
        for example in (run / job / "examples").glob("coronal-*.png"):
            assert [size % 3 for size in imread(example).shape[:2]] == [0, 0]
    with (run / jobs[2] / "metrics.csv").open() as file:
        assert list(csv.DictReader(file))[-1]["step"] == "8"


def test_a_stage_starts_from_the_one_before(tmp_path: Path) -> None:
    content = {**TINY, "views": ["coronal"], "ema": 0}
    # A frozen second stage ends with the weights of the first.
    content["stages"] = [{"name": "a"}, {"name": "b", "optimiser": {"parts": FROZEN}}]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    train(read_recipe(str(tmp_path / "r.yaml")), tmp_path / "run", SILENT)
    first, second = (weights(tmp_path / "run", f"{name}/coronal") for name in "ab")
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"classifiers.coronal.weight", "classifiers.coronal.bias"}


def test_a_stage_may_train_some_views_and_the_others_start_from_theirs(tmp_path: Path) -> None:
    still = {"rate": 1e-30, "weight_decay": 0, "parts": FROZEN}
    content = {
        **TINY,
        "views": ["coronal", "axial"],
        "ema": 0,
        "network": NETWORK | {"unshuffle": 2},
    }
    content["stages"] = [
        {"name": "first", "views": ["coronal"], "schedule": {"steps": 2}},
        {"name": "others", "views": ["axial"], "schedule": {"steps": 1}, "optimiser": still},
    ]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    model = load_model(train(read_recipe(str(tmp_path / "r.yaml")), tmp_path / "run", SILENT))
    assert [job.name for job in summarise(tmp_path / "run")] == ["first/coronal", "others/axial"]
    coronal, axial = (model.networks[view].state_dict() for view in (View.CORONAL, View.AXIAL))
    counters = {name for name in coronal if name.endswith("num_batches_tracked")}
    assert [k for k in coronal.keys() - counters if not torch.equal(coronal[k], axial[k])] == []


def test_a_stage_of_a_view_that_the_recipe_does_not_name_is_refused(tmp_path: Path) -> None:
    content = {**TINY, "views": ["coronal"], "stages": [{"views": ["axial"]}]}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="a view that the recipe does not name"):
        read_recipe(str(tmp_path / "r.yaml"))


def test_a_run_starts_from_a_model_that_it_names(tmp_path: Path) -> None:
    content = {**TINY, "views": ["coronal"], "ema": 0}
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(content))
    start = train(read_recipe(str(tmp_path / "first.yaml")), tmp_path / "first", SILENT)
    # Frozen, so that the weights stay what they were; the network is not named again.
    content |= {"start": str(start), "optimiser": {"parts": FROZEN}}
    content.pop("network")
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(content))
    tuned = load_model(train(read_recipe(str(tmp_path / "tuned.yaml")), tmp_path / "tuned", SILENT))
    first, second = (
        model.networks[View.CORONAL].state_dict() for model in (load_model(start), tuned)
    )
    assert {name for name in first if not torch.equal(first[name], second[name])} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert tuned.info.training.data == "synthetic scans, from the weights of first/model"


def test_a_view_that_the_model_lacks_starts_with_the_weights_of_another(tmp_path: Path) -> None:
    torch.manual_seed(1)
    coronal = QuickNat(QuickNatConfig.model_validate(NETWORK))
    seen = Training(data="nothing")
    description = Description(name="drawn", labels="quicknat33", training=seen)
    save_model(tmp_path / "drawn", description, {View.CORONAL: coronal})
    # One step too small to be seen in any weight.
    still = {"rate": 1e-30, "weight_decay": 0, "parts": FROZEN}
    content = {**TINY, "views": ["axial"], "ema": 0, "schedule": {"steps": 1}, "optimiser": still}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content | {"start": str(tmp_path / "drawn")}))
    said: list[str] = []
    recipe = read_recipe(str(tmp_path / "r.yaml"))
    model = load_model(train(recipe, tmp_path / "run", Watcher(said.append, lambda *_: None)))
    assert any("axial starts with the model's weights for 33 of 33 classes" in x for x in said)
    given, taken = coronal.state_dict(), model.networks[View.AXIAL].state_dict()
    counters = {name for name in given if name.endswith("num_batches_tracked")}
    assert [k for k in given.keys() - counters if not torch.equal(given[k], taken[k])] == []


def test_a_model_teaches_and_is_named_one_that_cannot_is_refused(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> Path:
        file = tmp_path / f"{name}.yaml"
        content = {**TINY, "views": ["sagittal"], "schedule": {"steps": 1}, **changes}
        file.write_text(yaml.safe_dump(content))
        return train(read_recipe(str(file)), tmp_path / name, SILENT)

    wide = run("teacher", network={**NETWORK, "channels": 3})
    taught = {"distillation": {"teacher": str(wide)}}
    pupil = load_model(run("pupil", network={**NETWORK, "channels": 5}, **taught))
    assert pupil.info.training.data == "synthetic scans, taught by teacher/model"
    with pytest.raises(ConfigError, match=r"3 slices at a time.*network\.channels"):
        run("narrow", **taught)
    with pytest.raises(ConfigError, match="other labels"):
        run("other", scheme="tissue4", network={**NETWORK, "channels": 3}, **taught)


def test_a_damaged_best_state_is_said_and_the_last_one_taken(
    recipe_file: Path, tmp_path: Path
) -> None:
    validated = "validation={every_epochs: 1, scans: 1}"
    recipe = read_recipe(str(recipe_file), ["views=[coronal]", validated])
    run, said = tmp_path / "run", []
    train(recipe, run, SILENT)
    best = run / "train/coronal/best.state"
    best.write_bytes(best.read_bytes()[:-1])
    model = load_model(train(recipe, run, Watcher(said.append, lambda *_: None), resume=True))
    assert any("best.state" in line and "the last state is used" in line for line in said)
    state, _ = read_latest(best.parent)
    assert state is not None
    name = "encoders.0.layers.0.convolution.weight"
    weights = model.networks[View.CORONAL].state_dict()
    assert torch.equal(weights[name], state.average[f"trunk.{name}"])


def test_views_trained_one_after_another_make_one_model(recipe_file: Path, tmp_path: Path) -> None:
    recipe, run = read_recipe(str(recipe_file)), tmp_path / "run"
    train(recipe, run, SILENT, views=[View.CORONAL])
    assert set(load_model(run / "model").networks) == {View.CORONAL}
    train(recipe, run, SILENT, views=[View.SAGITTAL], resume=True)
    assert set(load_model(run / "model").networks) == {View.CORONAL, View.SAGITTAL}


def test_a_second_run_in_the_same_place_is_refused(recipe_file: Path, tmp_path: Path) -> None:
    recipe = read_recipe(str(recipe_file))
    train(recipe, tmp_path / "run", SILENT)
    with pytest.raises(TrainingError, match="--resume"):
        train(recipe, tmp_path / "run", SILENT)


def test_resuming_with_other_settings_is_refused_by_name(recipe_file: Path, tmp_path: Path) -> None:
    train(read_recipe(str(recipe_file)), tmp_path / "run", SILENT)
    with pytest.raises(TrainingError, match=r"stages|batch"):
        train(read_recipe(str(recipe_file), ["batch=2"]), tmp_path / "run", SILENT, resume=True)


def assert_same(first: Path, second: Path) -> None:
    assert weights(first, "train/coronal") == weights(second, "train/coronal")
    models = [(run / "model/coronal.safetensors").read_bytes() for run in (first, second)]
    assert models[0] == models[1]
    with (first / "train/coronal/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(set(steps))


def long_recipe(folder: Path) -> Path:
    path = folder / "long.yaml"
    data = {**TINY["data"], "epoch_slices": 999}
    path.write_text(
        yaml.safe_dump({**TINY, "views": ["coronal"], "schedule": {"steps": 30}, "data": data})
    )
    return path


def test_kill_9_and_resume_give_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    path, broken, straight = long_recipe(tmp_path), tmp_path / "broken", tmp_path / "straight"
    process = subprocess.Popen(
        [*TRINAT, "train", path, "--out", broken],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(broken.glob("train/coronal/state-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert not (broken / "model").exists()
    # What it leaves where it was killed in the midst of writing.
    for folder in (broken, broken / "train/coronal"):
        (folder / ".trinat-0123456789abcdef.tmp").touch()
    (broken / ".trinat-0.tmp").mkdir()
    recipe = read_recipe(str(path))
    train(recipe, broken, SILENT, resume=True)
    assert not list(broken.rglob(".trinat-*"))
    train(recipe, straight, SILENT)
    assert_same(broken, straight)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_ends_with_status_75(tmp_path: Path, number: int) -> None:
    recipe, broken = read_recipe(str(long_recipe(tmp_path))), tmp_path / "broken"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedRunError, match="step 3") as caught:
        train(recipe, broken, Watcher(say=lambda line: None, step=interrupt))
    assert exit_code(caught.value) == Exit.INTERRUPTED == 75
    seen: list[int] = []
    note = Watcher(say=lambda line: None, step=lambda job, report, p: seen.append(report.step))
    train(recipe, broken, note, resume=True)
    assert seen == list(range(4, 31))
    train(recipe, tmp_path / "straight", SILENT)
    assert_same(broken, tmp_path / "straight")


@pytest.mark.parametrize(
    "when", ["during", pytest.param("in the last step before", marks=pytest.mark.slow)]
)
def test_a_signal_does_not_wait_for_validation_which_is_made_later(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    settings = ["views=[coronal]", "validation={every_epochs: 1, patience: 9, scans: 1}"]
    recipe = read_recipe(str(recipe_file), settings)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(recipe, straight, SILENT)

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    def interrupting(*arguments: Any) -> Iterator[Scan]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield from synthetic_scans(*arguments)

    watcher = Watcher(lambda line: None, interrupt)
    if when == "during":
        watcher = SILENT
        monkeypatch.setattr("pipelines.train.data.synthetic_scans", interrupting)
    with pytest.raises(InterruptedRunError, match="step 4; its state is saved"):
        train(recipe, broken, watcher)
    monkeypatch.undo()
    job = "train/coronal"
    assert not (broken / job / "validations.csv").exists()
    state, _ = read_latest(broken / job)
    assert state is not None
    assert (state.counters.step, state.counters.validation_due) == (4, True)
    train(recipe, broken, SILENT, resume=True)
    assert_same(broken, straight)
    scores = [(run / job / "validations.csv").read_bytes() for run in (broken, straight)]
    assert scores[0] == scores[1]
    ends = [json.loads((run / job / "done.json").read_text()) for run in (broken, straight)]
    assert ends[0] | {"seconds": 0} == ends[1] | {"seconds": 0}
    assert ends[0]["validation_due"] is False


def test_a_signal_in_the_last_validation_leaves_that_alone_to_be_made(
    recipe_file: Path, tmp_path: Path
) -> None:
    recipe = read_recipe(str(recipe_file), ["views=[coronal]", "validation={scans: 1}"])
    run = tmp_path / "run"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="step 8"):
        train(recipe, run, Watcher(lambda line: None, interrupt))
    assert not (run / "train/coronal/done.json").exists()
    seen: list[int] = []
    note = Watcher(say=lambda line: None, step=lambda job, report, p: seen.append(report.step))
    train(recipe, run, note, resume=True)
    assert seen == []
    with (run / "train/coronal/validations.csv").open() as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"4", "8"}


def test_a_torn_state_is_said_and_the_one_before_it_taken(tmp_path: Path) -> None:
    recipe, run = read_recipe(str(long_recipe(tmp_path))), tmp_path / "run"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        train(recipe, run, Watcher(say=lambda line: None, step=interrupt))
    newest = run / "train/coronal/state-000000005.state"
    newest.write_bytes(newest.read_bytes()[:-1])
    said: list[str] = []
    train(recipe, run, Watcher(said.append, lambda *_: None), resume=True)
    assert any("torn" in line and newest.name in line for line in said)
    assert any("goes on at step 4" in line for line in said)
    train(recipe, tmp_path / "straight", SILENT)
    assert_same(run, tmp_path / "straight")


def test_where_no_state_is_sound_a_run_begins_anew_and_says_so(
    recipe_file: Path, tmp_path: Path
) -> None:
    recipe, run = read_recipe(str(recipe_file), ["views=[coronal]"]), tmp_path / "run"
    train(recipe, run, SILENT)
    job = run / "train/coronal"
    (job / "done.json").unlink()
    sound = weights(run, "train/coronal")
    for state in job.glob("state-*"):
        state.write_bytes(b"")
    said: list[str] = []
    train(recipe, run, Watcher(said.append, lambda *_: None), resume=True)
    assert any("state-000000008" in line and "starts again" in line for line in said)
    assert weights(run, "train/coronal") == sound


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"data": {"synthetic": {"heads": "nowhere"}}}, "nowhere: no label maps"),
        ({"start": "nowhere"}, "nowhere: no such model"),
        ({"distillation": {"teacher": "nowhere"}}, "nowhere: no such model"),
        ({"data": {"store": {"path": "nowhere", "split": "s.json"}}}, "nowhere: not a slice store"),
    ],
    ids=["heads", "start", "teacher", "store"],
)
def test_what_a_later_stage_lacks_is_said_before_the_first(
    tmp_path: Path, lack: dict[str, Any], message: str
) -> None:
    content = {**TINY, "stages": [{"name": "a"}, {"name": "b", **lack}]}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(TrinatError, match=message):
        train(read_recipe(str(tmp_path / "r.yaml")), tmp_path / "run", SILENT)
    # The place is still free for the run that lacks nothing.
    assert not (tmp_path / "run/config.yaml").exists()


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"scheme": "nowhere"}, "nowhere: no such label scheme"),
        ({"events": True}, "events need TensorBoard"),
        ({"data": {"rows": 32, "columns": 32}}, "data names no source"),
    ],
    ids=["scheme", "tensorboard", "data"],
)
def test_a_refused_start_leaves_the_place_free(
    recipe_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lack: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    refused, run = tmp_path / "refused.yaml", tmp_path / "run"
    refused.write_text(yaml.safe_dump({**TINY, "views": ["coronal"], **lack}))
    with pytest.raises(TrinatError, match=message):
        train(read_recipe(str(refused)), run, SILENT)
    train(read_recipe(str(recipe_file), ["views=[coronal]"]), run, SILENT)
    # What a run has left that began is kept, whatever refuses its next call.
    with pytest.raises(TrainingError, match="--resume"):
        train(read_recipe(str(recipe_file), ["views=[coronal]"]), run, SILENT)


def test_a_split_in_which_nobody_validates_is_refused_at_once(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", {"a": (20, 20, 20)})
    data = {"store": {"path": str(store), "split": str(all_train(store))}, "rows": 16}
    content = {**TINY, "scheme": "tissue4", "views": ["axial"], "data": data, "validation": {}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(DatasetError, match=r"split\.json: has no subject for validation"):
        train(read_recipe(str(tmp_path / "r.yaml")), tmp_path / "run", SILENT)


def test_events_are_written_for_tensorboard(recipe_file: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = ["events=true", "views=[axial]", "validation={every_epochs: 1, scans: 1}"]
    train(read_recipe(str(recipe_file), settings), tmp_path / "run", SILENT)
    events = EventAccumulator(str(tmp_path / "run/train/axial/events")).Reload()
    assert [event.step for event in events.Scalars("loss")][-1] == 8
    assert [event.step for event in events.Scalars("axial/dice")] == [4, 8]


def test_a_run_that_was_killed_out_of_patience_stays_so(recipe_file: Path, tmp_path: Path) -> None:
    # Nothing moves, norms included: the second validation is no better than the first.
    frozen = "optimiser={rate: 1e-12, parts: {encoders: 0, bottleneck: 0, decoders: 0}}"
    settings = ["views=[coronal]", frozen, "ema=0", "schedule.steps=99"]
    patience = "validation={every_epochs: 1, patience: 1, scans: 1}"
    recipe, run = read_recipe(str(recipe_file), [*settings, patience]), tmp_path / "run"
    train(recipe, run, SILENT)
    done = run / "train/coronal/done.json"
    assert json.loads(done.read_text())["step"] == 8
    done.unlink()
    seen: list[int] = []
    note = Watcher(say=lambda line: None, step=lambda job, report, p: seen.append(report.step))
    train(recipe, run, note, resume=True)
    assert seen == []
    assert done.is_file()


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no such recipe.*smoke"):
        read_recipe("nothing")


def test_runs_are_compared_by_settings_and_curves(recipe_file: Path, tmp_path: Path) -> None:
    for name, settings in (("a", []), ("b", ["batch=2"])):
        train(read_recipe(str(recipe_file), settings), tmp_path / name, SILENT)
    changed, summaries = compare([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
    assert [line for line in changed if "batch: 4 -> 2" in line]
    assert [job.steps for jobs in summaries.values() for job in jobs] == [8, 8, 8, 8]
    page = (tmp_path / "page.html").read_text()
    assert "data:image/png;base64," in page
    assert "batch: 4 -&gt; 2" in page
