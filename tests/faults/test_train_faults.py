"""Reading processes that die or are told to stop in the middle of a training: said, and gone on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.small_store import all_train, damage, small_store
from helpers.tiny_training import NETWORK

from pipelines.common.exits import Exit, exit_code
from pipelines.train.job import Watcher
from pipelines.train.run import read_recipe, train
from segmentation.errors import DatasetError, IntegrityError, InterruptedRunError
from segmentation.space.views import View
from segmentation.training.config import Recipe
from segmentation.training.state import read_latest

pytestmark = pytest.mark.usefixtures("one_thread")
JOB = "train/coronal-axial"
Weights = tuple[int, dict[str, list[float]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("train") / "store"
    small_store(store, {"a": (16, 18, 20), "b": (17, 15, 13)})
    all_train(store)
    return store


@pytest.fixture(scope="module")
def straight(store: Path) -> Weights:
    """What an undisturbed run ends with."""
    train(recipe_of(store, 0), store.parent / "straight", at_step(0))
    return weights(store.parent / "straight")


def recipe_of(store: Path, workers: int) -> Recipe:
    content: dict[str, Any] = {
        "name": "tiny",
        "scheme": "tissue4",
        "network": NETWORK | {"channels": 3},
        "views": ["coronal", "axial"],
        "together": True,
        "data": {
            "store": {
                "path": str(store),
                "split": str(store / "split.json"),
                "workers": workers,
            },
            "rows": 16,
            "columns": 16,
            "epoch_slices": 999,
        },
        "schedule": {"steps": 12},
        "precision": "float32",
        "batch": 3,
    }
    path = store.parent / f"recipe-{workers}.yaml"
    path.write_text(yaml.safe_dump(content))
    return read_recipe(str(path))


def at_step(number: int, act: Callable[[], None] = lambda: None) -> Watcher:
    return Watcher(
        lambda line: None, lambda job, report, p: act() if report.step == number else None
    )


def weights(run: Path) -> Weights:
    """The last state's step, and its network."""
    state, _ = read_latest(run / JOB)
    assert state is not None
    return state.counters.step, {k: v.flatten().tolist() for k, v in state.network.items()}


def gone_on(store: Path, run: Path) -> Weights:
    """Resumed in the middle of an epoch, with another number of workers."""
    train(recipe_of(store, 0), run, at_step(0), resume=True)
    return weights(run)


def test_a_killed_reader_is_named_and_the_run_goes_on_later(
    store: Path, tmp_path: Path, straight: Weights
) -> None:
    run, killed = tmp_path / "run", []

    def kill_one() -> None:
        reader = active_children()[0]
        killed.append(reader.pid)
        reader.kill()

    with pytest.raises(DatasetError) as caught:
        train(recipe_of(store, 2), run, at_step(3, kill_one))
    message = str(caught.value)
    assert f"the process {killed[0]}, which read ahead, was killed by signal 9" in message
    assert "slices a:" in message or "slices b:" in message
    assert exit_code(caught.value) == Exit.ALL_FAILED
    assert active_children() == []
    # What was done when it was missed.
    assert weights(run)[0] >= 3
    assert gone_on(store, run) == straight


def test_a_damaged_slice_ends_the_run_where_it_is_met(
    store: Path, tmp_path: Path, straight: Weights
) -> None:
    copied, run = tmp_path / "store", tmp_path / "run"
    shutil.copytree(store, copied)
    damaged = copied / "subjects/b.h5"
    before = damaged.stat()
    for number in (5, 6, 7):
        damage(damaged, View.AXIAL, "labels", number)
    # As a failing disk does it: size and time say nothing.
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(IntegrityError, match=r"b\.h5: damaged: axial labels of slices") as caught:
        train(recipe_of(copied, 1), run, at_step(0))
    assert exit_code(caught.value) == Exit.INTEGRITY
    assert active_children() == []
    shutil.copy(store / "subjects/b.h5", copied / "subjects")
    assert gone_on(copied, run) == straight


def test_a_signal_to_all_stops_the_run_and_not_its_readers(
    store: Path, tmp_path: Path, straight: Weights
) -> None:
    run = tmp_path / "run"

    def tell_all() -> None:
        for process in active_children():
            os.kill(process.pid or 0, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="step 5") as caught:
        train(recipe_of(store, 2), run, at_step(5, tell_all))
    assert exit_code(caught.value) == Exit.INTERRUPTED
    assert active_children() == []
    assert gone_on(store, run) == straight
