"""Winograd's convolution: the same result as `Conv2d`'s from a sixth of its products.

Eight values in a row, taken as a polynomial at eight points, give four results of a kernel of
five: 8 products instead of 20, and in two dimensions 64 instead of 400. What is saved in products
is partly spent on the way to those points and back, which is bound by memory; so this pays on a
processor, for kernels of 5x5 over many channels, and not for 3x3.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.polynomial.polynomial import polyfromroots
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

from segmentation.models.base import Network
from segmentation.models.blocks import Layer

# Small numbers and their inverses, whose powers neither grow nor vanish; the last is infinity.
_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_TILE = 4  # results in a row
_KERNEL = len(_POINTS) + 2 - _TILE
# What is at work at a time should stay in the processor's cache.
_CHUNK_BYTES = 8 << 20
# With fewer channels the way there and back costs more than the products that it saves.
_FEWEST_CHANNELS = 32
# More than constant values come to differ by, as a share of a channel's largest value.
_ROUNDING = 1e-6


class WinogradConv2d(nn.Module):
    """A `Conv2d` of 5x5 that keeps the size, for inference: (N, C, H, W) channels last."""

    @staticmethod
    def suits(convolution: nn.Module) -> bool:
        """Whether it can stand in for this one, and would be faster."""
        return (
            isinstance(convolution, nn.Conv2d)
            and convolution.kernel_size == (_KERNEL, _KERNEL)
            and convolution.padding == (_KERNEL // 2, _KERNEL // 2)
            and convolution.padding_mode == "zeros"
            and (convolution.stride, convolution.dilation) == ((1, 1), (1, 1))
            and convolution.groups == 1
            and min(convolution.in_channels, convolution.out_channels) >= _FEWEST_CHANNELS
        )

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        forth, kernel, back = (torch.from_numpy(matrix) for matrix in _transforms())
        # At the points, in full precision: (point, point, C, F).
        weight = torch.einsum("pr,qs,fcrs->pqcf", kernel, kernel, convolution.weight.double())
        points, channels, filters = len(kernel), convolution.in_channels, convolution.out_channels
        bias = convolution.bias
        kept = convolution.weight.dtype
        self.weight: Tensor
        self.bias: Tensor
        self.forth: Tensor
        self.back: Tensor
        self.register_buffer("weight", weight.reshape(points**2, channels, filters).to(kept))
        self.register_buffer("bias", weight.new_zeros(filters).to(kept) if bias is None else bias)
        self.register_buffer("forth", forth.to(kept))
        self.register_buffer("back", torch.kron(back, back).to(kept))

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        down, across = -(-height // _TILE), -(-width // _TILE)
        margin = _KERNEL // 2
        right, below = (tiles * _TILE + margin for tiles in (across, down))
        around = (0, 0, margin, right - width, margin, below - height)
        padded = pad(x.permute(0, 2, 3, 1), around).contiguous()
        y = x.new_empty((n, down, _TILE, across, _TILE, len(self.bias)))
        row = len(self.forth) ** 2 * across * channels * x.element_size()
        rows = max(1, min(down, _CHUNK_BYTES // row))
        # Several small images at a time, or a part of one that is large.
        images = max(1, _CHUNK_BYTES // (row * down))
        for image in range(0, n, images):
            for first in range(0, down, rows):
                of_images = slice(image, image + images)
                seen = padded[of_images, first * _TILE : (first + rows) * _TILE + _KERNEL - 1]
                results = self._convolve(seen, across)
                torch.add(results, self.bias, out=y[of_images, first : first + rows])
        y = y.view(n, down * _TILE, across * _TILE, -1)[:, :height, :width]
        return y.permute(0, 3, 1, 2)

    def _convolve(self, x: Tensor, across: int) -> Tensor:
        """Padded (N, H, W, C) to tiles (N, tiles down, 4, tiles across, 4, F)."""
        n, height, _, channels = x.shape
        down = (height - _KERNEL + 1) // _TILE
        points = len(self.forth)
        of_image, of_row, of_column, _ = x.stride()
        # Windows overlap by what a kernel is wider than one: first along rows, then columns.
        windows = x.as_strided(
            (points, n, height, across, channels),
            (of_column, of_image, of_row, _TILE * of_column, 1),
        )
        along = self.forth @ windows.reshape(points, -1)
        line = across * channels
        windows = along.as_strided(
            (points, points, n, down, line),
            (line, n * height * line, height * line, _TILE * line, 1),
        )
        at_points = self.forth @ windows.reshape(points, -1)
        products = at_points.view(points**2, n * down * across, channels) @ self.weight
        tiles = self.back @ products.view(points**2, -1)
        shape = (_TILE, _TILE, n, down, across, len(self.bias))
        return tiles.view(shape).permute(2, 3, 0, 4, 1, 5)


def max_pool_rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """`max_pool` for what is rounded differently from place to place: the first of equals wins.

    In constant background a plain convolution gives exact ties, and the network was trained with
    where those go. Here neighbours differ by rounding, so the earlier get a little on top.
    """
    first = x.new_tensor(((3, 2), (1, 0))).repeat(x.shape[2] // 2, x.shape[3] // 2)
    largest = torch.maximum(x.amax((2, 3), keepdim=True), -x.amin((2, 3), keepdim=True))
    return max_pool2d(torch.addcmul(x, first, largest * _ROUNDING), 2, return_indices=True)


def save_products(network: Network) -> None:
    """Put faster convolutions where there are some, in place: for a processor and float32."""
    for layer in network.modules():
        if isinstance(layer, Layer) and WinogradConv2d.suits(layer.convolution):
            layer.add_module("convolution", WinogradConv2d(layer.convolution))
            for each in network.modules():  # an ensemble's members too
                if isinstance(each, Network):
                    each.pool = max_pool_rounded


def _transforms() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """To the points (8, 8), a kernel to the points (8, 5), and back (4, 8): Toom and Cook's."""
    count = len(_POINTS) + 1
    forth = np.zeros((count, count))
    kernel = np.zeros((count, _KERNEL))
    back = np.zeros((_TILE, count))
    for i, point in enumerate(_POINTS):
        others = [p for p in _POINTS if p != point]
        forth[i, :-1] = polyfromroots(others)
        kernel[i] = point ** np.arange(_KERNEL) / np.prod(point - np.array(others))
        back[:, i] = point ** np.arange(_TILE)
    forth[-1] = polyfromroots(_POINTS)
    kernel[-1, -1] = back[-1, -1] = 1
    # Rows of one size lose the least to rounding.
    size = np.abs(forth).max(1, keepdims=True)
    return forth / size, kernel * size, back
