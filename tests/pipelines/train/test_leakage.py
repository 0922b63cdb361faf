"""Models are not tested on participants that they were trained on, also after another split."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.refusals import refusal
from helpers.small_store import small_store
from helpers.tiny_training import SILENT, tiny_recipe
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.study.cases import Case, Found
from trinat.pipelines.train.leakage import (
    refuse_leaky_folds,
    refuse_trained_participants,
)
from trinat.pipelines.train.result import read_data
from trinat.pipelines.train.run import train
from trinat.segmentation.data.splits import Split, read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError, TrainingError
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.training.config import Recipe

pytestmark = pytest.mark.usefixtures("one_thread", "without_pages")


def write_split(store: Store, name: str, train: str, test: str) -> Path:
    """Write a split of subjects with names of one letter; return its path."""
    path = store.root / name
    Split(store=store.fingerprint, seed=0, train=tuple(train), test=tuple(test)).write(
        path
    )
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Write a store whose subjects b and c are two scans of one participant."""
    root = small_store(tmp_path / "store", dict.fromkeys("abcd", (16, 16, 16)))
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("c\tc\t", "c\tb\t"))
    return Store(root)


def trained_on(store: Store, split: Path, out: Path, **changes: str) -> Path:
    place = {"path": str(store.root), "split": str(split)}
    out.parent.mkdir(exist_ok=True)
    recipe = tiny_recipe(
        out.parent,
        scheme="tissue4",
        views=["axial"],
        data={"store": place, "rows": 16, "columns": 16, "epoch_slices": 16},
        schedule={"steps": 1},
        **changes,
    )
    return train(recipe, out, SILENT)


def test_a_part_of_another_split_is_refused_if_the_model_has_seen_it(
    store: Store, tmp_path: Path
) -> None:
    split = write_split(store, "split.json", train="ab", test="d")
    model = trained_on(store, split, tmp_path / "run")
    refuse_trained_participants(store, "test", str(model))
    write_split(store, "split.json", train="d", test="a")
    with refusal(DatasetError, model):
        refuse_trained_participants(store, "test", str(model))
    # Scan c is new to the model, but its participant is not.
    write_split(store, "split.json", train="ad", test="c")
    with refusal(DatasetError, model):
        refuse_trained_participants(store, "test", str(model))
    refuse_trained_participants(store, "train", str(model))


