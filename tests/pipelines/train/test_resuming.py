"""trinat train stopped, killed, damaged or out of time, and continued with --resume."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from helpers.refusals import refusal
from helpers.small_store import all_train, small_store
from helpers.tiny_training import (
    SILENT,
    tiny_recipe,
    weights,
    write_long_recipe,
    write_recipe,
)

from trinat.pipelines.common.exits import Exit, exit_code
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.provenance import read_provenance
from trinat.pipelines.train.result import Job
from trinat.pipelines.train.run import read_recipe, train
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import Store, subject_path
from trinat.segmentation.errors import (
    IntegrityError,
    InterruptedRunError,
    TrainingError,
)
from trinat.segmentation.models.checkpoint import load_model, read_info
from trinat.segmentation.space.views import View
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.state import read_latest
from trinat.segmentation.training.validation import ValidationScan, synthetic_scans

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")
TRINAT = (sys.executable, "-c", "from trinat.pipelines.cli import main; main()")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_a_damaged_best_state_is_said_and_the_last_one_taken(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    validated = "validation={every_epochs: 1, participants: 1}"
    recipe = tiny_recipe(tmp_path, "views=[coronal]", validated)
    run = tmp_path / "run"
    train(recipe, run, SILENT)
    best = run / "train/coronal/best.state"
    best.write_bytes(best.read_bytes()[:-1])
    model = load_model(train(recipe, run, SILENT, resume=True))
    assert any(
        "best.state" in line and "the last state is used" in line
        for line in logged.messages
    )
    state, _ = read_latest(best.parent)
    assert state is not None
    name = "encoders.0.layers.0.convolution.weight"
    weights = model.networks[View.CORONAL].state_dict()
    assert torch.equal(weights[name], state.average[name])


def test_resuming_with_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run", SILENT)
    with pytest.raises(TrainingError, match=r"stages|batch"):
        train(tiny_recipe(tmp_path, "batch=2"), tmp_path / "run", SILENT, resume=True)


def test_resuming_with_an_edited_label_scheme_is_refused(tmp_path: Path) -> None:
    table, run = tmp_path / "mine.tsv", tmp_path / "run"
    shipped = Path(__file__).parents[3] / "configs/labels/tissue4.tsv"
    table.write_text(shipped.read_text())
    recipe = tiny_recipe(
        tmp_path,
        scheme=str(table),
        views=["coronal", "axial"],
        schedule={"steps": 1},
    )
    train(recipe, run, SILENT, views=[View.CORONAL])
    table.write_text(shipped.read_text().replace("Grey-Matter", "Grey"))
    with refusal(TrainingError, run, remedy=str(table)):
        train(recipe, run, SILENT, views=[View.AXIAL], resume=True)
    table.write_text(shipped.read_text())
    train(recipe, run, SILENT, views=[View.AXIAL], resume=True)


def test_the_copy_of_a_stage_is_no_part_of_the_run(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, views=["coronal"], schedule={"steps": 1})
    run = tmp_path / "run"
    train(recipe, run, SILENT)
    shutil.copytree(run / "train", run / "train-old")
    model = train(recipe, run, SILENT, resume=True)
    # One batch of four.
    assert read_info(model).training.slices_seen == 4
    assert list(read_provenance(model)) == ["train/coronal"]


def assert_same(first: Path, second: Path) -> None:
    assert weights(first, "train/coronal") == weights(second, "train/coronal")
    models = [
        (run / "model/coronal.safetensors").read_bytes() for run in (first, second)
    ]
    assert models[0] == models[1]
    with (first / "train/coronal/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.important
def test_kill_9_and_resume_give_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    path, broken, straight = (
        write_long_recipe(tmp_path),
        tmp_path / "broken",
        tmp_path / "straight",
    )
    process = subprocess.Popen(
        [*TRINAT, "train", path, "--out", broken],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while (
        not list(broken.glob("train/coronal/state-*")) and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    assert not (broken / "model").exists()
    # As after a kill in the middle of writing.
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
    recipe = read_recipe(str(write_long_recipe(tmp_path, 12)))
    broken = tmp_path / "broken"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(InterruptedRunError, match="step 3") as caught:
        train(recipe, broken, Watcher(step=interrupt))
    assert exit_code(caught.value) == Exit.INTERRUPTED == 75
    seen: list[int] = []
    note = Watcher(step=lambda job, report, p: seen.append(report.step))
    train(recipe, broken, note, resume=True)
    assert seen == list(range(4, 13))
    train(recipe, tmp_path / "straight", SILENT)
    assert_same(broken, tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [pytest.param("during", marks=pytest.mark.important), "in the last step before"],
)
def test_a_signal_does_not_wait_for_validation_which_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    settings = [
        "views=[coronal]",
        "validation={every_epochs: 1, patience: 9, participants: 1}",
    ]
    recipe = tiny_recipe(tmp_path, *settings)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(recipe, straight, SILENT)

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    def interrupting(*arguments: Any) -> Iterator[ValidationScan]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield from synthetic_scans(*arguments)

    watcher = Watcher(interrupt)
    if when == "during":
        watcher = SILENT
        monkeypatch.setattr("trinat.pipelines.train.data.synthetic_scans", interrupting)
    with pytest.raises(
        InterruptedRunError, match="step 4: it got a signal; its state is saved"
    ):
        train(recipe, broken, watcher)
    monkeypatch.undo()
    job = "train/coronal"
    assert not (broken / job / "validations.csv").exists()
    state, _ = read_latest(broken / job)
    assert state is not None
    assert (state.counters.step, state.counters.validation_due) == (4, True)
    train(recipe, broken, SILENT, resume=True)
    assert_same(broken, straight)
    scores = [
        (run / job / "validations.csv").read_bytes() for run in (broken, straight)
    ]
    assert scores[0] == scores[1]
    ends = [
        json.loads((run / job / "done.json").read_text()) for run in (broken, straight)
    ]
    assert ends[0] | {"seconds": 0} == ends[1] | {"seconds": 0}
    assert ends[0]["validation_due"] is False


@pytest.mark.slow
@pytest.mark.important
def test_a_signal_in_the_last_validation_leaves_that_alone_to_be_made(
    tmp_path: Path,
) -> None:
    recipe = tiny_recipe(tmp_path, "views=[coronal]", "validation={participants: 1}")
    run = tmp_path / "run"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="step 8"):
        train(recipe, run, Watcher(interrupt))
    assert not (run / "train/coronal/done.json").exists()
    seen: list[int] = []
    note = Watcher(step=lambda job, report, p: seen.append(report.step))
    train(recipe, run, note, resume=True)
    assert seen == []
    with (run / "train/coronal/validations.csv").open() as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"4", "8"}


def test_a_torn_state_is_said_and_the_one_before_it_taken(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    recipe = read_recipe(str(write_long_recipe(tmp_path, 12)))
    run = tmp_path / "run"

    def interrupt(job: Job, report: StepReport, progress: float) -> None:
        if report.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        train(recipe, run, Watcher(step=interrupt))
    newest = run / "train/coronal/state-000000005.state"
    newest.write_bytes(newest.read_bytes()[:-1])
    train(recipe, run, SILENT, resume=True)
    assert any("torn" in line and newest.name in line for line in logged.messages)
    assert any("continues at step 4" in line for line in logged.messages)
    train(recipe, tmp_path / "straight", SILENT)
    assert_same(run, tmp_path / "straight")


def test_where_no_state_is_sound_a_run_begins_anew_and_says_so(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    recipe, run = tiny_recipe(tmp_path, "views=[coronal]"), tmp_path / "run"
    train(recipe, run, SILENT)
    job = run / "train/coronal"
    (job / "done.json").unlink()
    sound = weights(run, "train/coronal")
    for state in job.glob("state-*"):
        state.write_bytes(b"")
    train(recipe, run, SILENT, resume=True)
    assert any(
        "state-000000008" in line and "starts again" in line for line in logged.messages
    )
    assert weights(run, "train/coronal") == sound


def test_a_run_that_was_killed_out_of_patience_stays_so(tmp_path: Path) -> None:
    # Nothing changes, norms included, so the second validation is no better than the first.
    frozen = "optimiser={rate: 1e-12, parts: {encoders: 0, bottleneck: 0, decoders: 0}}"
    settings = ["views=[coronal]", frozen, "ema=0", "schedule.steps=99"]
    patience = "validation={every_epochs: 1, patience: 1, participants: 1}"
    recipe, run = tiny_recipe(tmp_path, *settings, patience), tmp_path / "run"
    train(recipe, run, SILENT)
    done = run / "train/coronal/done.json"
    assert json.loads(done.read_text())["step"] == 8
    done.unlink()
    seen: list[int] = []
    note = Watcher(step=lambda job, report, p: seen.append(report.step))
    train(recipe, run, note, resume=True)
    assert seen == []
    assert done.is_file()


@pytest.mark.slow
@pytest.mark.parametrize("validation", [None, {"participants": 1}])
def test_a_run_within_a_time_ends_in_time_with_a_model(
    tmp_path: Path, validation: dict[str, int] | None
) -> None:
    settings = [f"validation={json.dumps(validation)}", "data.epoch_slices=400"]
    recipe = tiny_recipe(tmp_path, *settings)
    first: list[float] = []
    watcher = Watcher(lambda *_: first.append(time.monotonic()))
    model = load_model(train(recipe, tmp_path / "run", watcher, seconds=40))
    assert 36 <= time.monotonic() - first[0] <= 44
    assert set(model.networks) == {View.CORONAL, View.SAGITTAL}
    for view in ("coronal", "sagittal"):
        done = json.loads((tmp_path / f"run/train/{view}/done.json").read_text())
        assert done["share"] == 1


@pytest.mark.slow
@pytest.mark.important
def test_a_run_that_is_stopped_does_the_rest_in_the_time_of_the_next_call(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    recipe, run = tiny_recipe(tmp_path, "views=[coronal]"), tmp_path / "run"
    job = run / "train/coronal"

    def stop_at_half(job: Job, report: StepReport, progress: float) -> None:
        if progress > 0.5:
            signal.raise_signal(signal.SIGTERM)

    halted = Watcher(stop_at_half)
    with pytest.raises(InterruptedRunError, match="its state is saved"):
        train(recipe, run, halted, seconds=6)
    before, _ = read_latest(job)
    assert before is not None
    assert before.counters.share is not None
    assert 0.5 < before.counters.share < 1
    with pytest.raises(TrainingError, match="--resume --seconds N"):
        train(recipe, run, SILENT, resume=True)
    shares: list[float] = []
    watcher = Watcher(lambda job, report, progress: shares.append(progress))
    train(recipe, run, watcher, resume=True, seconds=4)
    assert (
        logged.messages[-1] == f"{run}/model: coronal of tiny, ended by its 4 seconds"
    )
    # The share of progress neither advances nor is lost in the first step of a call.
    assert shares[0] == before.counters.share
    assert shares == sorted(shares)
    assert json.loads((job / "done.json").read_text())["share"] == 1


def test_a_call_whose_time_is_over_after_the_first_step_saves_and_makes_no_progress(
    tmp_path: Path,
) -> None:
    recipe = tiny_recipe(tmp_path, "views=[coronal]")
    with pytest.raises(
        InterruptedRunError, match=r"step 1: 0\.001 seconds are too few"
    ):
        train(recipe, tmp_path / "run", SILENT, seconds=1e-3)
    state, _ = read_latest(tmp_path / "run/train/coronal")
    assert state is not None
    assert state.counters.share == 0


STORE_DATA = {
    "store": {"path": "store", "split": "store/split.json"},
    **{"rows": 32, "columns": 32, "epoch_slices": 16},
}


def test_a_store_that_was_changed_after_a_kill_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = small_store(Path("store"), {"a": (24, 24, 24), "b": (24, 24, 24)})
    all_train(store)
    settings = {"data": STORE_DATA, "scheme": "tissue4", "views": ["coronal", "axial"]}
    recipe, run = tiny_recipe(tmp_path, **settings), tmp_path / "run"

    def stop_in_the_second_view(job: Job, report: StepReport, progress: float) -> None:
        if job.name == "train/axial" and report.step == 2:
            signal.raise_signal(signal.SIGTERM)

    halted = Watcher(stop_in_the_second_view)
    with pytest.raises(InterruptedRunError):
        train(recipe, run, halted)
    path = subject_path(store, "b")
    before = path.read_bytes()
    with h5py.File(path, "r+") as file:
        file["axial/labels"][12] = 1
    with pytest.raises(
        IntegrityError, match=r"^[^\n]*b\.h5: .* changed since the store was made"
    ):
        train(recipe, run, SILENT, resume=True)
    # Another store with the same files does not pass for it either.
    (store / "store.json").write_text(
        (store / "store.json")
        .read_text()
        .replace(
            hashlib.sha256(before).hexdigest(),
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
    )
    with pytest.raises(
        TrainingError, match=r"began with other settings \(store\.sha256"
    ):
        train(recipe, run, SILENT, resume=True)


def halted_on_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int = 2
) -> Path:
    """Stop a run on the folder's store at a step."""
    monkeypatch.chdir(folder)
    store = small_store(Path("store"), {"a": (24, 24, 24), "b": (24, 24, 24)})
    all_train(store)

    def stop(job: Job, report: StepReport, progress: float) -> None:
        if report.step == step:
            signal.raise_signal(signal.SIGTERM)

    recipe = tiny_recipe(folder, data=STORE_DATA, scheme="tissue4", views=["axial"])
    with pytest.raises(InterruptedRunError):
        train(recipe, folder / "run", Watcher(stop))
    return folder / "run"


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("written", [1, 2])
def test_a_run_that_was_killed_among_its_first_files_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, resume: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    all_train(small_store(Path("store"), {"a": (24, 24, 24)}))
    recipe = tiny_recipe(tmp_path, data=STORE_DATA, scheme="tissue4", views=["axial"])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(recipe, whole, SILENT)
    killed.mkdir()
    first_files = ("config.yaml", "data.json", "scheme.json")
    for name in first_files[:written]:
        shutil.copy(whole / name, killed / name)
    train(recipe, killed, SILENT, resume=resume)
    for name in first_files:
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert weights(killed, "train/axial") == weights(whole, "train/axial")


