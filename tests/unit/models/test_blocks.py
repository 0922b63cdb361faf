"""Pooling with indices, layers that fold, excitation: compared with torch and by hand."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, max_unpool2d

from trinat.segmentation.models.blocks import (
    DenseBlock,
    Layer,
    convolve_aligned,
    max_pool,
    max_unpool,
)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["native", "mask"])
def either_path(request: pytest.FixtureRequest) -> str:
    """Run with both ways of pooling; the second is used by compiled, exported and CUDA code."""
    compiling = request.param == "mask"
    with mock.patch.object(torch.compiler, "is_compiling", return_value=compiling):
        yield request.param


def ties(kind: str, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = {
        "constant": torch.zeros(2, 3, 8, 6),
        "few values": torch.randint(-1, 2, (2, 3, 8, 6), generator=generator).float(),
        "distinct": torch.randn(2, 3, 8, 6, generator=generator),
    }[kind]
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["constant", "few values", "distinct"])
def test_pool_and_unpool_equal_torchs(
    either_path: str, kind: str, dtype: torch.dtype
) -> None:
    x = ties(kind, dtype)
    pooled, where = max_pool(x)
    expected, indices = max_pool2d(x, 2, return_indices=True)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=0)
    # Values other than the pooled ones, so that only the indices come from the pooling.
    values = torch.arange(1, pooled.numel() + 1).view(pooled.shape).to(dtype)
    expected = max_unpool2d(values.float(), indices, 2).to(dtype)
    torch.testing.assert_close(max_unpool(values, where), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["constant", "few values", "distinct"])
def test_gradients_of_pool_and_unpool_equal_torchs(either_path: str, kind: str) -> None:
    x, y = (ties(kind, torch.float32).requires_grad_() for _ in range(2))
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    max_unpool(*max_pool(x)).backward(upstream)
    max_unpool2d(*max_pool2d(y, 2, return_indices=True), 2).backward(upstream)
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


def test_the_first_of_equal_maxima_wins(either_path: str) -> None:
    window = torch.tensor([[[[1.0, 5.0], [5.0, 5.0]]]])
    unpooled = max_unpool(*max_pool(window))
    assert unpooled.tolist() == [[[[0.0, 5.0], [0.0, 0.0]]]]


def test_pooling_keeps_channels_last(either_path: str) -> None:
    pooled, where = max_pool(ties("distinct", torch.float32))
    unpooled = max_unpool(pooled, where)
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert unpooled.is_contiguous(memory_format=torch.channels_last)


def test_pooling_is_allowed_where_only_deterministic_algorithms_are() -> None:
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        max_unpool(*max_pool(x)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def with_statistics(layer: Layer) -> Layer:
    """Return a layer whose norm is neither fresh nor trivial."""
    assert isinstance(layer.norm, nn.BatchNorm2d)
    for tensor in (
        layer.norm.running_mean,
        layer.norm.weight.data,
        layer.norm.bias.data,
    ):
        tensor.uniform_(-1, 1)
    layer.norm.running_var.uniform_(0.5, 2)
    return layer.eval()


def test_a_layer_that_ends_with_its_norm_folds_to_the_same_values() -> None:
    layer = with_statistics(Layer(3, 4, 3, "convolution-norm-activation"))
    x = torch.randn(2, 3, 6, 5)
    before = layer(x, nn.ReLU())
    layer.fold()
    assert isinstance(layer.norm, nn.Identity)
    torch.testing.assert_close(layer(x, nn.ReLU()), before, rtol=0, atol=1e-6)


def test_a_layer_that_begins_with_its_norm_keeps_it() -> None:
    layer = with_statistics(Layer(3, 4, 3, "norm-activation-convolution"))
    layer.fold()
    assert isinstance(layer.norm, nn.BatchNorm2d)


def test_a_dense_block_ends_with_excitation_then_dropout() -> None:
    block = DenseBlock(
        2,
        4,
        (3, 3, 1),
        order="norm-activation-convolution",
        activation="prelu",
        excitation="both",
        dropout=0.5,
    )
    seen: list[str] = []
    for name in ("layers.2", "excitation", "dropout"):
        block.get_submodule(name).register_forward_hook(
            lambda *_, name=name: seen.append(name)
        )
    block(torch.randn(1, 2, 4, 4))
    assert seen == ["layers.2", "excitation", "dropout"]


def test_dropout_drops_whole_channels() -> None:
    block = DenseBlock(
        1,
        64,
        (1, 1, 1),
        order="norm-activation-convolution",
        activation="prelu",
        excitation="none",
        dropout=0.5,
    )
    y = block(torch.randn(1, 1, 8, 8))[0].flatten(1)
    dropped = (y == 0).all(1)
    assert 0 < dropped.sum() < 64
    assert (y[~dropped] != 0).any(1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["constant", "few values", "distinct"])
def test_a_gpu_pools_as_a_cpu_does_where_only_deterministic_algorithms_are(
    kind: str, dtype: torch.dtype
) -> None:
    results = []
    torch.use_deterministic_algorithms(True)
    try:
        for device in ("cpu", "cuda"):
            x = ties(kind, dtype).to(device).requires_grad_()
            y = max_unpool(*max_pool(x))
            y.sum().backward()
            results.append((y.detach().cpu(), x.grad.cpu()))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize(("channels", "bias"), [(1, True), (5, False), (8, True)])
def test_zeros_for_missing_channels_change_neither_result_nor_gradients(
    channels: int, bias: bool
) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, 3, 5, padding=2, bias=bias)
    x = torch.randn(2, channels, 9, 7, requires_grad=True)
    outcomes = []
    for convolve in (convolution, lambda x: convolve_aligned(convolution, x)):
        convolution.zero_grad()
        x.grad = None
        y = convolve(x)
        (y**2).sum().backward()
        outcomes.append((y.detach(), x.grad.clone(), convolution.weight.grad.clone()))
    torch.testing.assert_close(outcomes[1], outcomes[0])
