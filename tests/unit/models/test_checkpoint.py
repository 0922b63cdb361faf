"""A model folder is loaded as it was saved."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.refusals import refusal
from helpers.small_model import SCHEME, network

from trinat.segmentation.errors import ModelError, OutputError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.checkpoint import (
    load_model,
    read_info,
    save_model,
)
from trinat.segmentation.models.model_info import (
    Description,
    Fusion,
    Preprocessing,
    Training,
)
from trinat.segmentation.space.views import SliceAxes, View


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
    expected = {View.CORONAL: 0.4, View.AXIAL: 0.4, View.SAGITTAL: 0.2}
    assert weights == pytest.approx(expected, rel=1e-6)


def test_fusion_weights_of_two_views_share_what_the_third_had(folder: Path) -> None:
    weights = load_model(folder).fusion_weights([View.SAGITTAL, View.CORONAL])
    expected = {View.SAGITTAL: 1 / 3, View.CORONAL: 2 / 3}
    assert weights == pytest.approx(expected, rel=1e-6)


def test_views_that_weigh_nothing_are_refused(tmp_path: Path) -> None:
    fusion = Fusion(weights={View.AXIAL: 1.0})
    save_model(
        tmp_path / "m", Description(name="m", fusion=fusion), {View.CORONAL: network()}
    )
    with refusal(ModelError, tmp_path / "m/model.yaml"):
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
    with refusal(ModelError, tmp_path / "model/own.tsv"):
        load_model(tmp_path / "model")


def test_a_model_of_parcels_is_taken_along_file_by_file(tmp_path: Path) -> None:
    save_model(tmp_path / "parcels", Description(name="p"), {View.AXIAL: network()})
    (tmp_path / "parcels" / "MODEL_CARD.md").write_text("of parcels")
    files = {path.name: path.read_bytes() for path in (tmp_path / "parcels").iterdir()}
    # Other files in the folder are not copied.
    (tmp_path / "parcels" / "old").mkdir()
    model = tmp_path / "model"
    description = Description(name="m")
    networks = {View.AXIAL: network()}
    save_model(model, description, networks, parcels=tmp_path / "parcels")
    # Also if the target is the source.
    found = load_model(model).parcels
    save_model(model, description, networks, parcels=found, overwrite=True)
    taken = model / "parcels"
    assert {path.name: path.read_bytes() for path in taken.iterdir()} == files
    assert load_model(taken).name == "p"
    save_model(model, description, networks, overwrite=True)
    assert load_model(model).parcels is None


def test_a_label_table_of_another_name_is_refused(tmp_path: Path) -> None:
    table = Path(str(resources.files("trinat.configs") / "labels" / "left4.tsv"))
    with refusal(ModelError, table):
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
    with refusal(OutputError, folder):
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
    with refusal(OutputError, folder):
        save_model(
            folder, Description(name="other"), {View.AXIAL: network()}, overwrite=True
        )
    assert load_model(folder).name == "small"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
