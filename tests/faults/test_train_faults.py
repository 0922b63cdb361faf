"""Reader processes that die or are terminated during training: it is reported, and resumed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.small_store import all_train, damage, small_store
from helpers.tiny_training import NETWORK

from trinat.pipelines.common.exits import Exit, exit_code
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.run import read_recipe, train
from trinat.segmentation.errors import IntegrityError, InterruptedRunError
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.state import read_latest

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")
JOB = "train/axial"
Weights = tuple[int, dict[str, list[float]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("train") / "store"
    small_store(store, {"a": (16, 18, 20), "b": (17, 15, 13)})
    all_train(store)
    return store


@pytest.fixture(scope="module")
def straight(store: Path) -> Weights:
    """Provide the final weights of an undisturbed run."""
    train(recipe_of(store, 0), store.parent / "straight", at_step(0))
    return weights(store.parent / "straight")


def recipe_of(store: Path, workers: int) -> Recipe:
    content: dict[str, Any] = {
        "name": "tiny",
        "scheme": "tissue4",
        "network": NETWORK | {"channels": 3},
        "views": ["axial"],
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
        lambda job, report, p: act() if report.step == number else None,
    )


def weights(run: Path) -> Weights:
    """Return the step and the network of the last state."""
    state, _ = read_latest(run / JOB)
    assert state is not None
    return state.counters.step, {
        k: v.flatten().tolist() for k, v in state.network.items()
    }


def gone_on(store: Path, run: Path) -> Weights:
    """Return the weights after resuming within an epoch, with another number of workers."""
    train(recipe_of(store, 0), run, at_step(0), resume=True)
    return weights(run)


def test_a_damaged_slice_ends_the_run_where_it_is_met(
    store: Path, tmp_path: Path, straight: Weights
) -> None:
    copied, run = tmp_path / "store", tmp_path / "run"
    shutil.copytree(store, copied)
    damaged = copied / "subjects/b.h5"
    for number in (5, 6, 7):
        damage(damaged, View.AXIAL, "labels", number)
    with pytest.raises(
        IntegrityError, match=r"b\.h5: damaged: axial labels of slices"
    ) as caught:
        train(recipe_of(copied, 1), run, at_step(0))
    assert exit_code(caught.value) == Exit.INTEGRITY
    shutil.copy(store / "subjects/b.h5", copied / "subjects")
    assert gone_on(copied, run) == straight


def test_a_signal_stops_the_run_while_slices_are_read_ahead(
    store: Path, tmp_path: Path, straight: Weights
) -> None:
    run = tmp_path / "run"
    stop = at_step(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InterruptedRunError, match="step 5") as caught:
        train(recipe_of(store, 2), run, stop)
    assert exit_code(caught.value) == Exit.INTERRUPTED
    assert gone_on(store, run) == straight