def test_a_part_is_refused_if_the_weights_that_a_training_started_from_have_seen_it(
    store: Store, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    first = write_split(store, "split.json", train="a", test="d")
    start = trained_on(store, first, tmp_path / "first")
    second = write_split(store, "split-0.json", train="d", test="a")
    assert not any(record.levelname == "WARNING" for record in logged.records)
    trained_on(store, second, tmp_path / "cv/fold-0", start=str(start))
    (warning,) = (
        record.message for record in logged.records if record.levelname == "WARNING"
    )
    assert warning.startswith(
        f"{start} was trained on participants for validation or test"
    )
    with refusal(DatasetError, tmp_path / "cv/fold-0/model"):
        refuse_leaky_folds(store, tmp_path / "cv")
    shutil.copy(second, store.root / "split.json")
    with refusal(DatasetError, tmp_path / "cv/fold-0/model"):
        refuse_trained_participants(store, "test", str(tmp_path / "cv/fold-0/model"))


def test_models_of_other_stores_segment_any_part(store: Store, tmp_path: Path) -> None:
    other = Store(small_store(tmp_path / "other", {"x": (16, 16, 17)}))
    model = trained_on(
        other, write_split(other, "split.json", train="x", test=""), tmp_path / "run"
    )
    write_split(store, "split.json", train="bcd", test="a")
    refuse_trained_participants(store, "test", str(model))
    refuse_trained_participants(store, "test", "fast")


def test_a_scan_that_was_trained_on_with_other_labels_is_known(tmp_path: Path) -> None:
    """Labels of the second store are those of a smaller head; its scan is the same."""
    stores = []
    for name, shape in (("pseudo", (16, 16, 17)), ("manual", (16, 16, 16))):
        root = small_store(tmp_path / name, {name: shape})
        info = json.loads((root / "store.json").read_text())
        image = {"path": str(tmp_path / "scan.nii"), "sha256": "0123456789abcdef"}
        info["subjects"][name]["image"] = image
        (root / "store.json").write_text(json.dumps(info))
        stores.append(Store(root))
    pseudo, manual = stores
    split = Split(store=pseudo.fingerprint, seed=0, train=("pseudo",))
    split.write(pseudo.root / "split.json")
    model = trained_on(pseudo, pseudo.root / "split.json", tmp_path / "run")
    split = Split(store=manual.fingerprint, seed=0, train=(), test=("manual",))
    split.write(manual.root / "split.json")
    with refusal(DatasetError, model):
        refuse_trained_participants(manual, "test", str(model))


def of_two_stages(store: Store, folder: Path, first: Path, second: Path) -> Recipe:
    """Return a recipe of two stages that use one store with different splits."""
    stages = []
    for name, split in (("first", first), ("second", second)):
        place = {"path": str(store.root), "split": str(split)}
        stages.append({"name": name, "data": {"store": place}})
    return tiny_recipe(
        folder,
        scheme="tissue4",
        views=["axial"],
        data={"rows": 16, "columns": 16, "epoch_slices": 16},
        schedule={"steps": 1},
        stages=stages,
    )


def test_both_splits_of_one_store_are_written_down(
    store: Store, tmp_path: Path
) -> None:
    info = json.loads((store.root / "store.json").read_text())
    info["subjects"]["a"]["licence"] = "CC0"
    info["subjects"]["d"]["licence"] = "MIT"
    (store.root / "store.json").write_text(json.dumps(info))
    first = write_split(store, "first.json", train="a", test="")
    second = write_split(store, "second.json", train="d", test="b")
    recipe = of_two_stages(store, tmp_path, first, second)
    model = train(recipe, tmp_path / "run", SILENT)
    hashes = [data["split_sha256"] for data in read_data(tmp_path / "run").values()]
    assert hashes == [read_split(path).sha256 for path in (first, second)]
    described = read_info(model).training.data
    assert described == "scans of a slice store (CC0; MIT)"
    # The second split counts when the run is resumed, too.
    write_split(store, "second.json", train="d", test="bc")
    with refusal(TrainingError, tmp_path / "run"):
        train(recipe, tmp_path / "run", SILENT, resume=True)


def test_a_later_stage_tests_nobody_that_an_earlier_one_trains_on(
    store: Store, tmp_path: Path
) -> None:
    # Scan c is of the same participant as scan b.
    first = write_split(store, "first.json", train="ab", test="d")
    second = write_split(store, "second.json", train="a", test="c")
    recipe = of_two_stages(store, tmp_path, first, second)
    with refusal(DatasetError, second):
        train(recipe, tmp_path / "run", SILENT)
    assert not (tmp_path / "run/config.yaml").exists()


def test_folds_that_were_split_again_are_refused(store: Store, tmp_path: Path) -> None:
    splits = [
        write_split(store, "split-0.json", train="bc", test="ad"),
        write_split(store, "split-1.json", train="ad", test="bc"),
    ]
    for number, split in enumerate(splits):
        trained_on(store, split, tmp_path / f"cv/fold-{number}")
    refuse_leaky_folds(store, tmp_path / "cv")
    write_split(store, "split-1.json", train="d", test="bc")
    with refusal(DatasetError, tmp_path / "cv/fold-1"):
        refuse_leaky_folds(store, tmp_path / "cv")


@pytest.mark.parametrize("of_folds", [True, False])
def test_trinat_predict_refuses_models_that_have_seen_the_scans(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_folds: bool
) -> None:
    split = write_split(store, "split-0.json", train="a", test="d")
    model = trained_on(store, split, tmp_path / "cv/fold-0")
    write_split(store, "split-0.json", train="d", test="a")
    write_split(store, "split.json", train="d", test="a")
    found = Found((Case("a", tmp_path / "a.nii", "a"),))
    monkeypatch.setattr(
        "trinat.pipelines.predict.stored_scans.stored_cases", lambda *_: found
    )
    words = ["predict", "--store", str(store.root), "--out", str(tmp_path / "found")]
    if of_folds:
        words += ["--folds", "--model", str(tmp_path / "cv")]
    else:
        words += ["--part", "test", "--model", str(model)]
    with pytest.raises(DatasetError):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "found").exists()
