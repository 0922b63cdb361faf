"""trinat train: recipes, outputs of a run, refusals in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.refusals import refusal
from helpers.small_store import all_train, small_store
from helpers.tiny_training import SILENT, tiny_recipe
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.train.data import usual_readers
from trinat.pipelines.train.run import read_recipe, train
from trinat.segmentation.errors import (
    ConfigError,
    DatasetError,
    DeviceError,
    LabelError,
    ModelError,
    TrainingError,
    TrinatError,
)
from trinat.segmentation.models.checkpoint import load_model, read_info
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.space.views import View

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")


SHIPPED = Path(__file__).parents[3] / "configs" / "train"
RECIPES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_is_sound(name: str) -> None:
    assert read_recipe(name).name == name


def test_the_paper_recipe_is_the_papers() -> None:
    stage = read_recipe("quicknat-paper").stages[0]
    optimiser = stage.optimiser
    assert (optimiser.kind, optimiser.rate, optimiser.momentum) == ("sgd", 0.1, 0.95)
    assert (optimiser.weight_decay, stage.batch) == (1e-4, 4)
    assert (stage.schedule.factor, stage.schedule.every_epochs) == (0.1, 10)


def test_settings_reach_into_the_recipe(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, "batch=2", "data.synthetic.synthesis.noise=0.5")
    stage = recipe.stages[0]
    assert stage.batch == 2
    assert stage.data.synthetic is not None
    assert stage.data.synthetic.synthesis.noise == 0.5


def test_settings_reach_into_a_stage(tmp_path: Path) -> None:
    stages = [{"name": "a", "batch": 3}, {"name": "b"}]
    recipe = tiny_recipe(tmp_path, "stages.0.batch=2", stages=stages)
    assert [stage.batch for stage in recipe.stages] == [2, 4]
    # Without a list of stages there is one.
    assert tiny_recipe(tmp_path, "stages.0.batch=2").stages[0].batch == 2


def test_settings_replace_those_of_all_stages(tmp_path: Path) -> None:
    stages = [
        {"name": "a", "batch": 3, "schedule": {"steps": 5, "warmup_steps": 1}},
        {"name": "b"},
    ]
    settings = ("batch=2", "schedule.steps=7", "name=other")
    recipe = tiny_recipe(tmp_path, *settings, stages=stages)
    assert [stage.batch for stage in recipe.stages] == [2, 2]
    assert [stage.schedule.steps for stage in recipe.stages] == [7, 7]
    assert [stage.schedule.warmup_steps for stage in recipe.stages] == [1, 0]
    assert (recipe.name, recipe.stages[0].name) == ("other", "a")


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
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, message: str) -> None:
    stages = [{}] if setting.startswith("stages") else None
    with pytest.raises(ConfigError, match=message):
        tiny_recipe(tmp_path, setting, stages=stages)


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
    assert (recipe.network.filters, recipe.network.unshuffle) == (64, 2)
    own = read_recipe("finetune", ["start=fast", "network={filters: 8}"])
    assert own.network.filters == 8


def test_a_start_that_is_no_model_is_refused_before_any_scan_is_read() -> None:
    with refusal(ModelError, "nothing"):
        read_recipe("finetune", ["start=nothing"])


def test_a_view_that_no_stage_trains_is_refused(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, stages=[{"name": "train", "views": ["coronal"]}])
    with pytest.raises(ConfigError):
        train(recipe, tmp_path / "run", SILENT, views=[View.AXIAL])
    assert not (tmp_path / "run").exists()


def test_a_view_that_cannot_show_the_scheme_is_refused_before_any_training(
    tmp_path: Path,
) -> None:
    views = [view.value for view in View]
    recipe = tiny_recipe(tmp_path, views=views, scheme="left4")
    with pytest.raises(LabelError):
        train(recipe, tmp_path / "run", SILENT)
    assert not list((tmp_path / "run").rglob("*.state"))


def test_a_model_to_start_from_may_have_a_number_for_a_name() -> None:
    with pytest.raises(ModelError, match="2024: no such model"):
        CliRunner().invoke(
            app, ["train", "finetune", "--start", "2024"], catch_exceptions=False
        )


def test_folds_are_of_a_store() -> None:
    with pytest.raises(ConfigError, match="--folds without --store"):
        CliRunner().invoke(app, ["train", "smoke", "--folds"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("learn_fluid", "csf", "not_predicted"),
    [(True, "intracranial", ()), (False, "region", ("CSF",))],
)
def test_a_model_says_what_it_was_taught_to_call_csf(
    tmp_path: Path, learn_fluid: bool, csf: str, not_predicted: tuple[str, ...]
) -> None:
    recipe = tiny_recipe(tmp_path, views=["axial"], schedule={"steps": 1})
    (stage,) = recipe.stages
    synthesis = stage.data.synthetic.synthesis.model_copy(
        update={"learn_fluid": learn_fluid}
    )
    synthetic = stage.data.synthetic.model_copy(update={"synthesis": synthesis})
    data = stage.data.model_copy(update={"synthetic": synthetic})
    stage = stage.model_copy(update={"data": data})
    recipe = recipe.model_copy(update={"stages": (stage,)})
    info = read_info(train(recipe, tmp_path / "run", SILENT))
    assert (info.csf, info.not_predicted) == (csf, not_predicted)


def test_a_model_says_which_scans_its_recipe_is_for(tmp_path: Path) -> None:
    scans = {"contrast": "any", "reverse_contrast": True, "stripped_by": "fast"}
    recipe = tiny_recipe(tmp_path, views=["axial"], schedule={"steps": 1}, **scans)
    info = read_info(train(recipe, tmp_path / "run", SILENT))
    assert scans.items() <= info.model_dump().items()


def test_a_class_that_holds_more_than_what_surrounds_the_brain_is_taught(
    tmp_path: Path,
) -> None:
    """The CSF of tissue4 includes the ventricles, which label maps show."""
    recipe = tiny_recipe(
        tmp_path, scheme="tissue4", views=["axial"], schedule={"steps": 1}
    )
    assert read_info(train(recipe, tmp_path / "run", SILENT)).not_predicted == ()


def test_a_model_brings_the_label_scheme_of_ones_own_that_it_learnt(
    tmp_path: Path,
) -> None:
    table = tmp_path / "mine.tsv"
    shipped = Path(__file__).parents[3] / "configs/labels/tissue4.tsv"
    table.write_text(shipped.read_text().replace("Grey-Matter", "Grey"))
    changes = {"scheme": str(table), "views": ["axial"], "schedule": {"steps": 1}}
    model = train(tiny_recipe(tmp_path, **changes), tmp_path / "run", SILENT)
    table.unlink()
    assert load_model(model).scheme.names == (
        "background",
        "CSF",
        "Grey",
        "White-Matter",
    )


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ({"scheme": "nowhere"}, "nowhere: no such label scheme"),
        ({"tensorboard": True}, "needs the package tensorboard"),
        ({"data": {"rows": 32, "columns": 32}}, "data has neither synthetic nor store"),
    ],
    ids=["scheme", "tensorboard", "data"],
)
def test_a_refused_start_leaves_the_place_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: dict[str, Any], message: str
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    run = tmp_path / "run"
    with pytest.raises(TrinatError, match=message):
        train(tiny_recipe(tmp_path, views=["coronal"], **lack), run, SILENT)
    short = {"views": ["coronal"], "schedule": {"steps": 1}}
    train(tiny_recipe(tmp_path, **short), run, SILENT)


def test_a_run_that_was_killed_before_its_first_state_begins_again(
    tmp_path: Path,
) -> None:
    recipe, run = tiny_recipe(tmp_path, views=["coronal"]), tmp_path / "run"
    run.mkdir()
    # As a killed run leaves it.
    (run / "config.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    other = tiny_recipe(tmp_path, views=["axial"])
    with refusal(TrainingError, run, remedy="--out"):
        train(other, run, SILENT)
    train(recipe, run, SILENT)
    with refusal(TrainingError, run, remedy="--out"):
        train(recipe, run, SILENT)


def test_a_file_of_the_users_in_the_place_of_a_view_refuses_the_start(
    tmp_path: Path,
) -> None:
    recipe, run = tiny_recipe(tmp_path, views=["coronal"]), tmp_path / "run"
    theirs = run / recipe.stages[0].name / "coronal" / "metrics.csv"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("by hand")
    with pytest.raises(TrinatError, match="not written by this command"):
        train(recipe, run, SILENT)
    assert theirs.read_text() == "by hand"


def test_a_model_in_the_folder_of_another_command_refuses_the_start(
    tmp_path: Path,
) -> None:
    out = tmp_path / "work"
    with claimed(out, ["report.html"]):
        (out / "report.html").touch()
    theirs = out / "model" / "model.yaml"
    theirs.parent.mkdir()
    theirs.write_text("by hand")
    with pytest.raises(TrinatError, match="not written by this command"):
        train(tiny_recipe(tmp_path, scheme="nowhere"), out, SILENT)
    assert theirs.read_text() == "by hand"


def test_a_split_in_which_nobody_validates_is_refused_at_once(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", {"a": (20, 20, 20)})
    data = {"store": {"path": str(store), "split": str(all_train(store))}, "rows": 16}
    recipe = tiny_recipe(
        tmp_path, scheme="tissue4", views=["axial"], data=data, validation={}
    )
    with refusal(DatasetError, store / "split.json", remedy="--ratios"):
        train(recipe, tmp_path / "run", SILENT)


def test_events_are_written_for_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = [
        "tensorboard=true",
        "views=[axial]",
        "validation={every_epochs: 1, participants: 1}",
    ]
    train(tiny_recipe(tmp_path, *settings), tmp_path / "run", SILENT)
    events = EventAccumulator(str(tmp_path / "run/train/axial/events")).Reload()
    assert [event.step for event in events.Scalars("loss")][-1] == 8
    assert [event.step for event in events.Scalars("axial/dice")] == [4, 8]


def test_an_unknown_recipe_is_refused() -> None:
    with refusal(ConfigError, "nothing"):
        read_recipe("nothing")


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        pytest.param(
            "mps",
            "^mps: .*use --device cpu",
            marks=pytest.mark.skipif(
                torch.backends.mps.is_available(), reason="has one"
            ),
        ),
        ("cuda:77", "cuda"),
        ("xpu", "not supported"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_there_is_a_run(
    tmp_path: Path, device: str, reason: str
) -> None:
    with pytest.raises(DeviceError, match=reason):
        train(tiny_recipe(tmp_path), tmp_path / "run", SILENT, device=device)
    assert not (tmp_path / "run").exists()


def test_where_no_device_is_named_it_is_the_gpu_or_else_the_processor() -> None:
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device("auto").type == wanted
