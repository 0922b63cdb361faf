"""Building blocks of QuickNAT. Tensors are (N, C, H, W), channels last in memory.

A dense block has several layers: the input of each layer is the block's input and the outputs of
all earlier layers. The block's output is then recalibrated, and dropout is applied. Blocks are
joined by pooling and unpooling with indices.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

Activation = Literal["prelu", "relu"]
Order = Literal["norm-activation-convolution", "convolution-norm-activation"]
Recalibration = Literal["none", "channel", "spatial", "both"]


def max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Halve H and W: return the maximum of each 2x2 window, and its position for `max_unpool`.

    If a maximum occurs several times in a window, its first position in reading order is returned,
    as by `MaxPool2d`. Such ties are everywhere in constant background and common in bf16; a mask of
    all maxima would unpool each of them.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return max_pool2d(x, 2, return_indices=True)
    # The comparisons below can be compiled and exported, and are deterministic on CUDA, unlike the
    # gradients of MaxPool2d and MaxUnpool2d. Uncompiled on a CPU they take ten times as long as the
    # code above.
    top_left = x[..., 0::2, 0::2]
    top_right = x[..., 0::2, 1::2]
    bottom_left = x[..., 1::2, 0::2]
    bottom_right = x[..., 1::2, 1::2]
    top_is_right = top_right > top_left
    bottom_is_right = bottom_right > bottom_left
    top = torch.where(top_is_right, top_right, top_left)
    bottom = torch.where(bottom_is_right, bottom_right, bottom_left)
    is_bottom = bottom > top
    bottom_corner = bottom_is_right.to(torch.uint8) + 2
    corner = torch.where(is_bottom, bottom_corner, top_is_right)
    largest = torch.where(is_bottom, bottom, top)
    return largest, corner


def max_unpool(x: Tensor, where: Tensor) -> Tensor:
    """Double H and W: put each value at the position of its maximum, and zeros elsewhere.

    `where` are the positions from `max_pool`: indices into H W (int64), or corners 0 1 / 2 3 of the
    windows (uint8).
    """
    # Channels stay innermost, so the result is channels-last without a copy.
    values = x.permute(0, 2, 3, 1)
    where = where.permute(0, 2, 3, 1)
    if where.dtype == torch.int64:
        return _unpool_by_index(values, where).permute(0, 3, 1, 2)
    return _unpool_by_corner(values, where).permute(0, 3, 1, 2)


def _unpool_by_index(values: Tensor, where: Tensor) -> Tensor:
    """Unpool values (N, H, W, C) to (N, 2 H, 2 W, C) by the index of each value's position.

    `where` (N, H, W, C) has indices into the 4 H W positions of a slice. Windows do not overlap, so
    no position is written twice. MaxUnpool2d does the same, but its gradient takes several times as
    long, and deterministic mode refuses it.
    """
    n, h, w, c = values.shape
    zeros = values.new_zeros((n, 4 * h * w, c))
    spread = zeros.scatter(1, where.flatten(1, 2), values.flatten(1, 2))
    return spread.view(n, 2 * h, 2 * w, c)


def _unpool_by_corner(values: Tensor, where: Tensor) -> Tensor:
    """Unpool values (N, H, W, C) to (N, 2 H, 2 W, C), each to its corner of a 2×2 window.

    `where` (N, H, W, C) has the corners: 0 1 in the first row, 2 3 in the second.
    """
    corners = torch.arange(4, dtype=torch.uint8, device=values.device)
    # Windows as (N, H, 2, W, 2, C).
    corners = corners.view(1, 1, 2, 1, 2, 1)
    chosen = where[:, :, None, :, None] == corners
    zero = torch.zeros_like(values[0, 0, 0, 0])
    windows = torch.where(chosen, values[:, :, None, :, None], zero)
    return windows.flatten(3, 4).flatten(1, 2)


def convolve_aligned(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve x (N, C, H, W) to (N, F, H, W), with channels padded by zeros to a multiple of 8.

    The additional channels do not change the result. On a GPU they cost less than convolving a
    number of channels that is no multiple of 8.
    """
    missing = -x.shape[1] % 8
    # Rows and columns are not padded; the additional channels follow the others.
    padding = (0, 0, 0, 0, 0, missing)
    padded = pad(x, padding)
    weight = pad(convolution.weight, padding)
    return conv2d(padded, weight, convolution.bias, padding=convolution.padding)


