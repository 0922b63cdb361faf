"""QuickNAT (arXiv 1801.04161): dense blocks, pooling that remembers where, one slice at a time."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_unshuffle

from trinat.segmentation.models.base import Classifier, Network, NetworkConfig, odd
from trinat.segmentation.models.blocks import (
    Activation,
    DenseBlock,
    Order,
    Recalibration,
    max_pool,
    max_unpool,
)


class QuickNatConfig(NetworkConfig):
    """One member of the family; the defaults are the network as its authors' port has it."""

    # Files that name no architecture have this one.
    architecture: Literal["quicknat"] = Field(default="quicknat", exclude=True)
    kernel: Annotated[int, Field(ge=1, le=15), AfterValidator(odd)] = (
        5  # of the wide convolutions
    )
    depth: int = Field(default=4, ge=1, le=7)  # how often the resolution halves
    # Squares of unshuffle x unshuffle pixels become channels: the network works at that resolution,
    # and its classifier answers for each pixel of the square.
    unshuffle: int = Field(default=1, ge=1, le=4, exclude_if=lambda given: given == 1)
    excitation: Recalibration = "both"  # squeeze and excitation
    bottleneck: Literal["dense", "convolution"] = "dense"
    activation: Activation = "prelu"
    order: Order = "norm-activation-convolution"  # within a block
    dropout: float = Field(default=0.2, ge=0, lt=1)  # after each encoder and decoder

    @property
    def multiple(self) -> int:
        return int(self.unshuffle * 2**self.depth)

    @property
    def pixels(self) -> int:
        return self.unshuffle**2


class QuickNat(Network):
    """The network of the paper, its port, and their smaller relatives."""

    config: QuickNatConfig

    def __init__(self, config: QuickNatConfig) -> None:
        super().__init__(config)
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
            block(filters if level else config.channels * config.pixels)
            for level in range(config.depth)
        )
        self.bottleneck = block(
            filters, dense if config.bottleneck == "dense" else (config.kernel,)
        )
        # In the order in which they run, the deepest first.
        self.decoders = nn.ModuleList(block(2 * filters) for _ in range(config.depth))
        self.classifier = self.new_classifier(config.classes)
        self.arrange(torch.channels_last)

    def new_classifier(self, classes: int) -> Classifier:
        return Classifier(self.config.filters, classes, self.config.unshuffle)

    def features(self, slices: Tensor) -> Tensor:
        rows, columns = slices.shape[-2:]
        multiple = self.config.multiple
        x = pad(slices, (0, -columns % multiple, 0, -rows % multiple))
        if self.config.unshuffle > 1:
            x = pixel_unshuffle(x, self.config.unshuffle)
        # torch.cat promotes its inputs to one type and loses channels_last. A single channel counts
        # as channels_last in any memory order; only a copy is really in it.
        device = x.device.type
        # Not every device has it: `meta`, on which operations are counted, has none.
        autocast = torch.amp.is_autocast_available(
            device
        ) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        x = x.to(dtype, memory_format=self.layout, copy=True)

        passed = []
        for encoder in self.encoders:
            skip = encoder(x)
            x, where = max_pool(skip)
            passed.append((skip, where))
        # The port builds a squeeze-and-excitation for its bottleneck and never applies it, nor
        # does it drop channels there.
        x = self.bottleneck.dense(x)
        for decoder in self.decoders:
            skip, where = passed.pop()
            x = decoder(torch.cat((skip, max_unpool(x, where)), 1))
        return x


PUBLISHED = QuickNatConfig()
FAST = QuickNatConfig(
    filters=32,
    kernel=3,
    excitation="none",
    activation="relu",
    order="convolution-norm-activation",
    dropout=0.05,
)
