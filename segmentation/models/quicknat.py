"""QuickNAT (arXiv 1801.04161): dense blocks, pooling that remembers where, one slice at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torch.nn.functional import pad

from segmentation.models.blocks import (
    Activation,
    DenseBlock,
    Layer,
    Order,
    Recalibration,
    max_pool,
    max_unpool,
)

__all__ = ["FAST", "PUBLISHED", "QuickNat", "QuickNatConfig"]


class QuickNatConfig(BaseModel):
    """One member of the family; the defaults are the network as its authors' port has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    classes: int = Field(default=33, ge=2, le=255)
    # A thick slice: neighbours come along as channels, the slice to segment in the middle.
    channels: int = Field(default=1, ge=1, le=64)
    filters: int = Field(default=64, ge=1, le=1024)
    kernel: int = Field(default=5, ge=1, le=15)
    depth: int = Field(default=4, ge=1, le=7)
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
            block(filters if level else config.channels) for level in range(config.depth)
        )
        self.bottleneck = block(
            filters, dense if config.bottleneck == "dense" else (config.kernel,)
        )
        # In the order in which they run, the deepest first.
        self.decoders = nn.ModuleList(block(2 * filters) for _ in range(config.depth))
        self.classifier = nn.Conv2d(filters, config.classes, 1)
        self.arrange(torch.channels_last)

    def arrange(self, layout: torch.memory_format) -> None:
        """Keep weights and activations in this order in memory."""
        self.layout = layout
        self.to(memory_format=layout)  # type: ignore[call-overload]

    def forward(self, slices: Tensor) -> Tensor:
        rows, columns = slices.shape[-2:]
        multiple = 2**self.config.depth
        x = pad(slices, (0, -columns % multiple, 0, -rows % multiple))
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
        logits: Tensor = self.classifier(x)
        return logits[..., :rows, :columns]

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
