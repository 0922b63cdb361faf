"""Registry of network architectures: a new network needs its own file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.quicknat import (
    FAST,
    PUBLISHED,
    QuickNat,
    QuickNatConfig,
)

__all__ = ["FAST", "PUBLISHED", "Architecture", "build"]

_DEFAULT = "quicknat"
_NETWORKS: dict[str, tuple[type[NetworkConfig], type[Network]]] = {
    _DEFAULT: (QuickNatConfig, QuickNat)
}


def build(config: NetworkConfig) -> Network:
    """Build the network of a configuration, with random weights.

    The weights are drawn from torch's default generator, in the order of the network's parts.
    """
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
    if name not in _NETWORKS:
        raise ValueError(f"{name!r} is no architecture; known: {', '.join(_NETWORKS)}")
    config_class, _ = _NETWORKS[name]
    return config_class.model_validate(given)


# Configuration of a network in a model.yaml or a recipe, where the key `architecture` names the
# network's class.
Architecture = Annotated[
    SerializeAsAny[NetworkConfig], BeforeValidator(_validate_by_kind)
]
