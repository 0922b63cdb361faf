"""Winograd's convolution gives what the plain one gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from segmentation.models.blocks import max_pool
from segmentation.models.winograd import WinogradConv2d, max_pool_rounded


def _pair(channels: int = 32, filters: int = 33, *, bias: bool = True, **kind: object) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(channels, filters, 5, padding=2, bias=bias, **kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(4, 4), (16, 12), (5, 7), (1, 9), (10, 3)])
def test_it_equals_the_plain_convolution_whatever_the_size(size: tuple[int, int]) -> None:
    plain = _pair().double()
    x = torch.randn(3, 32, *size, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        torch.testing.assert_close(WinogradConv2d(plain)(x), plain(x), rtol=1e-10, atol=1e-10)


def test_no_bias_is_none_added() -> None:
    plain = _pair(bias=False).double()
    x = torch.randn(1, 32, 8, 8, dtype=torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(WinogradConv2d(plain)(x), plain(x), rtol=1e-10, atol=1e-10)


def test_a_large_image_is_worked_on_in_parts_and_small_ones_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = _pair().double()
    x = torch.randn(5, 32, 21, 22, dtype=torch.float64)
    row = 64 * 6 * 32 * 8  # bytes of one row of tiles
    expected = plain(x).detach()
    for part in (1, 2 * row, 2 * 6 * row):
        monkeypatch.setattr("segmentation.models.winograd._CHUNK_BYTES", part)
        with torch.inference_mode():
            torch.testing.assert_close(WinogradConv2d(plain)(x), expected, rtol=1e-10, atol=1e-10)


def test_in_float32_it_is_about_as_exact_as_the_plain_one() -> None:
    plain = _pair(192, 64)
    x = torch.randn(1, 192, 40, 40)
    with torch.inference_mode():
        exact = conv2d(x.double(), plain.weight.double(), plain.bias.double(), padding=2)  # type: ignore[union-attr]
        error = (WinogradConv2d(plain)(x) - exact).abs().max() / exact.std()
    assert error < 2e-4


def test_it_stands_in_for_wide_convolutions_of_5x5_alone() -> None:
    assert WinogradConv2d.suits(_pair())
    assert not WinogradConv2d.suits(_pair(3, 64))
    assert not WinogradConv2d.suits(_pair(stride=2))
    assert not WinogradConv2d.suits(_pair(32, 32, groups=2))
    assert not WinogradConv2d.suits(_pair(padding_mode="reflect"))
    assert not WinogradConv2d.suits(nn.Conv2d(32, 32, 3, padding=1))
    assert not WinogradConv2d.suits(nn.Identity())


def test_rounding_breaks_no_ties_in_pooling() -> None:
    x = torch.zeros(1, 2, 2, 4)
    x[0, 0, :, :2] = torch.tensor(((1.0, 1 + 2e-7), (1 - 2e-7, 1 + 5e-7)))
    x[0, 0, :, 2:] = torch.tensor(((1.0, 0.9), (1.001, 0.2)))
    x[0, 1] = -x[0, 0]
    values, where = max_pool_rounded(x)
    assert where.tolist() == [[[[0, 6]], [[0, 7]]]]
    torch.testing.assert_close(values, max_pool(x)[0], rtol=1e-5, atol=1e-5)


def test_pooling_goes_where_the_plain_one_goes() -> None:
    x = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(max_pool_rounded(x)[1], max_pool(x)[1], rtol=0, atol=0)
