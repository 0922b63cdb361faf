"""A network on a volume: the part that it looks at, and the place of its results."""

from __future__ import annotations

import pytest
import torch
from helpers.overfitted import random_model

from trinat.segmentation.inference.network import ViewNetwork
from trinat.segmentation.inference.runtime import TorchRuntime
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.quicknat import QuickNat, QuickNatConfig
from trinat.segmentation.space.views import View, slice_axes, to_slices

SHAPE = (40, 12, 56)  # coronal slices of 56 rows and 40 columns
AXES = slice_axes(View.CORONAL)


def ready(
    network: Network, dtype: torch.dtype = torch.float32, *, batch: int
) -> ViewNetwork:
    runtime = TorchRuntime(network, torch.device("cpu"), dtype)
    return ViewNetwork(network.config, runtime, batch=batch)


@pytest.fixture(scope="module")
def network() -> ViewNetwork:
    model = load_model(random_model(), [View.CORONAL])
    return ready(model.networks[View.CORONAL], batch=4)


@pytest.fixture(scope="module")
def volume() -> torch.Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))


def test_parts_with_nothing_to_look_at_are_float32_like_all_others(volume) -> None:
    model = load_model(random_model())
    half = ready(model.networks[View.CORONAL], torch.bfloat16, batch=4)
    within = torch.zeros(SHAPE, dtype=torch.bool)
    parts = list(half.probabilities(volume, AXES, within=within))
    assert {part.probabilities.dtype for part in parts} == {torch.float32}


def test_only_rows_and_columns_around_a_mask_are_looked_at(network, volume) -> None:
    multiple = 2**network.runtime.network.config.depth
    within = torch.zeros(SHAPE, dtype=torch.bool)
    within[20:23, 5, 50:] = True  # in the second part of four slices
    # The largest part comes first, as buffers that grow leave gaps in memory.
    second, first, third = network.probabilities(volume, AXES, within=within)
    assert (first.slices.start, third.slices.start) == (0, 8)
    assert first.probabilities.shape[:3] == third.probabilities.shape[:3] == (4, 0, 0)
    assert second.slices == slice(4, 8, 1)
    for side, least, most in ((second.rows, 50, 56), (second.columns, 20, 23)):
        assert side.start <= least
        assert side.stop >= most
        assert (side.stop - side.start) % multiple == 0
        assert side.stop - side.start < most - least + multiple
    assert second.rows.stop == 56  # not beyond the end
    cut = to_slices(volume[second.columns, :, second.rows], AXES)
    whole = next(
        iter(network.probabilities(volume[second.columns, 4:8, second.rows], AXES))
    )
    assert (
        whole.probabilities.shape
        == second.probabilities.shape
        == (4, *cut.shape[1:], 33)
    )
    # The inner slices only: the end slices lack neighbours here.
    torch.testing.assert_close(second.probabilities[1:3], whole.probabilities[1:3])


def test_a_mask_of_everything_changes_nothing(network, volume) -> None:
    everything = torch.ones(SHAPE, dtype=torch.bool)
    plain = list(network.probabilities(volume, AXES))
    masked = list(network.probabilities(volume, AXES, within=everything))
    assert [part[:3] for part in plain] == [part[:3] for part in masked]
    for one, other in zip(plain, masked, strict=True):
        torch.testing.assert_close(
            one.probabilities, other.probabilities, rtol=0, atol=0
        )


@pytest.fixture(scope="module")
def wide() -> QuickNat:
    torch.manual_seed(0)
    return QuickNat(QuickNatConfig(classes=5, filters=32, kernel=5, depth=2)).eval()


def test_a_network_made_ready_gives_what_it_gave(wide, volume) -> None:
    network = ready(wide, batch=6)
    with torch.inference_mode():
        expected = (
            wide(to_slices(volume, AXES)[:6, None]).softmax(1).permute(0, 2, 3, 1)
        )
    found = next(iter(network.probabilities(volume, AXES))).probabilities
    # Pooling may choose another of two values that differ by rounding alone, on any processor.
    assert (found - expected).abs().quantile(0.9) < 1e-5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("view", list(View))
def test_a_mirrored_mean_of_a_mirrored_volume_is_the_mirrored_mean(view: View) -> None:
    """Also if a sagittal network distinguishes sides, as one for thick slices may."""
    torch.manual_seed(0)
    config = QuickNatConfig(classes=3, channels=3, filters=16)
    network = ready(QuickNat(config), batch=16)
    volume, axes = torch.rand(16, 16, 16), slice_axes(view)
    partners = torch.tensor([0, 2, 1])

    def mean(of: torch.Tensor) -> torch.Tensor:
        parts = network.probabilities(of, axes, mirror=(0, partners))
        return torch.cat([part.probabilities for part in parts])

    side = (axes.along, axes.rows, axes.columns).index(0)
    torch.testing.assert_close(
        mean(volume.flip(0)), mean(volume).flip(side)[..., partners]
    )
