"""A model folder comes back as it was saved, and anything wrong with it is said."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from pydantic import ValidationError

from trinat.segmentation.errors import ModelError, OutputError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import (
    Model,
    load_model,
    read_info,
    save_model,
    update_info,
)
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    Preprocessing,
    Template,
    Training,
)
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import SliceAxes, View

SCHEME = load_scheme("quicknat33")
MERGED = len(SCHEME.merged.scheme)


def network(classes: int = 33, **settings: Any) -> QuickNat:
    """A small network whose norms and slopes are not the ones it was made with."""
    made = QuickNat(
        QuickNatConfig(classes=classes, filters=4, depth=1, kernel=3, **settings)
    )
    for name, tensor in made.state_dict().items():
        if "norm" in name and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model of three views."""
    networks = {
        View.CORONAL: network(),
        View.AXIAL: network(channels=3),
        View.SAGITTAL: network(MERGED),
    }
    save_model(tmp_path / "model", Description(name="small"), networks)
    return tmp_path / "model"


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change model.yaml."""
    path = folder / "model.yaml"
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change the coronal weights, hash included."""
    path = folder / "coronal.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)
    digest = sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda content: content["files"].update({path.name: digest}))


@pytest.mark.parametrize("excitation", ["none", "both"])
def test_a_model_comes_back_as_it_was_saved(tmp_path: Path, excitation: str) -> None:
    saved = network(excitation=excitation).eval()
    save_model(tmp_path / "model", Description(name="small"), {View.CORONAL: saved})
    loaded = load_model(tmp_path / "model").networks[View.CORONAL]
    x = torch.randn(2, 1, 11, 7)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(x), saved(x), rtol=0, atol=0)
    assert loaded.config == saved.config
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_loaded_network_can_be_trained_on(folder: Path) -> None:
    loaded = load_model(folder).networks[View.CORONAL].train().requires_grad_(True)
    loaded(torch.randn(2, 1, 8, 8)).sum().backward()
    assert loaded.state_dict()["encoders.0.layers.0.norm.num_batches_tracked"] == 1


def test_half_precision_halves_the_convolutions_and_spares_the_norms(
    tmp_path: Path,
) -> None:
    saved = network()
    networks = {View.CORONAL: saved}
    save_model(
        tmp_path / "model", Description(name="small"), networks, precision="float16"
    )
    stored = safetensors.torch.load_file(tmp_path / "model" / "coronal.safetensors")
    assert stored["classifier.weight"].dtype == torch.float16
    assert stored["decoders.0.layers.0.norm.running_var"].dtype == torch.float32
    loaded = load_model(tmp_path / "model").networks[View.CORONAL]
    for name, tensor in saved.state_dict().items():
        if tensor.ndim == 4:
            tensor = tensor.half().float()
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(
                loaded.state_dict()[name], tensor, rtol=0, atol=0
            )


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_description_comes_back(tmp_path: Path) -> None:
    said = Description(
        name="said",
        preprocessing=Preprocessing(
            axes="LIA",
            scaling="minimum-maximum",
            slices={View.CORONAL: SliceAxes(2, 0, 1)},
        ),
        not_predicted=("CSF",),
        training=Training(data="20 label maps", licence="Apache-2.0", slices_seen=7),
        metrics={"heads": {"dice": 0.8, "scans": 3}},
    )
    save_model(tmp_path / "said", said, {View.CORONAL: network()})
    loaded = load_model(tmp_path / "said")
    assert (
        loaded.info.model_dump(include=set(Description.model_fields))
        == said.model_dump()
    )
    assert loaded.info.preprocessing.slice_axes(View.CORONAL) == SliceAxes(2, 0, 1)
    assert loaded.info.preprocessing.slice_axes(View.AXIAL) == SliceAxes(2, 1, 0)
    assert loaded.not_predicted.tolist() == [SCHEME.names.index("CSF")]
    assert loaded.info.versions.keys() == {"trinat", "torch"}


def test_a_shipped_description_is_written_again_as_it_is(tmp_path: Path) -> None:
    shipped = (find_model("fast") / "model.yaml").read_bytes()
    (tmp_path / "model.yaml").write_bytes(shipped)
    update_info(tmp_path)
    assert (tmp_path / "model.yaml").read_bytes() == shipped


def test_a_model_without_a_prior_does_not_mention_one(folder: Path) -> None:
    assert "prior" not in yaml.safe_load((folder / "model.yaml").read_text())


