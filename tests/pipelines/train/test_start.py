"""trinat train: stages, and the initial weights of stages and runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import refusal
from helpers.tiny_training import NETWORK, SILENT, tiny_recipe, weights

from trinat.pipelines.train.pages import summarise
from trinat.pipelines.train.provenance import read_provenance
from trinat.pipelines.train.result import _fusion_of_start
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import (
    ConfigError,
    TrinatError,
)
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion, Training
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")
FROZEN = dict.fromkeys(("encoders", "bottleneck", "decoders"), 0)


def test_a_stage_starts_from_the_one_before(tmp_path: Path) -> None:
    # A frozen second stage ends with the weights of the first.
    stages = [{"name": "a"}, {"name": "b", "optimiser": {"parts": FROZEN}}]
    recipe = tiny_recipe(tmp_path, views=["coronal"], ema=0, stages=stages)
    train(recipe, tmp_path / "run", SILENT)
    first, second = (weights(tmp_path / "run", f"{name}/coronal") for name in "ab")
    assert first.keys() == second.keys()
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"classifier.weight", "classifier.bias"}


def test_a_stage_may_train_some_views_and_the_others_start_from_theirs(
    tmp_path: Path,
) -> None:
    still = {"rate": 1e-30, "weight_decay": 0, "parts": FROZEN}
    stages = [
        {"name": "first", "views": ["coronal"], "schedule": {"steps": 2}},
        {
            "name": "others",
            "views": ["axial"],
            "schedule": {"steps": 1},
            "optimiser": still,
        },
    ]
    views, network = ["coronal", "axial"], NETWORK | {"unshuffle": 2}
    recipe = tiny_recipe(tmp_path, views=views, network=network, ema=0, stages=stages)
    model = load_model(train(recipe, tmp_path / "run", SILENT))
    assert [job.name for job in summarise(tmp_path / "run")] == [
        "first/coronal",
        "others/axial",
    ]
    coronal, axial = (
        model.networks[view].state_dict() for view in (View.CORONAL, View.AXIAL)
    )
    counters = {name for name in coronal if name.endswith("num_batches_tracked")}
    assert [
        k for k in coronal.keys() - counters if not torch.equal(coronal[k], axial[k])
    ] == []


def test_a_view_alone_whose_stage_starts_from_another_starts_from_random_weights(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    stages = [
        {"name": "first", "views": ["coronal"]},
        {"name": "others", "views": ["axial"]},
    ]
    views = ["coronal", "axial"]
    recipe = tiny_recipe(tmp_path, views=views, stages=stages, schedule={"steps": 1})
    model = load_model(train(recipe, tmp_path / "run", SILENT, views=[View.AXIAL]))
    assert list(model.networks) == [View.AXIAL]
    assert (
        "others: axial starts from random weights: no other view is here"
        in logged.messages
    )


def test_a_stage_of_a_view_that_the_recipe_does_not_name_is_refused(
    tmp_path: Path,
) -> None:
    with refusal(ConfigError, tmp_path / "tiny.yaml"):
        tiny_recipe(tmp_path, views=["coronal"], stages=[{"views": ["axial"]}])


def test_a_run_starts_from_a_model_that_it_names(tmp_path: Path) -> None:
    tiny = partial(tiny_recipe, tmp_path, views=["coronal"], ema=0)
    start = train(tiny(), tmp_path / "first", SILENT)
    # Frozen, so that the weights stay the same; the network is not named again.
    recipe = tiny(start=str(start), optimiser={"parts": FROZEN}, network=None)
    tuned = load_model(train(recipe, tmp_path / "tuned", SILENT))
    first, second = (
        model.networks[View.CORONAL].state_dict()
        for model in (load_model(start), tuned)
    )
    assert {name for name in first if not torch.equal(first[name], second[name])} == {
        "classifier.weight",
        "classifier.bias",
    }
    assert (
        tuned.info.training.data == "synthetic scans, from the weights of first/model"
    )


def test_a_model_to_start_from_is_not_taken_again_by_later_stages(
    tmp_path: Path,
) -> None:
    tiny = partial(tiny_recipe, tmp_path, views=["coronal"], ema=0)
    start = train(tiny(), tmp_path / "first", SILENT)
    # The first stage changes the encoders, which the second leaves as they are.
    stages = [{"name": "a"}, {"name": "b", "optimiser": {"parts": FROZEN}}]
    recipe = tiny(start=str(start), stages=stages)
    model = train(recipe, tmp_path / "run", SILENT)
    first, second = (weights(tmp_path / "run", f"{name}/coronal") for name in "ab")
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"classifier.weight", "classifier.bias"}
    calls = read_provenance(model)
    assert calls["a/coronal"][0]["start"] is not None
    assert calls["b/coronal"][0]["start"] is None


def test_a_view_that_the_model_lacks_starts_with_the_weights_of_another(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(1)
    coronal = QuickNat(QuickNatConfig.model_validate(NETWORK))
    seen = Training(data="nothing")
    description = Description(name="random", labels="quicknat33", training=seen)
    save_model(tmp_path / "random", description, {View.CORONAL: coronal})
    # One step, too small to change any weight.
    still = {"rate": 1e-30, "weight_decay": 0, "parts": FROZEN}
    recipe = tiny_recipe(
        tmp_path,
        views=["axial"],
        ema=0,
        schedule={"steps": 1},
        optimiser=still,
        start=str(tmp_path / "random"),
    )
    model = load_model(train(recipe, tmp_path / "run", SILENT))
    assert any(
        "axial starts with the model's weights for 33 of 33 classes" in line
        for line in logged.messages
    )
    given, taken = coronal.state_dict(), model.networks[View.AXIAL].state_dict()
    counters = {name for name in given if name.endswith("num_batches_tracked")}
    assert [
        k for k in given.keys() - counters if not torch.equal(given[k], taken[k])
    ] == []


def save_start(folder: Path, *structures: str, licence: str = "") -> Fusion:
    """Save a coronal network with random weights and fitted view weights; return its fusion."""
    torch.manual_seed(1)
    coronal = QuickNat(QuickNatConfig.model_validate(NETWORK))
    fitted = Fusion(
        mean="geometric",
        weights={View.CORONAL: 0.7, View.SAGITTAL: 0.3},
        csf_odds=0.4,
        class_odds=dict.fromkeys(structures, 2.0),
    )
    # Its CSF is all fluid inside the skull, which the run does not teach, so the odds do not
    # apply.
    start = Description(
        name="start",
        labels="quicknat33",
        csf="intracranial",
        fusion=fitted,
        training=Training(licence=licence),
    )
    save_model(folder, start, {View.CORONAL: coronal})
    return fitted


def one_step_from_start(folder: Path) -> Recipe:
    """Return a recipe that starts from the model which `save_start` wrote to `start`."""
    return tiny_recipe(
        folder,
        views=["coronal"],
        schedule={"steps": 1},
        start=str(folder / "start"),
        network=None,
    )


def test_views_are_joined_as_in_the_model_that_a_run_starts_from(
    tmp_path: Path,
) -> None:
    fitted = save_start(tmp_path / "start", "Brain-Stem")
    recipe = one_step_from_start(tmp_path)
    info = read_info(train(recipe, tmp_path / "run", SILENT))
    # Odds of structures do not apply to other weights either.
    without = {"csf_odds": 1.0, "class_odds": {}}
    assert info.fusion == fitted.model_copy(update=without)


def test_a_licence_of_the_weights_that_a_run_starts_from_goes_on(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    save_start(tmp_path / "start", licence="CC BY-NC 3.0")
    recipe = one_step_from_start(tmp_path)
    info = read_info(train(recipe, tmp_path / "run", SILENT))
    assert info.training.licence == "CC BY-NC 3.0"
    assert "the weights of start are licensed under CC BY-NC 3.0" in logged.messages


def test_views_that_are_not_all_of_one_model_have_the_default_weights(
    tmp_path: Path,
) -> None:
    save_start(tmp_path / "start")
    start = str(tmp_path / "start")
    # The model has no axial network: its weights would leave that view out.
    lacks = tiny_recipe(tmp_path, views=["coronal", "axial"], start=start)
    assert _fusion_of_start(lacks, tmp_path) == Fusion()
    stages: list[dict[str, Any]] = [
        {"name": "first", "start": start, "views": ["coronal"]},
        {"name": "second", "start": "fast"},
    ]
    mixed = tiny_recipe(tmp_path, views=["coronal", "axial"], stages=stages)
    assert _fusion_of_start(mixed, tmp_path) == Fusion()
    # The second stage goes on from the first.
    stages = [{"name": "first"}, {"name": "second"}]
    later = tiny_recipe(tmp_path, views=["coronal"], start=start, stages=stages)
    assert _fusion_of_start(later, tmp_path).weights[View.CORONAL] == 0.7


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"data": {"synthetic": {"heads": "nowhere"}}}, "nowhere: no label maps"),
        ({"start": "nowhere"}, "nowhere: no such model"),
        (
            {
                "data": {
                    "store": {"path": "nowhere", "split": "s.json"},
                    "synthetic_share": 0.5,
                }
            },
            "nowhere: not a slice store",
        ),
    ],
    ids=["heads", "start", "store"],
)
def test_what_a_later_stage_lacks_is_said_before_the_first(
    tmp_path: Path, lack: dict[str, Any], message: str
) -> None:
    stages = [{"name": "a", "views": ["coronal"]}, {"name": "b", **lack}]
    recipe = tiny_recipe(tmp_path, views=["coronal", "axial"], stages=stages)
    with pytest.raises(TrinatError, match=message):
        train(recipe, tmp_path / "run", SILENT)
    # The folder is still free for a corrected run.
    assert not (tmp_path / "run/config.yaml").exists()
