"""trinat bundle: views are joined to a model for Predictor, or refused in one line."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.lesions import save_lesion_network
from helpers.overfitted import SMALL
from helpers.refusals import refusal
from helpers.small_model import save_parcels
from typer.testing import CliRunner

from trinat.pipelines.cli import app
from trinat.pipelines.models.bundle import bundle
from trinat.pipelines.train.provenance import read_provenance
from trinat.segmentation.errors import ConfigError, ModelError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.foreign import PORT_PREPROCESSING
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    Preprocessing,
    Quality,
    Training,
)
from trinat.segmentation.models.quicknat import QuickNat
from trinat.segmentation.models.zoo import shipped_models
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import phantom_heads

C, A, S = View


def model(folder: Path, *views: View, filters: int = 4, **said: Any) -> Path:
    """Write a model folder with random networks for these views."""
    settings = {"filters": filters, "depth": 1}
    networks = {
        view: QuickNat(
            SMALL.model_copy(update=settings | {"classes": 19 if view is S else 33})
        )
        for view in views
    }
    precision = said.pop("precision", "float32")
    description = Description(**({"name": folder.name} | said))
    save_model(folder, description, networks, precision=precision)
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Write a run and two model folders, one view each."""
    (tmp_path / "run").mkdir()
    model(tmp_path / "run/model", C, not_predicted=("CSF",))
    return [
        tmp_path / "run",
        model(tmp_path / "a", A, filters=8),
        model(tmp_path / "s", S),
    ]


def test_a_bundle_knows_all_jobs_that_trained_its_views(
    three: list[Path], tmp_path: Path
) -> None:
    """Sources of one recipe have jobs of the same names."""
    bundle(three, tmp_path / "silent")
    assert load_model(tmp_path / "silent").provenance is None
    for folder, digest_of_subject in ((three[1], "a"), (three[2], "s")):
        call = {"trained_on": [digest_of_subject]}
        jobs = {"train/axial": [call]}
        (folder / "provenance.json").write_text(json.dumps(jobs))
    bundle(three, tmp_path / "out")
    (calls,) = read_provenance(tmp_path / "out").values()
    assert [call["trained_on"] for call in calls] == [["a"], ["s"]]


def test_three_views_become_one_model_that_segments(
    three: list[Path], tmp_path: Path
) -> None:
    bundle(three, tmp_path / "out")
    segmenter = Predictor(tmp_path / "out", device="cpu")
    assert segmenter.views == (C, A, S)
    assert segmenter.model.name == "out"
    for folder, view in zip((tmp_path / "run/model", *three[1:]), View, strict=True):
        own = load_model(folder).networks[view].state_dict()
        for name, tensor in segmenter.model.networks[view].state_dict().items():
            assert torch.equal(tensor, own[name])


def test_weights_keep_their_bytes_and_their_origin(
    three: list[Path], tmp_path: Path
) -> None:
    info = bundle(three, tmp_path / "out")
    assert info.files["axial.safetensors"] == digest(tmp_path / "a/axial.safetensors")
    assert info.origins[A].model_sha256 == digest(tmp_path / "a/model.yaml")
    assert [info.origins[view].name for view in View] == ["model", "a", "s"]


def test_a_model_for_any_contrast_stays_one(tmp_path: Path) -> None:
    said = {"contrast": "any", "reverse_contrast": True}
    sources = [model(tmp_path / view.value, view, **said) for view in (C, A)]
    joined = bundle(sources, tmp_path / "out")
    assert (joined.contrast, joined.reverse_contrast) == ("any", True)


def test_a_model_whose_scans_are_stripped_first_stays_one(tmp_path: Path) -> None:
    sources = [
        model(tmp_path / view.value, view, stripped_by="fast") for view in (C, A)
    ]
    assert bundle(sources, tmp_path / "out").stripped_by == "fast"
    other = model(tmp_path / "other", A)
    with pytest.raises(ModelError, match="stripped_by"):
        bundle([sources[0], other], tmp_path / "not")


def test_a_model_keeps_its_networks_for_parcels_and_lesions(tmp_path: Path) -> None:
    first, other = model(tmp_path / "first", C), model(tmp_path / "other", A)
    save_parcels(first / "parcels")
    lesions = save_lesion_network(first)
    bundle([first, other], tmp_path / "out")
    assert load_model(tmp_path / "out/parcels").scheme.name == "desikan34"
    assert (tmp_path / "out" / lesions.name).read_bytes() == lesions.read_bytes()


@pytest.mark.parametrize("views", [(S,), (C, A)])
def test_any_subset_of_views_will_do(tmp_path: Path, views: tuple[View, ...]) -> None:
    sources = [model(tmp_path / view.value, view) for view in reversed(views)]
    bundle(sources, tmp_path / "out")
    assert tuple(load_model(tmp_path / "out").networks) == views