def test_sagittal_classes_may_be_merged(folder: Path) -> None:
    model = load_model(folder)
    assert [model.is_merged(view) for view in View] == [False, False, True]


def test_some_views_can_be_loaded_without_the_others(folder: Path) -> None:
    (folder / "axial.safetensors").unlink()
    assert list(load_model(folder, [View.SAGITTAL]).networks) == [View.SAGITTAL]


def test_fusion_weights_are_the_papers_and_sum_to_1(folder: Path) -> None:
    weights = load_model(folder).fusion_weights(
        [View.CORONAL, View.AXIAL, View.SAGITTAL]
    )
    assert weights.shape == (3, 33)
    np.testing.assert_allclose(weights[:, 5], [0.4, 0.4, 0.2], rtol=1e-6)


def test_fusion_weights_of_two_views_share_what_the_third_had(folder: Path) -> None:
    weights = load_model(folder).fusion_weights([View.SAGITTAL, View.CORONAL])
    np.testing.assert_allclose(weights[:, 0], [1 / 3, 2 / 3], rtol=1e-6)


def test_fusion_weights_can_differ_for_a_structure(tmp_path: Path) -> None:
    name = SCHEME.names[7]
    fusion = Fusion(per_class={name: {View.CORONAL: 3.0, View.AXIAL: 1.0}})
    networks = {View.CORONAL: network(), View.AXIAL: network()}
    save_model(tmp_path / "model", Description(name="small", fusion=fusion), networks)
    weights = load_model(tmp_path / "model").fusion_weights([View.CORONAL, View.AXIAL])
    assert weights[:, 7].tolist() == [0.75, 0.25]
    assert weights[:, 6].tolist() == [0.5, 0.5]


def test_views_that_weigh_nothing_are_refused(tmp_path: Path) -> None:
    fusion = Fusion(weights={View.AXIAL: 1.0})
    save_model(
        tmp_path / "m", Description(name="m", fusion=fusion), {View.CORONAL: network()}
    )
    with pytest.raises(ModelError, match="no weight"):
        load_model(tmp_path / "m").fusion_weights([View.CORONAL])


def test_a_scheme_of_ones_own_travels_with_the_model(tmp_path: Path) -> None:
    rows = (
        "index name freesurfer side partner color abbreviation group\n"
        "0 Background 0 n/a n/a #000000 BG background\n"
        "1 Brain 2 n/a n/a #ffffff B all\n"
    ).replace(" ", "\t")
    table = tmp_path / "own.tsv"
    table.write_text(rows)
    description = Description(name="small", labels="own")
    save_model(
        tmp_path / "model", description, {View.AXIAL: network(2)}, label_table=table
    )
    table.unlink()
    assert load_model(tmp_path / "model").scheme.names == ("Background", "Brain")
    (tmp_path / "model" / "own.tsv").write_text(rows.replace("Brain", "Skull"))
    with pytest.raises(ModelError, match=r"own\.tsv: is not the file that was saved"):
        load_model(tmp_path / "model")


def test_a_label_table_of_another_name_is_refused(tmp_path: Path) -> None:
    table = Path(str(resources.files("trinat.configs") / "labels" / "left4.tsv"))
    with pytest.raises(ModelError, match=r"not named own\.tsv"):
        save_model(
            tmp_path / "m", Description(name="m", labels="own"), {}, label_table=table
        )


def test_a_scheme_of_one_side_has_no_merged_classes(tmp_path: Path) -> None:
    scheme = load_scheme("left4")
    description = Description(name="m", labels="left4")
    save_model(tmp_path / "m", description, {View.SAGITTAL: network(len(scheme))})
    assert not load_model(tmp_path / "m").is_merged(View.SAGITTAL)


