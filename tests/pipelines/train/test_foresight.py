"""Before a run on a processor: steps that do not fit are refused, and long times are announced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refusal
from helpers.small_store import all_train, small_store

from trinat.pipelines.train import foresight
from trinat.pipelines.train.job import Job
from trinat.pipelines.train.run import plan_jobs, read_recipe
from trinat.segmentation.errors import DeviceError
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")
GIB = 2**30


def small(**stage: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "small",
            "network": {"filters": 16, "kernel": 3, "depth": 2},
            "data": {"rows": 64, "columns": 64, "epoch_slices": 100},
            "schedule": {"steps": 10},
            "precision": "float32",
            "batch": 64,
            **stage,
        }
    )


def test_a_step_that_does_not_fit_is_refused_with_what_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = small()
    jobs = plan_jobs(recipe, recipe.views)
    monkeypatch.setattr(foresight, "free_memory", lambda: 4 * GIB)
    foresight.refuse_too_large(recipe, jobs, 1)
    monkeypatch.setattr(foresight, "free_memory", lambda: GIB // 5)
    with pytest.raises(DeviceError) as caught:
        foresight.refuse_too_large(recipe, jobs, 1)
    said = str(caught.value)
    assert "a step of 64 slices of 64x64 needs about" in said
    assert "0.2 GiB are free" in said
    assert "accumulate to" in said
    assert "\n" not in said
    monkeypatch.setattr(foresight, "free_memory", lambda: 0)
    with refusal(DeviceError, "train"):
        foresight.refuse_too_large(recipe, jobs, 1)


def test_slices_of_a_job_by_steps_and_by_epochs() -> None:
    by_steps = small(accumulate=2)
    job = plan_jobs(by_steps, by_steps.views)[0]
    assert foresight.slices_of(job) == 10 * 64 * 2
    by_epochs = small(schedule={"epochs": 3}, together=True)
    (job,) = plan_jobs(by_epochs, by_epochs.views)
    assert foresight.slices_of(job) == 3 * 100 * 3


@pytest.mark.parametrize(
    ("seconds", "processes", "expected"),
    [
        # 4700 steps of 32 slices for each of three views, on 2 processes.
        (3.6, 2, ["quicknat will take about 226 h on this processor; use a GPU"]),
        (0.036, 1, ["quicknat will take about 5 h on this processor"]),
        (0.0036, 1, []),
    ],
)
def test_hours_are_said_and_from_two_days_on_what_to_use_instead(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    processes: int,
    expected: list[str],
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(foresight, "slice_seconds", lambda network, size: seconds)
    recipe = read_recipe("quicknat")
    foresight.log_duration(recipe, plan_jobs(recipe, recipe.views), processes)
    assert [line.split(", or")[0] for line in logged.messages] == expected


def test_a_slice_takes_a_third_where_the_last_layer_alone_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foresight, "slice_seconds", lambda network, size: 3.0)
    whole = small(schedule={"steps": 10})
    parts = {"encoders": 0, "bottleneck": 0, "decoders": 0}
    last = small(schedule={"steps": 10}, optimiser={"parts": parts})
    seconds = [
        foresight.expected_seconds(recipe, plan_jobs(recipe, recipe.views), 1)
        for recipe in (whole, last)
    ]
    assert seconds[0] == pytest.approx(3 * seconds[1])


def test_the_time_of_a_slice_is_measured() -> None:
    assert 0 < foresight.slice_seconds(small().network, (64, 64)) < 60


def test_epochs_that_are_passes_have_the_slices_of_the_store(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", {"a": (24, 24, 24), "b": (24, 24, 24)})
    data = {"store": {"path": str(store), "split": str(all_train(store))}}
    stage = {"data": {**data, "epoch_slices": None}, "schedule": {"epochs": 3}}
    recipe = Recipe.model_validate({"name": "passes", "scheme": "tissue4", **stage})
    # 20 of 24 slices have a label, and one of the other 4 is kept.
    assert foresight.slices_of(Job(recipe.stages[0], (View.AXIAL,))) == 3 * 2 * 21


def test_validations_count_as_the_third_of_a_training_slice(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", dict.fromkeys("ab", (24, 24, 24)))
    split = json.loads(all_train(store).read_text())
    split |= {"train": ["a"], "validation": ["b"]}
    (store / "split.json").write_text(json.dumps(split))
    data = {
        "store": {"path": str(store), "split": str(store / "split.json")},
        "rows": 48,
        "columns": 24,
        "epoch_slices": 100,
    }
    stage = {"data": data, "schedule": {"steps": 10}, "batch": 25}
    recipe = Recipe.model_validate(
        {"name": "a", "scheme": "tissue4", "validation": {"every_epochs": 1}, **stage}
    )
    # 250 slices are two and a half epochs, so three validations: each of 24 slices half as
    # large as the training slices, of which a scored one costs a third.
    job = Job(recipe.stages[0], (View.AXIAL,))
    assert foresight.validation_slices(job, 0) == pytest.approx(3 * 24 / 2 / 3)
    unvalidated = job.stage.model_copy(update={"validation": None})
    assert foresight.validation_slices(Job(unvalidated, (View.AXIAL,)), 0) == 0
