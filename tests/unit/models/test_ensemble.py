"""Ensembles: the mean of probabilities, in a folder, used like any other network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trinat.segmentation.inference.network import ViewNetwork
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.models.architectures import Ensemble, EnsembleConfig, build
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.models.quicknat import QuickNatConfig
from trinat.segmentation.space.views import View, slice_axes

MEMBER = QuickNatConfig(classes=4, filters=4, kernel=3, depth=2)
CPU = torch.device("cpu")


@pytest.fixture
def ensemble() -> Ensemble:
    torch.manual_seed(0)
    made = build(EnsembleConfig.of(MEMBER, 3))
    assert isinstance(made, Ensemble)
    return made.eval()


def probabilities(network: torch.nn.Module, slices: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return network(slices).softmax(1)


def test_its_probabilities_are_the_mean_of_the_members(ensemble: Ensemble) -> None:
    slices = torch.rand(2, 1, 10, 12)
    alone = [probabilities(member, slices) for member in ensemble.networks]
    torch.testing.assert_close(
        probabilities(ensemble, slices), torch.stack(alone).mean(0)
    )
    torch.testing.assert_close(
        probabilities(ensemble.fold(), slices), torch.stack(alone).mean(0)
    )


def test_a_model_folder_keeps_all_members(ensemble: Ensemble, tmp_path: Path) -> None:
    save_model(
        tmp_path / "m", Description(name="m", labels="tissue4"), {View.AXIAL: ensemble}
    )
    read = load_model(tmp_path / "m").networks[View.AXIAL]
    assert read.config == ensemble.config
    slices = torch.rand(1, 1, 8, 8)
    torch.testing.assert_close(
        probabilities(read, slices), probabilities(ensemble, slices)
    )


def test_samples_are_members_in_turn_and_what_is_untaught_never_wins(
    ensemble: Ensemble,
) -> None:
    runtime = TorchRuntime(ensemble, CPU, torch.float32, never=np.array([2]))
    network = ViewNetwork(ensemble.config, runtime)
    volume, axes = torch.rand(8, 8, 8), slice_axes(View.AXIAL)

    def found() -> torch.Tensor:
        return torch.cat(
            [part.probabilities for part in network.probabilities(volume, axes)]
        )

    together = found()
    assert float(together[..., 2].max()) == 0
    samples = []
    for sample in range(4):
        runtime.vary(sample)
        samples.append(found())
    torch.testing.assert_close(samples[3], samples[0])
    assert not torch.allclose(samples[1], samples[0])
    runtime.vary(None)
    torch.testing.assert_close(found(), together)


def test_a_description_that_is_not_the_members_is_refused() -> None:
    with pytest.raises(ValidationError, match="classes is not the member's"):
        EnsembleConfig(classes=3, filters=4, members=2, member=MEMBER)
