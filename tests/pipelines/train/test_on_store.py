"""A recipe on a store: scheme, views and split, and the origin of its labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import refusal
from helpers.serial import small_scan
from helpers.small_store import all_train, small_store, stored_subject
from helpers.tiny_training import SILENT, tiny_recipe, tiny_recipe_on, weights

from trinat.pipelines.train.provenance import read_provenance
from trinat.pipelines.train.run import _absent_structures, train
from trinat.segmentation.data.slices import scheme_table, write_subject
from trinat.segmentation.data.splits import Split
from trinat.segmentation.data.store import SPLIT, Store, StoreInfo, subject_path
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import StageConfig


def test_a_recipe_takes_what_a_store_has_and_says_who_made_its_labels(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "store", {"a": (24, 24, 24), "b": (24, 24, 24)})
    all_train(store)
    info = json.loads((store / "store.json").read_text())
    for subject in info["subjects"].values():
        subject["pseudo"] = {"model": "m", "sha256": "0" * 64, "not_predicted": ["CSF"]}
        subject["licence"] = "CC BY-NC 3.0"
    (store / "store.json").write_text(json.dumps(info))
    views = [view.value for view in View]
    stages = [{"name": "sides", "views": ["sagittal"]}, {"name": "train"}]
    changes = {"views": views, "schedule": {"steps": 2}, "stages": stages}
    recipe = tiny_recipe_on(store, tmp_path, **changes)
    # The store has no sagittal slices, and no subject for validation.
    assert (recipe.scheme, recipe.views) == ("tissue4", (View.CORONAL, View.AXIAL))
    (stage,) = recipe.stages
    assert (stage.name, stage.validation, stage.data.synthetic) == ("train", None, None)
    found = read_info(train(recipe, tmp_path / "run", SILENT, views=[View.AXIAL]))
    assert found.training.pseudo_labels == "pseudo-labels of m (000000000000)"
    assert found.training.data == "scans of a slice store (CC BY-NC 3.0)"
    assert found.not_predicted == ("CSF",)
    page = (tmp_path / "run/train/axial/run.html").read_text()
    assert "train/axial, pseudo-labels of m" in page


def test_structures_that_no_label_has_are_not_predicted(tmp_path: Path) -> None:
    # The innermost box of small_store, CSF, is empty in scans of 12 voxels.
    store = small_store(tmp_path / "store", {"a": (12, 12, 12), "b": (12, 12, 12)})
    all_train(store)
    changes = {"views": ["axial"], "schedule": {"steps": 1}}
    recipe = tiny_recipe_on(store, tmp_path, **changes)
    model = train(recipe, tmp_path / "run", SILENT)
    assert read_info(model).not_predicted == ("CSF",)
    found = Predictor(model, device="cpu").segment(small_scan())
    assert set(found.volumes_mm3) == {"Grey-Matter", "White-Matter"}


@pytest.mark.parametrize(
    ("share", "data", "csf", "not_predicted"),
    [
        (1, "synthetic scans", "intracranial", ()),
        (0.5, "scans of a slice store (CC0)", "region", ()),
        (0, "scans of a slice store (CC0)", "region", ("CSF",)),
    ],
)
def test_a_model_describes_only_data_that_it_was_trained_on(
    tmp_path: Path, share: float, data: str, csf: str, not_predicted: tuple[str, ...]
) -> None:
    store = small_store(tmp_path / "store", {"a": (12, 12, 12), "b": (12, 12, 12)})
    info = json.loads((store / "store.json").read_text())
    for subject in info["subjects"].values():
        subject["licence"] = "CC0"
    (store / "store.json").write_text(json.dumps(info))
    split = Split(
        store=Store(store).fingerprint, seed=0, train=("a",), validation=("b",)
    )
    split.write(store / SPLIT)
    given = {"path": str(store), "split": str(store / SPLIT)}
    (synthetic,) = [stage.data.synthetic for stage in tiny_recipe(tmp_path).stages]
    assert synthetic is not None
    heads = synthetic.model_dump(mode="json")
    heads["synthesis"]["learn_fluid"] = True
    recipe = tiny_recipe(
        tmp_path,
        scheme="tissue4",
        views=["axial"],
        schedule={"steps": 1},
        data={
            "store": given,
            "synthetic": heads,
            "synthetic_share": share,
            "rows": 16,
            "columns": 16,
            "epoch_slices": 16,
        },
    )
    model = train(recipe, tmp_path / "run", SILENT)
    found = read_info(model)
    assert found.training.data == data
    assert (found.csf, found.not_predicted) == (csf, not_predicted)
    trained_on = read_provenance(model)["train/axial"][0]["trained_on"]
    assert len(trained_on) == (share < 1)


@pytest.mark.parametrize(
    ("views", "absent"),
    [
        # Sagittal slices do not show that the right side is absent.
        ((View.SAGITTAL,), {"Left-Amygdala", "Right-Amygdala"}),
        (
            (View.SAGITTAL, View.AXIAL),
            {"Left-Amygdala", "Right-Amygdala", "Right-Hippocampus"},
        ),
    ],
)
@pytest.mark.parametrize("is_painted", [False, True])
def test_absent_structures_are_found_in_a_view_with_sides_and_in_whole_label_maps(
    tmp_path: Path, views: tuple[View, ...], absent: set[str], is_painted: bool
) -> None:
    scheme = load_scheme("quicknat33")
    labels = np.arange(40, dtype=np.uint8) % len(scheme)
    for name in ("Left-Amygdala", "Right-Amygdala", "Right-Hippocampus"):
        labels[labels == scheme.names.index(name)] = 0
    labels = np.tile(labels, (3, 4, 1))
    counted = np.ones(labels.shape, bool) if is_painted else None
    (tmp_path / "subjects").mkdir()
    write_subject(
        subject_path(tmp_path, "a"),
        image=None,
        labels=labels,
        counted=counted,
        affine=np.eye(4),
        scheme=scheme,
        views=views,
        fingerprint="a",
    )
    StoreInfo(
        source="pairs",
        scheme=scheme_table(scheme),
        views=views,
        subjects={"a": stored_subject(tmp_path, "a")},
    ).write(tmp_path)
    found = _absent_structures(Store(tmp_path), ["a"])
    assert found == (set() if is_painted else absent)


@pytest.mark.parametrize(("one_sided", "flip"), [(False, 0.25), (True, 0)])
def test_a_recipe_of_stores_keeps_its_augmentation_but_flips_no_scheme_of_one_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_sided: bool, flip: float
) -> None:
    store = small_store(tmp_path / "store", {"a": (24, 24, 24), "b": (24, 24, 24)})
    split = Split(
        store=Store(store).fingerprint, seed=0, train=("a",), validation=("b",)
    )
    split.write(store / SPLIT)
    monkeypatch.setattr(LabelScheme, "has_unpartnered_sides", one_sided)
    (stage,) = tiny_recipe_on(store, tmp_path).stages
    # The synthetic scans of the recipe are replaced, and real participants choose the weights.
    assert (stage.data.synthetic, stage.validation is None) == (None, False)
    augmentation = {"flip": 0.25, "gamma": 0.125}
    own = {"path": "other", "split": "other.json", "augmentation": augmentation}
    data = tiny_recipe(tmp_path).stages[0].data.model_dump(mode="json")
    data |= {"store": own, "synthetic_share": 0.5}
    (stage,) = tiny_recipe_on(store, tmp_path, data=data).stages
    held = stage.data.store
    assert held is not None
    assert (held.path, held.split) == (store, store / SPLIT)
    assert (held.augmentation.flip, held.augmentation.gamma) == (flip, 0.125)
    assert (stage.data.synthetic is None, stage.validation) == (False, None)


def test_settings_of_a_recipe_without_a_store_apply_to_a_store_that_is_given(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "store", {"a": (24, 24, 24), "b": (24, 24, 24)})
    split = Split(
        store=Store(store).fingerprint, seed=0, train=("a",), validation=("b",)
    )
    split.write(store / SPLIT)

    def stage(*settings: str) -> StageConfig:
        (found,) = tiny_recipe_on(store, tmp_path, *settings).stages
        return found

    assert stage("validation=null").validation is None
    augmented = stage("data.store.augmentation.flip=0", "data.store.balanced_share=0")
    place = augmented.data.store
    assert place is not None
    assert (place.path, place.augmentation.flip) == (store, 0)
    assert place.balanced_share == 0
    assert (augmented.data.synthetic, augmented.validation is None) == (None, False)
    assert stage("data.epoch_slices=null").data.epoch_slices is None
    mixed = stage("data.synthetic.heads=phantom", "data.synthetic_share=0.5").data
    assert mixed.synthetic is not None
    assert (mixed.synthetic.heads, mixed.trains_on_store) == ("phantom", True)
    # Without the share, it is not known what to train on.
    with refusal(ConfigError):
        stage("data.synthetic.heads=phantom")


def test_a_wrong_range_of_augmentation_is_refused_before_the_store_is_read(
    tmp_path: Path,
) -> None:
    place = {"path": "nowhere", "split": "nowhere", "augmentation": {}}
    place["augmentation"] = {"gain_range": [1.2, 0.8]}
    with refusal(ConfigError, tmp_path / "tiny.yaml") as caught:
        tiny_recipe(tmp_path, data={"store": place})
    assert "gain_range" in caught.value.what


@pytest.mark.slow
@pytest.mark.important
def test_a_run_with_transforms_and_losses_of_the_libraries_is_the_same_on_workers(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path / "store", {"a": (24, 24, 24)})
    transforms = [
        {"name": "RandomGhosting", "share": 0.5},
        {"name": "RandAffine", "share": 0.5},
    ]
    held = {
        "path": str(store),
        "split": str(all_train(store)),
        "augmentation": {"transforms": transforms},
    }
    data = {"store": held, "rows": 32, "columns": 32, "epoch_slices": 16}
    changes = {
        "data": data,
        "scheme": "tissue4",
        "views": ["coronal"],
        "schedule": {"steps": 2},
        "loss": {"kind": "DiceCELoss"},
    }
    found = []
    for workers in (0, 1):
        recipe = tiny_recipe(tmp_path, f"data.store.workers={workers}", **changes)
        run = tmp_path / f"run-{workers}"
        train(recipe, run, SILENT)
        found.append(weights(run, "train/coronal"))
    assert found[0] == found[1]
