"""QuickNAT (arXiv 1801.04161): dense blocks, pooling with indices, one slice at a time."""

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
    """Settings of a QuickNAT-like network; the defaults are the network of its authors' port."""

    # Files that name no architecture have this one.
    architecture: Literal["quicknat"] = Field(default="quicknat", exclude=True)
    # size of the wide convolutions
    kernel: Annotated[int, Field(ge=1, le=15), AfterValidator(odd)] = 5
    depth: int = Field(
        default=4, ge=1, le=7
    )  # number of times the resolution is halved
    # Squares of unshuffle x unshuffle pixels become channels: the network works at that resolution,
    # and its classifier answers for each pixel of the square.
    unshuffle: int = Field(default=1, ge=1, le=4)
    excitation: Recalibration = "both"  # squeeze and excitation
    bottleneck: Literal["dense", "convolution"] = "dense"
    activation: Activation = "prelu"
    order: Order = "norm-activation-convolution"  # within a block
    dropout: float = Field(default=0.2, ge=0, lt=1)  # after each encoder and decoder

    @property
    def multiple(self) -> int:
        """Multiple to which rows and columns are padded, to be halved `depth` times."""
        return int(self.unshuffle * 2**self.depth)

    @property
    def pixels(self) -> int:
        """Number of pixels in the square that becomes channels."""
        return self.unshuffle**2


class QuickNat(Network):
    """Network of the paper, of its port, and of smaller variants.

    Encoders halve the resolution `depth` times, a bottleneck follows, and decoders double the
    resolution again. The input of a decoder is the output of the encoder with the same resolution,
    joined with the previous block's output, which is unpooled to the positions of the encoder's
    maxima.
    """

    config: QuickNatConfig

    def __init__(self, config: QuickNatConfig) -> None:
        super().__init__(config)
        filters = config.filters
        # The order in which blocks are created is that in which their random weights are drawn.
        self.encoders = nn.ModuleList()
        channels = config.channels * config.pixels
        for _ in range(config.depth):
            self.encoders.append(_dense_block(config, channels))
            channels = filters
        if config.bottleneck == "dense":
            self.bottleneck = _dense_block(config, filters)
        else:
            self.bottleneck = DenseBlock(
                filters,
                filters,
                (config.kernel,),
                order=config.order,
                activation=config.activation,
                excitation="none",
                dropout=config.dropout,
            )
        # Decoders in the order in which they run, the deepest first.
        self.decoders = nn.ModuleList()
        for _ in range(config.depth):
            self.decoders.append(_dense_block(config, 2 * filters))
        self.classifier = self.new_classifier(config.classes)
        self.arrange(torch.channels_last)

    def new_classifier(self, classes: int) -> Classifier:
        """Return a classifier that maps each feature vector to the logits of a square of pixels."""
        return Classifier(self.config.filters, classes, self.config.unshuffle)

    def features(self, slices: Tensor) -> Tensor:
        """Return the classifier's input (N, F, h, w) for slices (N, C, H, W).

        The slices are padded to `multiple`; h and w are their padded sides divided by `unshuffle`.
        """
        rows, columns = slices.shape[-2:]
        multiple = self.config.multiple
        x = pad(slices, (0, -columns % multiple, 0, -rows % multiple))
        if self.config.unshuffle > 1:
            x = pixel_unshuffle(x, self.config.unshuffle)
        # torch.cat promotes its inputs to one type and loses channels_last. A single channel has
        # the strides of channels_last in any memory order, so only a copy has them for certain.
        x = x.to(_working_dtype(x), memory_format=self.layout, copy=True)

        passed = []
        for encoder in self.encoders:
            skip = encoder(x)
            x, where = max_pool(skip)
            passed.append((skip, where))
        # The port builds a squeeze-and-excitation for its bottleneck but never applies it, and it
        # applies no dropout there.
        x = self.bottleneck.dense(x)
        for decoder in self.decoders:
            skip, where = passed.pop()
            unpooled = max_unpool(x, where)
            x = decoder(torch.cat((skip, unpooled), 1))
        return x


def _dense_block(config: QuickNatConfig, channels: int) -> DenseBlock:
    """Return a block of two convolutions of size `kernel` and one of 1×1.

    It is used for encoders, decoders and the bottleneck.
    """
    return DenseBlock(
        channels,
        config.filters,
        (config.kernel, config.kernel, 1),
        order=config.order,
        activation=config.activation,
        excitation=config.excitation,
        dropout=config.dropout,
    )


def _working_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which convolutions of x compute: the type of autocast, else that of x."""
    device = x.device.type
    # Not every device supports autocast: `meta`, which is used to count operations, does not.
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


PUBLISHED = QuickNatConfig()
FAST = QuickNatConfig(
    filters=32,
    kernel=3,
    excitation="none",
    activation="relu",
    order="convolution-norm-activation",
    dropout=0.05,
)