def test_what_one_view_was_not_taught_is_not_predicted(
    three: list[Path], tmp_path: Path
) -> None:
    words = ["bundle", *map(str, three), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words, standalone_mode=False)
    assert done.exception is None
    assert "coronal, axial, sagittal" in done.output
    assert "CSF is not predicted: missing in coronal" in done.output
    assert load_model(tmp_path / "out").info.not_predicted == ("CSF",)


def test_views_keep_what_they_call_csf_and_two_meanings_are_refused(
    tmp_path: Path,
) -> None:
    all_fluid = [model(tmp_path / v.value, v, csf="intracranial") for v in (C, A)]
    assert bundle(all_fluid, tmp_path / "out").csf == "intracranial"
    region = model(tmp_path / "region", S)
    with refusal(ModelError, region):
        bundle([*all_fluid, region], tmp_path / "mixed")
    # A model that does not predict CSF cannot define it differently.
    without = model(tmp_path / "without", S, not_predicted=("CSF",))
    info = bundle([*all_fluid, without], tmp_path / "three")
    assert (info.csf, info.not_predicted) == ("intracranial", ("CSF",))


def test_notes_claim_nothing_for_a_view_that_does_not_say_it(tmp_path: Path) -> None:
    said = Training(data="maps", licence="Apache-2.0", recipe="r", slices_seen=5)
    sources = [
        model(tmp_path / "ca", C, A, training=said, metrics={"dice": 0.7}),
        model(
            tmp_path / "s", S, training=Training(data="maps", recipe="r", slices_seen=5)
        ),
    ]
    info = bundle(sources, tmp_path / "out")
    assert info.training.data == "maps"
    assert info.training.licence == "coronal, axial: Apache-2.0; sagittal: not stated"
    assert info.training.slices_seen == 10
    # The scores of two views fused are not valid for three.
    assert info.metrics == {}
    assert info.origins[A].metrics == {"dice": 0.7}
    again = bundle([tmp_path / "out"], tmp_path / "again")
    assert again.origins == info.origins
    assert again.training == info.training


def test_a_licence_is_given_where_a_source_does_not_say_it(tmp_path: Path) -> None:
    sources = [
        model(tmp_path / "c", C, training=Training(licence="Apache-2.0")),
        model(tmp_path / "s", S),
    ]
    info = bundle(sources, tmp_path / "out", licence="CC0")
    assert info.training.licence == "coronal: Apache-2.0; sagittal: CC0"
    assert info.origins[S].training.licence == ""


def test_what_was_measured_of_one_model_holds_for_it_alone(tmp_path: Path) -> None:
    measured = Quality(agreement=(0.6, 0.5))
    one = model(tmp_path / "one", C, A, metrics={"dice": 0.7}, quality=measured)
    same = bundle([one], tmp_path / "same")
    assert (same.metrics, same.quality) == ({"dice": 0.7}, measured)
    phantom_heads(4).save(tmp_path / "heads.npz")
    with_prior = bundle([one], tmp_path / "prior", label_maps=tmp_path / "heads.npz")
    assert (with_prior.metrics, with_prior.quality) == ({}, measured)
    joined = bundle([one, model(tmp_path / "s", S)], tmp_path / "joined")
    assert (joined.metrics, joined.quality) == ({}, None)


@pytest.mark.parametrize(
    ("fusion", "limits_hold"),
    [
        (Fusion(mean="geometric"), False),
        (Fusion(weights={C: 0.9, A: 0.1}), False),
        (Fusion(csf_odds=0.5), True),
    ],
)
def test_what_was_measured_with_another_fusion_does_not_hold(
    tmp_path: Path, fusion: Fusion, limits_hold: bool
) -> None:
    measured = Quality(agreement=(0.6, 0.5))
    said = {"metrics": {"dice": 0.7}, "quality": measured, "fusion": fusion}
    fitted = model(tmp_path / "fitted", C, A, **said)
    other = bundle([fitted], tmp_path / "other", default_weights=True)
    assert (other.metrics, other.fusion) == ({}, Fusion())
    assert other.quality == (measured if limits_hold else None)


def test_the_count_is_unknown_where_one_is(tmp_path: Path) -> None:
    sources = [
        model(tmp_path / "c", C, training=Training(slices_seen=5)),
        model(tmp_path / "a", A),
    ]
    assert bundle(sources, tmp_path / "out").training.slices_seen is None


