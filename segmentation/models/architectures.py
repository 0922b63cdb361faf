"""Registry of network architectures: a new network needs its own file and a line here.

An ensemble combines several networks of one shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from trinat.segmentation.models.base import Classifier, Network, NetworkConfig
from trinat.segmentation.models.quicknat import (
    FAST,
    PUBLISHED,
    QuickNat,
    QuickNatConfig,
)

__all__ = ["FAST", "PUBLISHED", "Architecture", "build"]

# Probabilities are clipped to this value, because smaller ones have no logarithm in half precision.
_MIN_PROBABILITY = 1e-7


class EnsembleConfig(NetworkConfig):
    """Several networks of one shape: `members` of them, each as `member` says."""

    architecture: Literal["ensemble"] = "ensemble"
    members: int = Field(ge=2, le=32)
    member: SerializeAsAny[NetworkConfig]

    @classmethod
    def of(cls, member: NetworkConfig, members: int) -> Self:
        """Return the configuration of an ensemble of `members` networks, each like `member`."""
        shared = {name: getattr(member, name) for name in NetworkConfig.model_fields}
        return cls(**shared, members=members, member=member)

    @model_validator(mode="after")
    def _check_member(self) -> Self:
        """Raise ValueError if a setting that all networks have differs from that of the member."""
        for name in NetworkConfig.model_fields:
            if getattr(self, name) != getattr(self.member, name):
                raise ValueError(f"{name} is not the member's")
        return self

    @property
    def multiple(self) -> int:
        """Multiple to which the members pad rows and columns."""
        return self.member.multiple

    @property
    def pixels(self) -> int:
        """Number of pixels that share one position of the members' feature maps."""
        return self.member.pixels


class Ensemble(Network):
    """Ensemble of networks; its logits are the logarithm of the members' mean probability.

    If `only` is set to the index of a member, only that member is used, as in training.
    """

    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig, networks: Sequence[Network]) -> None:
        super().__init__(config)
        self.networks = nn.ModuleList(networks)
        self.only: int | None = None
        # The classifier is the identity. Its bias can be changed for classes that must not be
        # predicted.
        self.classifier = Classifier(config.classes, config.classes)
        with torch.no_grad():
            nn.init.dirac_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)  # type: ignore[arg-type]
        self.arrange(torch.channels_last)

    def features(self, slices: Tensor) -> Tensor:
        """Return the logarithm of the members' mean probability, (N, K, H, W).

        `slices` are (N, C, H, W). The mean is taken in float32. If `only` is set, it is the
        probability of that member.
        """
        members = list(self.networks)
        if self.only is not None:
            members = [self.networks[self.only]]
        # The members run one after the other: vmap took 1.9 to 2.8 times as long on a CPU
        # (docs/notes/toolbox.md).
        found = [network(slices).float().softmax(1) for network in members]
        mean = torch.stack(found).mean(0)
        logarithms = mean.clamp(min=_MIN_PROBABILITY).log()
        return logarithms.to(self.classifier.weight.dtype)

    def arrange(self, layout: torch.memory_format) -> None:
        """Set the memory format of weights and activations of all members."""
        super().arrange(layout)
        for network in self.networks:
            assert isinstance(network, Network)
            network.arrange(layout)


_DEFAULT = "quicknat"
_ENSEMBLE = "ensemble"
_NETWORKS: dict[str, tuple[type[NetworkConfig], type[Network]]] = {
    _DEFAULT: (QuickNatConfig, QuickNat)
}


def build(config: NetworkConfig) -> Network:
    """Build the network of a configuration, with random weights.

    The weights are drawn from torch's default generator, in the order of the network's parts.
    """
    if isinstance(config, EnsembleConfig):
        members = [build(config.member) for _ in range(config.members)]
        return Ensemble(config, members)
    for config_class, network_class in _NETWORKS.values():
        if type(config) is config_class:
            return network_class(config)
    raise ValueError(f"{type(config).__name__} is no configuration of a network here")


def _validate_by_kind(given: Any) -> Any:
    """Validate settings with the configuration class that their key `architecture` names.

    A value that is no mapping is returned unchanged.
    """
    if not isinstance(given, Mapping):
        return given
    name = str(given.get("architecture", _DEFAULT))
    if name == _ENSEMBLE:
        member = _validate_by_kind(given.get("member"))
        return EnsembleConfig.model_validate({**given, "member": member})
    if name not in _NETWORKS:
        raise ValueError(f"{name!r} is no architecture; known: {', '.join(_NETWORKS)}")
    config_class, _ = _NETWORKS[name]
    return config_class.model_validate(given)


# Configuration of a network in a model.yaml or a recipe, where the key `architecture` names the
# network's class.
Architecture = Annotated[
    SerializeAsAny[NetworkConfig], BeforeValidator(_validate_by_kind)
]
