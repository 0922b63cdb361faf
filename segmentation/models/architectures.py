"""The one place that knows which networks there are: another needs its file and its line here.

An ensemble is several of one shape as one network.
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

# Under which a probability has no logarithm in half precision either.
_LEAST = 1e-7


class EnsembleConfig(NetworkConfig):
    """So many members, each as `member` says."""

    architecture: Literal["ensemble"] = "ensemble"
    members: int = Field(ge=2, le=32)
    member: SerializeAsAny[NetworkConfig]

    @classmethod
    def of(cls, member: NetworkConfig, members: int) -> Self:
        shared = {name: getattr(member, name) for name in NetworkConfig.model_fields}
        return cls(**shared, members=members, member=member)

    @model_validator(mode="after")
    def _as_the_member(self) -> Self:
        for name in NetworkConfig.model_fields:
            if getattr(self, name) != getattr(self.member, name):
                raise ValueError(f"{name} is not the member's")
        return self

    @property
    def multiple(self) -> int:
        return self.member.multiple

    @property
    def pixels(self) -> int:
        return self.member.pixels


class Ensemble(Network):
    """Its logits are the logarithm of the mean probability; `only` lets one member speak."""

    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig, networks: Sequence[Network]) -> None:
        super().__init__(config)
        self.networks = nn.ModuleList(networks)
        self.only: int | None = None
        # A bias on the joint logits, for classes that must not win.
        self.classifier = Classifier(config.classes, config.classes)
        with torch.no_grad():
            nn.init.dirac_(self.classifier.weight)
            nn.init.zeros_(self.classifier.bias)  # type: ignore[arg-type]
        self.arrange(torch.channels_last)

    def features(self, slices: Tensor) -> Tensor:
        # One after the other: vmap took 1.9 to 2.8 times as long on a CPU (docs/notes/toolbox.md).
        asked = self.networks if self.only is None else [self.networks[self.only]]
        found = [network(slices).float().softmax(1) for network in asked]
        mean = torch.stack(found).mean(0)
        return mean.clamp(min=_LEAST).log().to(self.classifier.weight.dtype)

    def arrange(self, layout: torch.memory_format) -> None:
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
    """The network that a configuration describes, with random weights."""
    if isinstance(config, EnsembleConfig):
        return Ensemble(config, [build(config.member) for _ in range(config.members)])
    (network,) = (made for kind, made in _NETWORKS.values() if type(config) is kind)
    return network(config)


def _of_its_kind(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    name = str(given.get("architecture", _DEFAULT))
    if name == _ENSEMBLE:
        return EnsembleConfig.model_validate(
            {**given, "member": _of_its_kind(given.get("member"))}
        )
    if name not in _NETWORKS:
        raise ValueError(f"{name!r} is no architecture; known: {', '.join(_NETWORKS)}")
    return _NETWORKS[name][0].model_validate(given)


# In a model.yaml or a recipe: the key `architecture` names the network.
Architecture = Annotated[SerializeAsAny[NetworkConfig], BeforeValidator(_of_its_kind)]
