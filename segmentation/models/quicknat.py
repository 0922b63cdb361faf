"""QuickNAT (arXiv 1801.04161): dense blocks, pooling that remembers where, one slice at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_shuffle, pixel_unshuffle

from segmentation.models.blocks import (
    Activation,
    DenseBlock,
    Layer,
    Order,
    Recalibration,
    max_pool,
    max_unpool,
)

__all__ = ["FAST", "PUBLISHED", "Classifier", "QuickNat", "QuickNatConfig"]


class QuickNatConfig(BaseModel):
    """One member of the family; the defaults are the network as its authors' port has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: int = Field(default=33, ge=2, le=255)
    # A thick slice: neighbours come along as channels, the slice to segment in the middle.
    channels: int = Field(default=1, ge=1, le=64)
    filters: int = Field(default=64, ge=1, le=1024)
    kernel: int = Field(default=5, ge=1, le=15)
    depth: int = Field(default=4, ge=1, le=7)
    # Squares of so many pixels become the channels of one: the network works at that resolution,
    # and its classifier answers for each pixel of the square.
    unshuffle: int = Field(default=1, ge=1, le=4)
    excitation: Recalibration = "both"
    bottleneck: Literal["dense", "convolution"] = "dense"
    activation: Activation = "prelu"
    order: Order = "norm-activation-convolution"
    dropout: float = Field(default=0.2, ge=0, lt=1)

    @field_validator("kernel", "channels")
    @classmethod
    def _odd(cls, number: int) -> int:
        if number % 2 == 0:
            raise ValueError("must be odd, so that it has a middle")
        return number

    @property
    def multiple(self) -> int:
        """Rows and columns are padded to multiples of this."""
        return int(self.unshuffle * 2**self.depth)


class Classifier(nn.Conv2d):
    """Features (N, F, h, w) to logits (N, K, h u, w u): those of a square of u x u pixels each."""

    def __init__(self, config: QuickNatConfig) -> None:
        super().__init__(config.filters, config.classes * config.unshuffle**2, 1)
        self.unshuffle = config.unshuffle

    def forward(self, features: Tensor) -> Tensor:
        logits = super().forward(features)
        return pixel_shuffle(logits, self.unshuffle) if self.unshuffle > 1 else logits

    def by_class(self) -> dict[str, Tensor]:
        """Weight and bias by class, (K, u u ...): views that write through."""
        return {
            name: values.unflatten(0, (-1, self.unshuffle**2))
            for name, values in self.state_dict().items()
        }


class QuickNat(nn.Module):
    """Slices (N, C, H, W) of any size to logits (N, K, H, W)."""

    def __init__(self, config: QuickNatConfig) -> None:
        super().__init__()
        self.config = config
        self.pool: Callable[[Tensor], tuple[Tensor, Tensor]] = max_pool
        filters = config.filters
        dense = (config.kernel, config.kernel, 1)

        def block(channels: int, kernels: tuple[int, ...] = dense) -> DenseBlock:
            return DenseBlock(
                channels,
                filters,
                kernels,
                order=config.order,
                activation=config.activation,
                excitation=config.excitation if kernels == dense else "none",
                dropout=config.dropout,
            )

        self.encoders = nn.ModuleList(
            block(filters if level else config.channels * config.unshuffle**2)
            for level in range(config.depth)
        )
        self.bottleneck = block(
            filters, dense if config.bottleneck == "dense" else (config.kernel,)
        )
        # In the order in which they run, the deepest first.
        self.decoders = nn.ModuleList(block(2 * filters) for _ in range(config.depth))
        self.classifier = Classifier(config)
        self.arrange(torch.channels_last)

    def arrange(self, layout: torch.memory_format) -> None:
        """Keep weights and activations in this order in memory."""
        self.layout = layout
        self.to(memory_format=layout)  # type: ignore[call-overload]

    def forward(self, slices: Tensor) -> Tensor:
        rows, columns = slices.shape[-2:]
        logits: Tensor = self.classifier(self.features(slices))
        return logits[..., :rows, :columns]

    def features(self, slices: Tensor) -> Tensor:
        """What the classifier sees, (N, F, h, w), of slices padded as they must be."""
        rows, columns = slices.shape[-2:]
        multiple = self.config.multiple
        x = pad(slices, (0, -columns % multiple, 0, -rows % multiple))
        if self.config.unshuffle > 1:
            x = pixel_unshuffle(x, self.config.unshuffle)
        # What is joined has the widest type and the plainest layout of its parts. A single channel
        # passes for channels-last however it lies; a copy lies so.
        device = x.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        x = x.to(dtype, memory_format=self.layout, copy=True)

        passed = []
        for encoder in self.encoders:
            skip = encoder(x)
            x, where = self.pool(skip)
            passed.append((skip, where))
        # The port builds a squeeze-and-excitation for its bottleneck and never applies it, nor
        # does it drop channels there.
        x = self.bottleneck.dense(x)
        for decoder in self.decoders:
            skip, where = passed.pop()
            x = decoder(torch.cat((skip, max_unpool(x, where)), 1))
        return x

    def fold(self) -> QuickNat:
        """A copy for inference: same logits, norms inside convolutions where the order allows."""
        folded = copy.deepcopy(self).eval().requires_grad_(False)
        for module in folded.modules():
            if isinstance(module, Layer):
                module.fold()
        folded.arrange(torch.channels_last)
        return folded


PUBLISHED = QuickNatConfig()
FAST = QuickNatConfig(
    filters=32,
    kernel=3,
    excitation="none",
    activation="relu",
    order="convolution-norm-activation",
    dropout=0.05,
)
