"""Base classes of networks and their configurations; `architectures.py` lists them.

A network takes slices (N, C, H, W), float, on the scale of its model's preprocessing, and returns
logits (N, K, H, W). Its weights are stored in a model folder by their names in `state_dict`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Annotated, Self

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from trinat.segmentation.models.blocks import Layer


def odd(number: int) -> int:
    """Return an odd number unchanged; raise ValueError for an even number."""
    if number % 2 == 0:
        raise ValueError("must be odd, so that it has a middle")
    return number


class NetworkConfig(BaseModel):
    """Settings of all architectures; each adds `architecture`, its name, and its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # With background.
    classes: int = Field(default=33, ge=2, le=255)
    # A thick slice: neighbours come along as channels, the slice to segment in the middle.
    channels: Annotated[int, Field(ge=1, le=64), AfterValidator(odd)] = 1
    # filters of each convolution
    filters: int = Field(default=64, ge=1, le=1024)

    @property
    def multiple(self) -> int:
        """Rows and columns are padded to a multiple of this number."""
        return 1

    @property
    def pixels(self) -> int:
        """Number of pixels of a slice that share one position of the feature maps."""
        return 1


class Classifier(nn.Conv2d):
    """Linear classifier that maps features (N, F, h, w) to logits (N, K, h u, w u).

    u is `unshuffle`: a feature vector gives the logits of u x u pixels. With 1, the default, there
    is a feature vector for each pixel.
    """

    def __init__(self, filters: int, classes: int, unshuffle: int = 1) -> None:
        super().__init__(filters, classes * unshuffle**2, 1)
        self.unshuffle = unshuffle

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, F, h, w) to logits (N, K, h u, w u)."""
        logits = super().forward(features)
        if self.unshuffle == 1:
            return logits
        return pixel_shuffle(logits, self.unshuffle)

    def by_class(self) -> dict[str, Tensor]:
        """Return weight and bias by name, with the class as the first axis: (K, u u, ...).

        They are views: changing them changes the classifier.
        """
        pixels = self.unshuffle**2
        values_by_class = {}
        for name, values in self.state_dict().items():
            values_by_class[name] = values.unflatten(0, (-1, pixels))
        return values_by_class


class Network(nn.Module, ABC):
    """Base of networks that map slices (N, C, H, W) of any size to logits (N, K, H, W).

    A subclass defines `features`, and parts with parameters (encoders, ...), which a recipe may
    train at different rates. Its last part is the `classifier`.
    """

    classifier: Classifier

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.layout = torch.channels_last

    def new_classifier(self, classes: int) -> Classifier:
        """Return a new classifier of this network's features, with random weights."""
        return Classifier(self.config.filters, classes)

    @abstractmethod
    def features(self, slices: Tensor) -> Tensor:
        """Return the classifier's input (N, F, h, w) for slices (N, C, H, W) of any size.

        The slices are padded as needed.
        """

    def forward(self, slices: Tensor) -> Tensor:
        """Map slices (N, C, H, W) to logits (N, K, H, W)."""
        return self.classify(self.features(slices), slices)

    def classify(self, features: Tensor, slices: Tensor) -> Tensor:
        """Map features (N, F, h, w) of slices (N, C, H, W) to logits (N, K, H, W)."""
        rows, columns = slices.shape[-2:]
        logits: Tensor = self.classifier(features)
        return logits[..., :rows, :columns]

    def arrange(self, layout: torch.memory_format) -> None:
        """Set the memory format of the weights and of the activations."""
        self.layout = layout
        self.to(memory_format=layout)  # type: ignore[call-overload]

    def fold(self) -> Self:
        """Return a copy for inference that gives the same logits.

        Norms are folded into convolutions where possible. The copy is in evaluation mode and has no
        gradients.
        """
        folded = copy.deepcopy(self).eval().requires_grad_(False)
        for module in folded.modules():
            if isinstance(module, Layer):
                module.fold()
        folded.arrange(torch.channels_last)
        return folded