class Layer(nn.Module):
    """Convolution of C channels to F filters and its norm; `forward` gets the activation.

    `order` is the order of norm, activation and convolution. Only a norm that follows its
    convolution can be folded into it.
    """

    def __init__(self, channels: int, filters: int, kernel: int, order: Order) -> None:
        super().__init__()
        self.norm_first = order == "norm-activation-convolution"
        normed = channels if self.norm_first else filters
        self.norm: nn.Module = nn.BatchNorm2d(normed)
        # A norm after the convolution cancels any bias.
        self.convolution = nn.Conv2d(
            channels, filters, kernel, padding=kernel // 2, bias=self.norm_first
        )

    def forward(self, x: Tensor, activation: nn.Module) -> Tensor:
        """Map (N, C, H, W) to (N, F, H, W)."""
        if self.norm_first:
            activated = activation(self.norm(x))
            return self._convolve(activated)
        normed = self.norm(self._convolve(x))
        return activation(normed)  # type: ignore[no-any-return]

    def _convolve(self, x: Tensor) -> Tensor:
        """Apply the convolution alone; on a GPU, with channels padded to a multiple of 8."""
        # The layers of the first block have 1, 65 and 129 input channels, but a GPU's matrix units
        # need multiples of 8.
        if x.device.type != "cpu" and x.shape[1] % 8:
            return convolve_aligned(self.convolution, x)
        return self.convolution(x)  # type: ignore[no-any-return]

    def fold(self) -> None:
        """Fold a norm that follows the convolution into it, in place; for evaluation only."""
        if not self.norm_first and isinstance(self.norm, nn.BatchNorm2d):
            self.convolution = fuse_conv_bn_eval(self.convolution, self.norm)
            self.norm = nn.Identity()


class Excitation(nn.Module):
    """Squeeze and excitation (arXiv 1803.02579) of channels, of positions, or of both.

    A gate is a factor between 0 and 1. The gate of a channel depends on the channels' means over
    the slice, the gate of a position on the channels at that position. With both, the maximum of
    the two results is used.
    """

    def __init__(
        self, channels: int, kind: Literal["channel", "spatial", "both"]
    ) -> None:
        super().__init__()
        self.channel: nn.Module | None = None
        self.spatial: nn.Module | None = None
        if kind in ("channel", "both"):
            reduced = max(1, channels // 2)
            self.channel = nn.Sequential(
                nn.Conv2d(channels, reduced, 1),
                nn.ReLU(),
                nn.Conv2d(reduced, channels, 1),
            )
        if kind in ("spatial", "both"):
            self.spatial = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x (N, C, H, W) by the gates of channels, of positions, or of both.

        With both, the larger of the two results is returned. The shape is unchanged.
        """
        gates = []
        if self.channel is not None:
            gates.append(self.channel(x.mean((2, 3), keepdim=True)))
        if self.spatial is not None:
            gates.append(self.spatial(x))
        scaled: list[Tensor] = [x * gate.sigmoid() for gate in gates]
        if len(scaled) == 1:
            return scaled[0]
        # This is the maximum of both; the gradient of torch.maximum takes five times as long on a
        # CPU.
        return scaled[0] + (scaled[1] - scaled[0]).relu()


class DenseBlock(nn.Module):
    """Layers with dense connections, C channels to F filters; `kernels` has the size of each.

    The result is the output of the last layer, recalibrated; in training, dropout removes whole
    channels of it.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernels: tuple[int, ...],
        *,
        order: Order,
        activation: Activation,
        excitation: Recalibration,
        dropout: float,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        seen = channels
        for kernel in kernels:
            self.layers.append(Layer(seen, filters, kernel, order))
            seen += filters
        # All layers share the activation, and the slope of a PReLU, as in the authors' port.
        self.activation: nn.Module
        if activation == "prelu":
            self.activation = nn.PReLU()
        else:
            self.activation = nn.ReLU(inplace=True)
        self.excitation: Excitation | None = None
        if excitation != "none":
            self.excitation = Excitation(filters, excitation)
        self.dropout = nn.Dropout2d(dropout)

    def dense(self, x: Tensor) -> Tensor:
        """Apply the layers alone to x (N, C, H, W), without recalibration and dropout.

        The input of each layer is x and the outputs of all earlier layers. Returns the output of
        the last layer, (N, F, H, W).
        """
        seen = [x]
        for layer in self.layers:
            # Use a single tensor as it is: torch.cat would copy it.
            joined = x
            if len(seen) > 1:
                joined = torch.cat(seen, 1)
            seen.append(layer(joined, self.activation))
        return seen[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, F, H, W)."""
        y = self.dense(x)
        if self.excitation is not None:
            y = self.excitation(y)
        return self.dropout(y)  # type: ignore[no-any-return]
