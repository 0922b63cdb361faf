"""Faults of a model folder are reported: its description, its weights, missing files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import refusal
from helpers.small_model import SCHEME, edit, network, rewrite, set_key

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View


def test_weights_that_half_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    saved = network()
    saved.classifier.weight.data.fill_(1e6)
    with pytest.raises(ModelError, match=r"classifier\.weight has values that float16"):
        save_model(
            tmp_path / "m",
            Description(name="m"),
            {View.AXIAL: saved},
            precision="float16",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("classifier.bias"), "lacks classifier.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), "has extra unexpectedly"),
        (
            lambda t: t.update({"classifier.bias": torch.zeros(5)}),
            r"classifier.bias has shape \(5,\) in place of \(33,\)",
        ),
        (
            lambda t: t.update({"classifier.bias": torch.zeros(33).double()}),
            "classifier.bias is stored as torch.float64",
        ),
        (
            lambda t: t.update({"classifier.bias": torch.full((33,), torch.nan)}),
            "classifier.bias has values that are not finite",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_key("format", to=2), "model format 2, and this version reads 1"),
        (set_key("colour", to=1), "colour: there is no such setting"),
        (set_key("name", to="../a"), "name: '../a' is no name"),
        (set_key("architectures", to={}), "architectures: "),
        (
            set_key("architectures", "coronal", "kernel", to=4),
            "architectures.coronal.kernel: ",
        ),
        (
            set_key("architectures", "coronal", "classes", to=19),
            "coronal network has 19 classes",
        ),
        (
            set_key("architectures", "sagittal", "classes", to=18),
            "sagittal network has 18 classes",
        ),
        (set_key("files", "../a.tsv", to="0" * 64), "not a plain file name"),
        (set_key("files", to={}), "files: [a-z]+.safetensors has no SHA-256"),
        (set_key("labels_sha256", to="0" * 64), "trained with other labels"),
        (set_key("labels", to="nothing33"), "label scheme nothing33: no such"),
        (set_key("not_predicted", to=["Nose"]), "Nose is no structure"),
        (set_key("fusion", "class_odds", to={"Nose": 2}), "Nose is no structure"),
        (set_key("fusion", "class_odds", to={"CSF": 11}), "fusion.class_odds.CSF: "),
        (set_key("fusion", "weights", "axial", to=-1), "fusion.weights.axial: "),
        (set_key("preprocessing", "axes", to="LRA"), "preprocessing.axes: "),
        (
            set_key("preprocessing", "slices", to={"axial": [0, 0, 1]}),
            "each of the axes",
        ),
        (set_key("precision", to="int8"), "precision: "),
        (
            set_key("quality", to={"agreement": [0.5, 0.7]}),
            "agreement: the first limit must not",
        ),
        (
            set_key("quality", to={"agreement": [0.5, float("nan")]}),
            "quality.agreement.1: ",
        ),
        (
            set_key("preprocessing", "shape", to=[256, 256, 0]),
            "preprocessing.shape.2: ",
        ),
        (
            set_key("preprocessing", "shape", to=[256, -1, 256]),
            "preprocessing.shape.1: ",
        ),
        (
            set_key("preprocessing", "shape", to=[10**6, 256, 256]),
            "preprocessing.shape.0: ",
        ),
        (set_key("preprocessing", "spacing_mm", to=1e-9), "preprocessing.spacing_mm: "),
        (
            set_key("preprocessing", "spacing_mm", to=float("inf")),
            "preprocessing.spacing_mm: ",
        ),
        (set_key("fusion", "weights", "axial", to=1e39), "fusion.weights.axial: "),
        (
            set_key("precision", to="float16"),
            "is stored as torch.float32, not torch.float16",
        ),
    ],
)
def test_a_description_that_does_not_hold_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    edit(folder, change)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    path = folder / "axial.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with refusal(ModelError, path):
        load_model(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "axial.safetensors").unlink()
    with refusal(ModelError, folder / "axial.safetensors"):
        load_model(folder)


def test_a_view_that_is_not_there_is_named(tmp_path: Path) -> None:
    save_model(tmp_path / "m", Description(name="m"), {View.AXIAL: network()})
    with refusal(ModelError, tmp_path / "m"):
        load_model(tmp_path / "m", [View.CORONAL])


def test_a_pickle_is_no_weights(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "ran"

    class Canary:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (canary,)

    path = folder / "coronal.safetensors"
    path.write_bytes(pickle.dumps(Canary()))
    digest = sha256(path.read_bytes()).hexdigest()
    edit(folder, set_key("files", path.name, to=digest))
    with refusal(ModelError, path):
        load_model(folder)
    assert not canary.exists()


def tensors_file(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        tensors_file({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 8]}}),
        tensors_file(
            {
                str(n): {"dtype": "F32", "shape": [0], "data_offsets": [8, 8]}
                for n in range(20_000)
            }
        ),
        (2**63).to_bytes(8, "little") + b"{}",
        b"",
    ],
    ids=["type", "names", "header", "empty"],
)
def test_weights_that_are_no_safetensors_are_refused(folder: Path, data: bytes) -> None:
    path = folder / "coronal.safetensors"
    path.write_bytes(data)
    edit(folder, set_key("files", path.name, to=sha256(data).hexdigest()))
    with refusal(ModelError, path):
        load_model(folder)


def test_a_file_that_is_large_beyond_reason_is_not_read(folder: Path) -> None:
    with (folder / "axial.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    with refusal(ModelError, folder / "axial.safetensors"):
        load_model(folder)


def test_the_background_is_always_predicted(folder: Path) -> None:
    edit(folder, set_key("not_predicted", to=[SCHEME.names[0]]))
    with refusal(ModelError, folder / "model.yaml"):
        load_model(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not readable YAML"),
        ("just text", "is not a model's description"),
        ("a: &a [1]\nb: *a\n", "is not readable YAML"),
        ("a: !!bool x\n", "is not readable YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "is not readable YAML"),
        ("#" * (1 << 20) + "\n", "too large"),
        (
            "format: 1\nname: a\nformat: 1\n",
            r"model\.yaml: the key format occurs twice, line 3",
        ),
        (
            "fusion:\n  weights: {axial: 1, 'axial': 0}\n",
            "the key axial occurs twice, line 2",
        ),
        ("a: " + ":".join(["1"] * 1000), "holds an endless number, line 1"),
        ("[" * 20_000, "is not readable YAML"),
    ],
)
def test_a_description_that_is_not_plain_yaml_is_refused(
    folder: Path, text: str, message: str
) -> None:
    (folder / "model.yaml").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_info(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with refusal(ModelError, tmp_path):
        read_info(tmp_path)
