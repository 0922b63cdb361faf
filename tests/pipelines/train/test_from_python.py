"""`trinat.train`: the command's training, and its result in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal
from helpers.small_store import all_train, small_store
from helpers.tiny_training import write_recipe

import trinat
from trinat.pipelines.train.from_python import as_overrides
from trinat.segmentation.errors import ConfigError, ModelError

pytestmark = pytest.mark.usefixtures("without_pages")


class EnoughError(Exception):
    """Raised by a hyperparameter search to stop a trial that is worse than others."""


def test_a_run_has_its_model_its_dice_and_its_curves(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, validation={"every_epochs": 1})
    heard: list[tuple[str, int, float]] = []
    run = trinat.train(
        recipe,
        tmp_path / "run",
        settings={"schedule.steps": 4, "optimiser.rate": 0.002},
        progress=False,
        device="cpu",
        on_score=lambda *score: heard.append(score),
    )
    assert isinstance(run, trinat.TrainedRun)
    networks = trinat.load_model(run.model).networks
    assert set(networks) == {trinat.View.CORONAL, trinat.View.SAGITTAL}
    assert run.recipe.stages[0].optimiser.rate == 0.002
    assert [(job, step) for job, step, _ in heard] == [
        ("train/coronal", 4),
        ("train/sagittal", 4),
    ]
    assert run.dice == pytest.approx(sum(dice for _, _, dice in heard) / 2)
    assert run.metrics["step"].max() == 4
    assert set(run.metrics["job"]) == {"train/coronal", "train/sagittal"}
    scores = run.scores
    of_coronal = scores[scores["view"] == "coronal"]
    # The table has four digits.
    assert of_coronal["dice"].mean() == pytest.approx(heard[0][2], abs=1e-4)


def test_what_who_listens_raises_ends_a_run_that_can_be_resumed(
    tmp_path: Path,
) -> None:
    recipe = write_recipe(tmp_path, validation={"every_epochs": 1}, views=["coronal"])

    def give_up(job: str, step: int, dice: float) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        trinat.train(
            recipe, tmp_path / "run", progress=False, device="cpu", on_score=give_up
        )
    run = trinat.train(
        recipe, tmp_path / "run", resume=True, progress=False, device="cpu"
    )
    assert run.metrics["step"].max() == 8


def test_a_store_is_trained_on_and_without_validation_there_is_no_dice(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "store", dict.fromkeys("ab", (40, 44, 48)))
    all_train(store)
    run = trinat.train(
        write_recipe(tmp_path),
        tmp_path / "run",
        store=store,
        settings={"schedule.steps": 2},
        progress=False,
        device="cpu",
    )
    assert run.recipe.scheme == "tissue4"
    assert run.dice is None
    assert run.scores.empty
    assert {"job", "structure", "dice"} <= set(run.scores.columns)


def test_a_view_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown view: 'frontal'"):
        trinat.train(write_recipe(tmp_path), tmp_path / "run", view="frontal")


def test_a_time_without_end_is_refused(tmp_path: Path) -> None:
    for seconds in (float("nan"), float("inf")):
        with refusal(ConfigError):
            trinat.train(write_recipe(tmp_path), tmp_path / "run", seconds=seconds)


def test_settings_are_a_mapping(tmp_path: Path) -> None:
    settings = ["optimiser.rate=0.1"]
    with pytest.raises(TypeError):
        trinat.train(write_recipe(tmp_path), tmp_path / "run", settings=settings)  # type: ignore[arg-type]


def test_settings_may_be_numbers_of_numpy_and_torch_and_views() -> None:
    settings = {
        "seed": np.int64(3),
        "optimiser.rate": torch.tensor(0.5),
        "data.store.augmentation.noise_std": np.array([0.25, 0.5]),
        "views": [trinat.View.CORONAL],
    }
    assert as_overrides(settings) == [
        "seed=3",
        "optimiser.rate=0.5",
        "data.store.augmentation.noise_std=[0.25, 0.5]",
        'views=["coronal"]',
    ]
    with pytest.raises(ConfigError) as caught:
        as_overrides({"optimiser.rate": 1j})
    assert caught.value.what.startswith("optimiser.rate: ")


def test_a_setting_may_be_a_path(tmp_path: Path) -> None:
    # The first character needs two of JSON's escapes.
    settings = {"start": tmp_path / "𠮷野"}
    with refusal(ModelError, tmp_path / "𠮷野"):
        trinat.train(
            write_recipe(tmp_path), tmp_path / "run", settings=settings, device="cpu"
        )