def test_a_store_that_was_moved_is_the_same_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues to the same bits as on a store that was not moved."""
    run = halted_on_store(tmp_path, monkeypatch)
    recipe = tiny_recipe(tmp_path, data=STORE_DATA, scheme="tissue4", views=["axial"])
    train(recipe, tmp_path / "stayed", SILENT)
    Path("store").rename("moved")
    place = {"path": "moved", "split": "moved/split.json"}
    data = STORE_DATA | {"store": place}
    recipe = tiny_recipe(tmp_path, data=data, scheme="tissue4", views=["axial"])
    train(recipe, run, SILENT, resume=True)
    assert weights(run, "train/axial") == weights(tmp_path / "stayed", "train/axial")


def test_another_split_of_the_store_is_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subjects are the same, but in other parts."""
    run = halted_on_store(tmp_path, monkeypatch)
    opened = Store(Path("store"))
    other = Split(store=opened.fingerprint, seed=0, train=("a",), validation=("b",))
    other.write(Path("store/split.json"))
    recipe = tiny_recipe(tmp_path, data=STORE_DATA, scheme="tissue4", views=["axial"])
    with pytest.raises(TrainingError, match=r"store\.split_sha256.*--store"):
        train(recipe, run, SILENT, resume=True)


def test_a_store_that_was_changed_starts_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = small_store(Path("store"), {"a": (24, 24, 24)})
    all_train(store)
    with subject_path(store, "a").open("ab") as file:
        file.write(b"x")
    recipe = tiny_recipe(tmp_path, data=STORE_DATA, scheme="tissue4", views=["axial"])
    with pytest.raises(IntegrityError):
        train(recipe, tmp_path / "run", SILENT)
    assert not list((tmp_path / "run").glob("*.*"))


@pytest.mark.slow
@pytest.mark.important
def test_timings_of_a_training_name_the_parts_of_a_step(tmp_path: Path) -> None:
    recipe, out = str(write_recipe(tmp_path)), str(tmp_path / "run")
    command = (*TRINAT, "train", recipe, "--view", "coronal", "--out", out, "--timings")
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=ENVIRONMENT
    )
    table = done.stderr.split("processor s\n")[1].splitlines()
    walls = {line[:12].strip(): float(line[12:].split()[0]) for line in table}
    parts = {"start", "batches", "transfer", "forward", "backward", "optimiser", "save"}
    assert parts <= walls.keys()
    assert walls.pop("total") == pytest.approx(
        sum(walls.values()), abs=0.01 * len(walls)
    )
