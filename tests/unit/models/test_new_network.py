"""The example network of CONTRIBUTING.md works."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from trinat.segmentation.models import architectures
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View

HEAD = """
from typing import Literal
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, pad
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.blocks import Layer
"""


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    guide = Path(__file__).parents[3] / "CONTRIBUTING.md"
    shown = re.search(
        r"^ {8}class UNetConfig.+?(?=\n\n {3}\S)", guide.read_text(), re.S | re.M
    )
    assert shown
    names: dict[str, Any] = {}
    source = HEAD + textwrap.dedent(shown[0])
    exec(compile(source, str(guide), "exec", dont_inherit=True), names)
    config_class, network_class = names["UNetConfig"], names["UNet"]
    known = {**architectures._NETWORKS, "unet": (config_class, network_class)}
    monkeypatch.setattr(architectures, "_NETWORKS", known)
    torch.manual_seed(0)
    return architectures.build(config_class(channels=3, filters=4, depth=2))


def test_it_gives_logits_of_slices_whose_sides_do_not_halve(network: Network) -> None:
    logits = network(torch.randn(2, 3, 21, 30))
    assert logits.shape == (2, 33, 21, 30)
    logits.square().mean().backward()
    assert all(
        parameter.grad.any()
        for name, parameter in network.named_parameters()
        if name.endswith("convolution.weight")
    )


def test_its_norms_fold(network: Network) -> None:
    network.eval()
    slices = torch.randn(1, 3, 20, 24)
    with torch.inference_mode():
        torch.testing.assert_close(network.fold()(slices), network(slices))


def test_a_model_folder_has_it(network: Network, tmp_path: Path) -> None:
    network.eval()
    save_model(tmp_path / "m", Description(name="m"), {View.CORONAL: network})
    found = load_model(tmp_path / "m").networks[View.CORONAL]
    assert isinstance(found, type(network))
    assert isinstance(found.config, NetworkConfig)
    slices = torch.randn(1, 3, 20, 24)
    with torch.inference_mode():
        torch.testing.assert_close(found(slices), network(slices))
