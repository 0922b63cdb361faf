"""scripts/gpu/train-quicknat, rehearsed on a CPU with a tiny network, from heads to a model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
import torch
from miniatures import head_image, head_labels, write_nifti

from pipelines import budget
from pipelines.budget import RUN, Budget, finish, read_recipe, read_run, train_view
from segmentation.errors import (
    ConfigError,
    IntegrityError,
    InterruptedRunError,
    TrainingError,
)
from segmentation.heads import phantom_heads
from segmentation.inference.segmenter import Segmenter
from segmentation.models.checkpoint import load_model
from segmentation.training.config import Recipe
from segmentation.training.loop import StepReport
from segmentation.views import View
from segmentation.volume import Volume

SCRIPT = Path(__file__).parents[2] / "scripts/gpu/train-quicknat"
TINY = (
    "network.filters=4",
    "network.depth=2",
    "network.kernel=3",
    "batch=2",
    "compile=false",
    "precision=fp32",
    "data.rows=32",
    "data.columns=32",
)
# What the machine with the GPU has.
THERE = ("torch", "numpy", "pydantic", "pyyaml")
BLOCK = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {absent!r} else found(name, path, target)

PathFinder.find_spec = find_spec
"""


class Clock:
    """Time that goes on by a twentieth of a second whenever it is asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stop, self.stop_at = threading.Event(), float("inf")

    def monotonic(self) -> float:
        self.now += 0.05
        if self.now > self.stop_at:
            self.stop.set()
        return self.now


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heads") / "heads.npz"
    phantom_heads(4).save(path)
    return path


@pytest.fixture
def recipe(heads: Path) -> Recipe:
    return read_recipe("quicknat", TINY, heads)


def train(recipe: Recipe, out: Path, seconds: float = 4, stop_at: float = 1e9, **kept: object):
    clock, said = Clock(), list[str]()
    clock.stop_at = stop_at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.budget.time", clock)
        patch.setattr("pipelines.budget.PIECE_BYTES", 20_000)
        facts = train_view(
            recipe,
            View.AXIAL,
            out,
            Budget(0.0, seconds),
            torch.device("cpu"),
            say=said.append,
            stop=clock.stop,
            **kept,
        )
    return facts, said


@pytest.fixture(scope="module")
def finished(heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves, its state in pieces of 20 kB."""
    out = tmp_path_factory.mktemp("finished") / "out"
    train(read_recipe("quicknat", TINY, heads), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def with_what_they_need(*names: str) -> set[str]:
    """Distributions and all that they need, as far as that is installed here."""
    known, todo = set(), list(names)
    while todo:
        name = normal(todo.pop())
        if name in known:
            continue
        known.add(name)
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        todo += [re.split(r"[^\w.-]", need)[0] for need in needs if "extra ==" not in need]
    return known


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def modules_that_are_not_there() -> list[str]:
    """Top names of all that is installed here and that `THERE` does not bring along."""
    known = with_what_they_need(*THERE)
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not any(normal(owner) in known for owner in owners)
        and module not in {"segmentation", "pipelines", "configs", "_virtualenv"}
    )


