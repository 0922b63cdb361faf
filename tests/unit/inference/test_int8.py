"""Quantised networks in OpenVINO: labels of float32, errors, and nothing sent."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import psutil
import pytest
import torch
from helpers.overfitted import random_model
from helpers.refusals import refusal

from trinat.segmentation.errors import DeviceError, ModelError
from trinat.segmentation.inference.int8 import FOLDER, LIST, Int8Runtime, read_graph
from trinat.segmentation.inference.network import DeviceNetworks, ViewNetwork, thick
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.zoo import shipped_models
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.views import View, slice_axes, to_slices
from trinat.segmentation.synthetic.phantom import phantom

pytest.importorskip("openvino")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("fast", [View.CORONAL])


@pytest.fixture(scope="module")
def runtime(model: Model) -> Int8Runtime:
    return Int8Runtime(model, View.CORONAL)


def test_labels_are_those_of_float32_and_probabilities_have_the_sum_1(
    model: Model, runtime: Int8Runtime
) -> None:
    scan, _ = phantom(3, spacing_mm=(3, 3, 3))
    volume = torch.from_numpy(conform(scan).volume.data)
    slices = thick(to_slices(volume, slice_axes(View.CORONAL)), 3)
    # Sides that are no multiple of what the network halves.
    middle = slices[len(slices) // 2 :][:1, :, 40:191, 30:171]
    found = runtime(middle)
    expected = TorchRuntime(model.networks[View.CORONAL], CPU, torch.float32)(middle)
    assert found.shape == expected.shape == (1, 151, 141, 33)
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]))
    labels = expected.argmax(-1)
    assert labels.unique().numel() > 5
    brain = labels > 0
    same = found.argmax(-1) == labels
    assert same[brain].float().mean() > 0.95


@pytest.mark.parametrize("folder", ["fast", "any", "manual", "fast/parcels"])
def test_shipped_graphs_were_made_from_the_shipped_weights(folder: str) -> None:
    name, *parcels = folder.split("/")
    shipped = load_model(shipped_models()[name].joinpath(*parcels))
    for view in shipped.networks:
        assert read_graph(shipped, view)


def test_a_result_stays_as_it_is_when_the_next_is_computed(
    runtime: Int8Runtime,
) -> None:
    first = runtime(torch.zeros(1, 3, 16, 16))
    copy = first.clone()
    second = runtime(torch.ones(1, 3, 16, 16))
    assert torch.equal(first, copy)
    assert not torch.equal(first, second)


def test_there_are_no_samples(runtime: Int8Runtime) -> None:
    runtime.set_dropout(False)
    with pytest.raises(DeviceError):
        runtime.set_dropout(True)


def test_classes_that_are_not_predicted_never_win(model: Model) -> None:
    info = model.info.model_copy(
        update={"not_predicted": ("Left-Cerebral-White-Matter",)}
    )
    changed = Model(model.folder, info, model.scheme, model.networks)
    found = Int8Runtime(changed, View.CORONAL)(torch.ones(1, 3, 16, 16))
    assert float(found[..., 1].max()) == 0


def test_a_gpu_is_refused(model: Model) -> None:
    with pytest.raises(DeviceError):
        DeviceNetworks(model, [View.CORONAL], torch.device("meta"), precision="int8")


def test_a_model_without_int8_networks_is_refused() -> None:
    folder = random_model()
    with refusal(ModelError, folder, remedy="--int8"):
        Int8Runtime(load_model(folder, [View.CORONAL]), View.CORONAL)


@pytest.mark.parametrize("damage", ["graph", "weights"])
def test_a_damaged_graph_and_one_of_other_weights_are_refused(
    model: Model, damage: str, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    shutil.copytree(model.folder, folder)
    path = folder / FOLDER / "coronal.onnx"
    if damage == "graph":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        listed = json.loads((folder / FOLDER / LIST).read_text())
        listed[path.name]["weights"] = "0" * 64
        (folder / FOLDER / LIST).write_text(json.dumps(listed))
    with refusal(ModelError, path, remedy="--int8"):
        Int8Runtime(load_model(folder, [View.CORONAL]), View.CORONAL)


def test_no_socket_is_opened(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by Python nor by OpenVINO's libraries."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    before = open_sockets()
    Int8Runtime(model, View.CORONAL)(torch.zeros(1, 3, 16, 16))
    assert open_sockets() == before


def open_sockets() -> set[str]:
    """Return the sockets of this process, as Linux names them; empty on other systems."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return set()
    targets = set()
    for number in folder.iterdir():
        if number.is_symlink():
            targets.add(str(number.readlink()))
    return {target for target in targets if target.startswith("socket:")}


def test_a_view_that_is_complete_releases_the_memory_of_its_network(
    model: Model, runtime: Int8Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    release = runtime.release

    def measured_release() -> None:
        before = psutil.Process().memory_info().rss
        release()
        released.append(before - psutil.Process().memory_info().rss)

    monkeypatch.setattr(runtime, "release", measured_release)
    network = ViewNetwork(model.networks[View.CORONAL].config, runtime)
    volume = torch.rand(192, 4, 192, generator=torch.Generator().manual_seed(0))
    axes = slice_axes(View.CORONAL)
    before = [part.probabilities for part in network.probabilities(volume, axes)]
    assert len(released) == 1
    again = [part.probabilities for part in network.probabilities(volume, axes)]
    torch.testing.assert_close(before, again)
    # The first release also trims what other tests have left. Activations take some 75 MiB.
    if sys.platform == "linux":
        assert released[1] > 50 * 2**20
