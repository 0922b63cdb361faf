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

# Below this a probability has no logarithm in half precision either.
_MIN_PROBABILITY = 1e-7


class EnsembleConfig(NetworkConfig):
    """Several networks of one shape: `members` of them, each as `member` says."""

    architecture: Literal["ensemble"] = "ensemble"
    members: int = Field(ge=2, le=32)
    member: SerializeAsAny[NetworkConfig]

    @classmethod
    def of(cls, member: NetworkConfig, members: int) -> Self:
        """Return the configuration of an ensemble of such members."""
        shared = {name: getattr(member, name) for name in NetworkConfig.model_fields}
        return cls(**shared, members=members, member=member)

    @model_validator(mode="after")
    def _check_member(self) -> Self:
        """Check that the settings shared by all networks equal those of the member."""
        for name in NetworkConfig.model_fields:
            if getattr(self, name) != getattr(self.member, name):
                raise ValueError(f"{name} is not the member's")
        return self

    @property
    def multiple(self) -> int:
        """Multiple to which the member pads rows and columns."""
        return self.member.multiple

    @property
    def pixels(self) -> int:
        """Number of pixels of the member's positions."""
        return self.member.pixels


class Ensemble(Network):
    """Ensemble: its logits are the logarithm of the members' mean probability.

    With `only`, the number of a member, it is that member alone.
    """

    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig, networks: Sequence[Network]) -> None:
        super().__init__(config)
        self.networks = nn.ModuleList(networks)
        self.only: int | None = None
        # The bias on the joint logits is for classes that must not win.
        self.classifier = Classifier(config.classes, config.classes)
        with torch.no_grad():
            nn.init.dirac_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)  # type: ignore[arg-type]
        self.arrange(torch.channels_last)

    def features(self, slices: Tensor) -> Tensor:
        """Return logarithms of the mean probability, (N, K, H, W), of slices (N, C, H, W).

        The mean is taken in float32. `only` chooses a single member, as training does.
        """
        members = list(self.networks)
        if self.only is not None:
            members = [self.networks[self.only]]
        # Sequentially: vmap took 1.9 to 2.8 times as long on a CPU (docs/notes/toolbox.md).
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

    They are drawn from torch's own generator, in the order of the network's parts.
    """
    if isinstance(config, EnsembleConfig):
        members = [build(config.member) for _ in range(config.members)]
        return Ensemble(config, members)
    for config_class, network_class in _NETWORKS.values():
        if type(config) is config_class:
            return network_class(config)
    raise ValueError(f"{type(config).__name__} is no configuration of a network here")


def _validate_by_kind(given: Any) -> Any:
    """Validate a configuration by the class that the key `architecture` names."""
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


# In a model.yaml or a recipe: the key `architecture` names the network.
Architecture = Annotated[
    SerializeAsAny[NetworkConfig], BeforeValidator(_validate_by_kind)
]