def run_script(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The script in a process where nothing but torch, NumPy, pydantic and PyYAML is there."""
    absent = modules_that_are_not_there()
    assert {
        "scipy",
        "nibabel",
        "monai",
        "torchio",
        "SimpleITK",
        "matplotlib",
        "safetensors",
    } <= set(absent)
    (tmp_path / "block").mkdir()
    (tmp_path / "block/sitecustomize.py").write_text(BLOCK.format(absent=set(absent)))
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "block")},
    )


def words(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def check_run(out: Path) -> None:
    """All that a run leaves is small, named in run.json, and makes a model."""
    facts = read_run(out)
    assert facts["counters"]["step"] > 0
    assert facts["counters"]["seconds"] == 1
    files = {path.name: path.stat().st_size for path in out.iterdir()}
    assert set(files) == {RUN, "metrics.csv", facts["weights"], *facts["state"]}
    assert max(files.values()) < 16 << 20


def test_a_view_is_trained_with_torch_numpy_and_pydantic_alone(heads: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Beside other work its imports alone take seconds.
    done = run_script(tmp_path, "axial", heads, out, "--seconds", 15, *words(TINY))
    assert done.returncode == 0, done.stderr
    check_run(out)
    assert finish([out], tmp_path / "model", licence="MIT") == [View.AXIAL]
    model = load_model(tmp_path / "model")
    assert model.info.training.licence == "MIT"
    assert model.info.precision == "float16"
    assert model.info.training.slices_seen == 2 * read_run(out)["counters"]["step"]
    assert model.info.not_predicted == ("CSF",)


def test_what_pydantic_and_yaml_need_is_carried_along() -> None:
    """typing_extensions, too: pydantic may want newer ones than torch was installed with."""
    (names,) = re.findall(r"needed='(.*)'", (SCRIPT.parent / "wheels").read_text())
    carried = {normal(name) for name in names.split("|")}
    assert carried >= with_what_they_need("pydantic", "pyyaml")
    pins = (SCRIPT.parents[2] / "constraints.txt").read_text()
    assert carried <= {normal(name) for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE)}


@pytest.mark.slow
def test_three_views_become_a_model_that_segments(heads: Path, tmp_path: Path) -> None:
    for view, seconds in ((View.CORONAL, 60), (View.AXIAL, 20), (View.SAGITTAL, 20)):
        folder = tmp_path / view.value
        folder.mkdir()
        began = time.monotonic()
        arguments = (view.value, heads, folder / "out", "--seconds", seconds, *words(TINY))
        done = run_script(folder, *arguments)
        assert done.returncode == 0, done.stderr
        check_run(folder / "out")
        if view is View.CORONAL:
            # Python's own start and end are not the script's, and long on a busy machine.
            assert time.monotonic() - began < seconds + 10
            assert read_run(folder / "out")["wall_seconds"] < seconds
            assert 0 <= read_run(folder / "out")["scores"]["mean_dice"] <= 1
    finish([tmp_path / view.value / "out" for view in View], tmp_path / "model")
    scan = write_nifti(tmp_path / "scan.nii.gz", head_image(head_labels()))
    segmented = Segmenter.load(tmp_path / "model").segment(Volume.read(scan))
    assert segmented.labels.shape == head_labels().shape


def test_the_budget_is_kept_and_the_schedule_done(finished: Path) -> None:
    facts = read_run(finished)
    assert 3 < facts["wall_seconds"] <= 4
    assert facts["counters"]["seconds"] == 1
    assert facts["scores"]["slices"] > 0
    rows = (finished / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("step,epoch,loss")
    assert len(rows) > 1


def test_a_state_is_cut_to_pieces(finished: Path) -> None:
    sizes = [(finished / name).stat().st_size for name in read_run(finished)["state"]]
    assert len(sizes) > 2
    assert set(sizes[:-1]) == {20_000}


def test_a_stopped_run_does_what_is_left_of_its_schedule(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError, match="its state is saved"):
        train(recipe, tmp_path / "out", 8, stop_at=2)
    stopped = read_run(tmp_path / "out")["counters"]
    assert stopped["step"] > 1
    assert 0.1 < stopped["seconds"] < 0.5
    facts, said = train(recipe, tmp_path / "out", resume=True)
    assert any(f"goes on at step {stopped['step']}" in line for line in said)
    assert facts["counters"]["step"] > stopped["step"]
    assert facts["counters"]["seconds"] == 1


def test_a_first_step_that_takes_the_whole_budget_is_no_finished_run(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(run: budget._Run, first: int, real=budget._Run._step) -> StepReport:
        report = real(run, first)
        budget.time.now += 10 * (report.step == 1)
        return report

    monkeypatch.setattr(budget._Run, "_step", compiling)
    with pytest.raises(InterruptedRunError, match="stopped at step 1"):
        train(recipe, tmp_path / "out")
    assert read_run(tmp_path / "out")["counters"]["seconds"] == 0
    facts, _ = train(recipe, tmp_path / "out", resume=True)
    assert facts["counters"]["step"] > 2
    assert facts["counters"]["seconds"] == 1


def test_a_finished_run_resumed_trains_no_more(recipe: Recipe, run: Path) -> None:
    first = read_run(run)
    again, _ = train(recipe, run, resume=True)
    assert again["counters"] == first["counters"]
    assert again["sha256"][again["weights"]] == first["sha256"][first["weights"]]


def test_a_run_is_not_written_over(recipe: Recipe, run: Path) -> None:
    with pytest.raises(TrainingError, match="a run is there already"):
        train(recipe, run)


def test_a_damaged_piece_is_named(recipe: Recipe, run: Path) -> None:
    piece = run / read_run(run)["state"][1]
    content = bytearray(piece.read_bytes())
    content[100] ^= 1
    piece.write_bytes(bytes(content))
    with pytest.raises(IntegrityError, match="checksum") as caught:
        train(recipe, run, resume=True)
    assert piece.name in str(caught.value)


def test_other_settings_are_refused(heads: Path, run: Path) -> None:
    other = read_recipe("quicknat", (*TINY, "optimiser.rate=0.1"), heads)
    with pytest.raises(TrainingError, match=r"stage\.optimiser\.rate"):
        train(other, run, resume=True)
    # What only changes the speed is free.
    train(read_recipe("quicknat", (*TINY, "checkpoint_every_steps=7"), heads), run, resume=True)


@pytest.mark.parametrize("by_the_trainer", [False, True])
def test_a_compiler_that_fails_is_done_without(
    by_the_trainer: bool, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.exc import TorchDynamoException  # seconds

    def fail(*_: object, **__: object) -> None:
        raise (TorchDynamoException if by_the_trainer else RuntimeError)("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda network: fail)
    compiled = read_recipe("quicknat", (*TINY, "compile=true"), heads)
    facts, said = train(compiled, tmp_path / "compiled")
    (told,) = [line for line in said if "without torch.compile: " in line]
    assert "no C++ compiler" in told
    assert not facts["compiled"]
    assert facts["counters"]["bad"] == 0


def test_a_model_made_anew_keeps_the_card_that_was_written(finished: Path, tmp_path: Path) -> None:
    card = tmp_path / "model" / "MODEL_CARD.md"
    finish([finished], card.parent)
    assert not card.exists()
    card.write_text("# quicknat\n")
    finish([finished], card.parent)
    assert card.read_text() == "# quicknat\n"


def test_runs_of_the_same_view_or_of_two_networks_make_no_model(
    finished: Path, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="same view"):
        finish([finished, run], tmp_path / "model")
    facts = read_run(run)
    facts["view"], facts["recipe"]["network"]["filters"] = "coronal", 6
    (run / RUN).write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="different networks"):
        finish([finished, run], tmp_path / "model")


def test_a_recipe_of_two_stages_has_no_budget(heads: Path) -> None:
    with pytest.raises(ConfigError, match="one stage"):
        read_recipe("fast", (), heads)


def test_a_recipe_that_begins_elsewhere_has_no_budget() -> None:
    for setting in ("start=fast", "distillation={teacher: fast}"):
        with pytest.raises(ConfigError, match="without `start` or `distillation`"):
            read_recipe("quicknat", (setting,), Path("heads.npz"))


def test_the_published_recipe_is_what_it_says(heads: Path) -> None:
    """64 filters of 5x5, both excitations, bf16, an average, compiled, three views, half stored."""
    recipe = read_recipe("quicknat", (), heads)
    stage = recipe.stages[0]
    assert (recipe.network.filters, recipe.network.kernel, recipe.network.depth) == (64, 5, 4)
    assert recipe.network.excitation == "both"
    assert (stage.precision, stage.compile, stage.ema > 0) == ("bf16", True, True)
    assert (stage.data.rows, stage.data.columns) == (256, 256)
    assert set(recipe.views) == set(View)
    assert (recipe.stored, recipe.scheme) == ("float16", "quicknat33")