def test_half_precision_is_kept_only_where_all_have_it(tmp_path: Path) -> None:
    half = [model(tmp_path / view.value, view, precision="float16") for view in (C, A)]
    info = bundle(half, tmp_path / "half")
    assert info.precision == "float16"
    assert info.files["axial.safetensors"] == digest(half[1] / "axial.safetensors")
    mixed = bundle([*half, model(tmp_path / "s", S)], tmp_path / "mixed")
    assert mixed.precision == "float32"
    own, kept = (
        load_model(folder).networks[C] for folder in (half[0], tmp_path / "mixed")
    )
    assert torch.equal(own.classifier.weight, kept.classifier.weight)


def test_each_view_keeps_its_slices(tmp_path: Path) -> None:
    both = [
        model(tmp_path / view.value, view, preprocessing=PORT_PREPROCESSING)
        for view in (C, A)
    ]
    info = bundle(both, tmp_path / "out")
    assert set(info.preprocessing.slices) == set(PORT_PREPROCESSING.slices) & {C, A}
    assert info.preprocessing.slice_axes(A) == PORT_PREPROCESSING.slice_axes(A)


def test_views_without_any_weight_are_refused(tmp_path: Path) -> None:
    fusion = Fusion(weights={S: 1.0})
    sources = [model(tmp_path / view.value, view, fusion=fusion) for view in (C, A)]
    with refusal(ModelError, tmp_path / "coronal"):
        bundle(sources, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_differ_are_not_chosen_from_in_silence(tmp_path: Path) -> None:
    fitted = Fusion(weights={C: 0.7, A: 0.3})
    sources = [
        model(tmp_path / "c", C, fusion=fitted),
        model(tmp_path / "a", A, fusion=fitted),
    ]
    assert bundle(sources, tmp_path / "out").fusion == fitted
    sources.append(model(tmp_path / "s", S))
    with pytest.raises(ConfigError, match="--default-weights"):
        bundle(sources, tmp_path / "all")
    assert bundle(sources, tmp_path / "all", default_weights=True).fusion == Fusion()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"labels": "tissue4"}, r"s: labels: tissue4, where .*/a has quicknat33"),
        ({"preprocessing": Preprocessing(axes="LIA")}, r"s: preprocessing\.axes: LIA"),
        (
            {"preprocessing": Preprocessing(scaling="minimum-maximum")},
            "minimum-maximum, where",
        ),
        ({"contrast": "any"}, "contrast: any, where .*/a has T1"),
    ],
)
def test_what_cannot_live_together_is_refused(
    tmp_path: Path, said: dict[str, Any], message: str
) -> None:
    first = model(tmp_path / "a", A)
    if "labels" in said:
        network = QuickNat(SMALL.model_copy(update={"depth": 1, "classes": 4}))
        save_model(tmp_path / "s", Description(name="s", **said), {C: network})
    else:
        model(tmp_path / "s", S, **said)
    with pytest.raises(ModelError, match=message):
        bundle([first, tmp_path / "s"], tmp_path / "out")


def test_two_sources_for_one_view_are_refused(tmp_path: Path) -> None:
    sources = [model(tmp_path / "one", C, A), model(tmp_path / "two", A)]
    with refusal(ModelError, tmp_path / "two"):
        bundle(sources, tmp_path / "out")


def test_a_shipped_model_is_copied_by_its_name_with_its_parcels(tmp_path: Path) -> None:
    bundle([Path("fast")], tmp_path / "own")
    shipped = shipped_models()["fast"]
    for file in ("coronal.safetensors", "parcels/axial.safetensors"):
        assert digest(tmp_path / "own" / file) == digest(shipped / file)


def test_a_missing_or_broken_source_is_named(three: list[Path], tmp_path: Path) -> None:
    with refusal(ModelError, tmp_path / "nowhere"):
        bundle([*three, tmp_path / "nowhere"], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with refusal(ModelError, tmp_path / "empty"):
        bundle([tmp_path / "empty"], tmp_path / "out")
    weights = three[1] / "axial.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with refusal(ModelError, weights):
        bundle(three, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_is_replaced_only_when_asked_and_nothing_else_ever(
    three: list[Path], tmp_path: Path
) -> None:
    bundle(three[:2], tmp_path / "out")
    with pytest.raises(ModelError, match="--overwrite"):
        bundle(three, tmp_path / "out")
    bundle(three, tmp_path / "out", overwrite=True)
    assert tuple(load_model(tmp_path / "out").networks) == (C, A, S)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("years of work")
    with refusal(ModelError, tmp_path / "home"):
        bundle(three, tmp_path / "home", overwrite=True)
    assert (tmp_path / "home/thesis.tex").exists()


def test_a_name_that_is_none_is_refused_in_one_line(
    three: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=re.escape("--name: name: '../x' is no name")
    ) as caught:
        bundle(three, tmp_path / "out", name="../x")
    assert "\n" not in str(caught.value)