def test_an_existing_folder_is_replaced_only_when_asked(folder: Path) -> None:
    other = {View.AXIAL: network()}
    with pytest.raises(ModelError, match="is there already"):
        save_model(folder, Description(name="other"), other)
    assert read_info(folder).name == "small"
    save_model(folder, Description(name="other"), other, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == [
        "axial.safetensors",
        "model.yaml",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_failed_write_leaves_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if (
            target == folder
            and list(self.glob("*.yaml"))
            and read_info(self).name == "other"
        ):
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        save_model(
            folder, Description(name="other"), {View.AXIAL: network()}, overwrite=True
        )
    assert load_model(folder).name == "small"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


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


def set_key(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_key("format", to=2), "model format 2, and this version reads 1"),
        (set_key("colour", to=1), "colour: there is no such setting"),
        (set_key("name", to="../a"), "name: String should match"),
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
        (
            set_key("fusion", "per_class", to={"Nose": {"axial": 1}}),
            "Nose is no structure",
        ),
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
            set_key("fusion", "per_class", to={"CSF": {"axial": 1e39}}),
            "fusion.per_class.CSF.axial",
        ),
        (set_key("precision", to="float16"), "is stored as torch.float32, not float16"),
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
    with pytest.raises(
        ModelError, match=r"axial\.safetensors: is not the file that was saved"
    ):
        load_model(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "axial.safetensors").unlink()
    with pytest.raises(ModelError, match=r"axial\.safetensors: is missing"):
        load_model(folder)


def test_a_view_that_is_not_there_is_named(tmp_path: Path) -> None:
    save_model(tmp_path / "m", Description(name="m"), {View.AXIAL: network()})
    with pytest.raises(ModelError, match="has no coronal network"):
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
    with pytest.raises(ModelError, match="is not a safetensors file"):
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
    with pytest.raises(
        ModelError, match=r"coronal\.safetensors: is not a safetensors file"
    ):
        load_model(folder)


def test_a_file_that_is_large_beyond_reason_is_not_read(folder: Path) -> None:
    with (folder / "axial.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        ModelError, match=r"axial\.safetensors: is too large for a model's file"
    ):
        load_model(folder)


def test_the_background_is_always_predicted(folder: Path) -> None:
    edit(folder, set_key("not_predicted", to=[SCHEME.names[0]]))
    with pytest.raises(ModelError, match="is always predicted"):
        load_model(folder)


TEMPLATE = {
    "shares": np.ones((5, 5, 5, 33), np.uint8),
    "affine": np.eye(4),
    "centroids": np.full((33, 3), np.nan),
}


def npz(**changes: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{**TEMPLATE, **changes})
    return buffer.getvalue()


def archive(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in TEMPLATE:
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(header: str) -> bytes:
    return (
        b"\x93NUMPY\x01\x00"
        + (len(header) + 1).to_bytes(2, "little")
        + header.encode()
        + b"\n"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(b"abc"), "of other classes"),
        (archive(npy("(" * 9000)), "is no prior"),
        (archive(npy("__import__('os').getcwd()")), "is no prior"),
        (
            archive(
                npy(str({"descr": "|u1", "fortran_order": False, "shape": (10**15,)}))
            ),
            "is no prior",
        ),
        (npz(shares=np.array([{}], object)), "is no prior"),
        (npz(centroids=np.zeros((32, 3))), "of other classes"),
        (npz(shares=np.zeros((0, 5, 5, 33), np.uint8)), "without a place"),
        (npz(affine=np.zeros((4, 4))), "without a place"),
        (npz(affine=np.full((4, 4), np.nan)), "without a place"),
        (npz(affine=np.full((4, 4), "a")), "without a place"),
        (npz(centroids=np.full((33, 3), np.inf)), "without a place"),
    ],
)
def test_a_prior_that_is_none_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Template.from_bytes(data, 33, Path("prior.npz"))


def test_a_sound_prior_is_taken() -> None:
    assert Template.from_bytes(npz(), 33, Path("prior.npz")).shares.shape == (
        5,
        5,
        5,
        33,
    )


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
        ("a: !!int ''", "is not readable YAML"),
        ("a: !!bool x", "is not readable YAML"),
        ("a: !!timestamp x", "is not readable YAML"),
    ],
)
def test_a_description_that_is_not_plain_yaml_is_refused(
    folder: Path, text: str, message: str
) -> None:
    (folder / "model.yaml").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_info(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model here \(model.yaml is missing\)"):
        read_info(tmp_path)


def test_a_description_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Description(name="small").name = "large"  # type: ignore[misc]


def test_a_model_of_another_process_is_the_same_bytes(tmp_path: Path) -> None:
    made = network()
    for name in ("a", "b"):
        save_model(tmp_path / name, Description(name="same"), {View.AXIAL: made})
    assert read_info(tmp_path / "a") == read_info(tmp_path / "b")
    assert isinstance(load_model(tmp_path / "a"), Model)
