"""Checkpoints of the authors' port are converted to networks that compute the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import refusal
from oracle import quicknat_port as port
from torch import nn

from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.foreign import read_port
from trinat.segmentation.models.quicknat import QuickNat

X = torch.randn(2, 1, 32, 16, generator=torch.Generator().manual_seed(0))


def write(path: Path, content: Any, zipped: bool = True) -> Path:
    with warnings.catch_warnings():
        # The older format tries to store the source code of classes, and warns that it cannot.
        warnings.simplefilter("ignore")
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def logits(network: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return network(X)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("form", ["module", "state dict", "solver", "parallel"])
def test_each_form_of_checkpoint_computes_what_the_port_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, zipped: bool
) -> None:
    original = port.trained()
    content = {
        "module": original,
        "state dict": original.state_dict(),
        "solver": {"epoch": 3, "arch": "quicknat", "state_dict": original.state_dict()},
        "parallel": {f"module.{k}": v for k, v in original.state_dict().items()},
    }[form]
    with monkeypatch.context() as named:
        port.as_the_authors_name_it(named)
        path = write(tmp_path / "port.pth.tar", content, zipped)
    torch.testing.assert_close(
        logits(read_port(path)), logits(original), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("gate", "kind"),
    [
        (None, "none"),
        (port.ChannelGate, "channel"),
        (port.SpatialGate, "spatial"),
        (port.BothGates, "both"),
    ],
)
def test_the_architecture_is_told_by_the_weights(
    tmp_path: Path, gate: type[nn.Module] | None, kind: str
) -> None:
    original = port.trained(filters=6, classes=5, gate=gate)
    got = read_port(write(tmp_path / "port.pth", original.state_dict()))
    assert (got.config.filters, got.config.classes, got.config.kernel) == (6, 5, 5)
    assert got.config.excitation == kind
    torch.testing.assert_close(logits(got), logits(original), rtol=1e-5, atol=1e-5)


def test_a_whole_module_tells_its_dropout_and_a_state_dict_does_not(
    tmp_path: Path,
) -> None:
    original = port.trained()
    assert read_port(write(tmp_path / "a", original)).config.dropout == 0.3
    assert read_port(write(tmp_path / "b", original.state_dict())).config.dropout == 0.2


def test_half_precision_weights_are_taken(tmp_path: Path) -> None:
    original = port.trained().half()
    got = read_port(write(tmp_path / "port.pth", original.state_dict()))
    torch.testing.assert_close(
        logits(got), logits(original.float()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.filterwarnings("ignore")
def test_monais_network_is_refused_with_a_sentence(tmp_path: Path) -> None:
    from monai.networks.nets.quicknat import Quicknat

    network = Quicknat(num_classes=33, num_filters=4)
    with refusal(ModelError, tmp_path / "state.pth"):
        read_port(write(tmp_path / "state.pth", network.state_dict()))
    with refusal(ModelError, tmp_path / "module.pth"):
        read_port(write(tmp_path / "module.pth", network))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: s.pop("encode2.conv1.weight"),
            "lacks encoders.1.layers.0",
        ),
        (lambda s: s.pop("classifier.conv.weight"), "is no checkpoint of QuickNAT"),
        (lambda s: s.update(head=torch.zeros(1)), "it has head"),
        (
            lambda s: s.update({"encode1.conv4.bias": torch.zeros(1)}),
            "it has encode1.conv4.bias",
        ),
        (
            lambda s: s.update({"encode1.conv1.scale": torch.zeros(1)}),
            "has encoders.0.layers.0.convolution.scale unexpectedly",
        ),
        (
            lambda s: s.update({"encode2.conv1.bias": torch.zeros(3)}),
            r"has shape \(3,\)",
        ),
        (lambda s: s["encode2.conv1.bias"].fill_(torch.inf), "not finite"),
        (
            lambda s: s.update({"encode1.conv1.weight": torch.zeros(4)}),
            "is no checkpoint",
        ),
        (
            lambda s: s.update({"encode1.conv1.weight": torch.zeros(4, 1, 2, 2)}),
            "kernel: ",
        ),
    ],
)
def test_weights_that_are_not_quicknats_are_refused(
    tmp_path: Path, change: Any, message: str
) -> None:
    state = port.trained().state_dict()
    change(state)
    with pytest.raises(ModelError, match=message):
        read_port(write(tmp_path / "port.pth", state))


@pytest.mark.parametrize(
    "content", [{}, [torch.zeros(1)], {"a": 1}, torch.zeros(3)], ids=repr
)
def test_a_file_without_a_network_is_refused(tmp_path: Path, content: Any) -> None:
    with refusal(ModelError, tmp_path / "port.pth"):
        read_port(write(tmp_path / "port.pth", content))


def test_modules_that_stand_in_many_places_or_in_themselves_are_refused(
    tmp_path: Path,
) -> None:
    shared = nn.Module()
    for _ in range(40):
        above = nn.Module()
        above._modules.update(a=shared, b=shared)
        shared = above
    own = nn.Module()
    own._modules["me"] = own
    for module in (shared, own):
        with refusal(ModelError, tmp_path / "port.pth"):
            read_port(write(tmp_path / "port.pth", module))


def test_a_dictionary_that_holds_itself_is_refused(tmp_path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    with refusal(ModelError, tmp_path / "port.pth"):
        read_port(write(tmp_path / "port.pth", content))


def test_a_dropout_that_is_no_number_is_refused(tmp_path: Path) -> None:
    original = port.trained()
    for module in original.modules():
        if hasattr(module, "p"):
            module.p = [0.1]
    with refusal(ModelError, tmp_path / "port.pth"):
        read_port(write(tmp_path / "port.pth", original))


def test_what_comes_back_is_ready_for_inference(tmp_path: Path) -> None:
    got = read_port(write(tmp_path / "port.pth", port.trained().state_dict()))
    assert isinstance(got, QuickNat)
    assert not got.training
