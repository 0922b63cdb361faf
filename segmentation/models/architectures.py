"""The one place that knows which networks there are: another needs its file and its line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from segmentation.models.base import Network, NetworkConfig
from segmentation.models.ensemble import Ensemble, EnsembleConfig
from segmentation.models.quicknat import FAST, PUBLISHED, QuickNat, QuickNatConfig

__all__ = ["FAST", "PUBLISHED", "Architecture", "build"]

_DEFAULT = "quicknat"
_ENSEMBLE = "ensemble"
_NETWORKS: dict[str, tuple[type[NetworkConfig], type[Network]]] = {
    _DEFAULT: (QuickNatConfig, QuickNat),
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
        return EnsembleConfig.model_validate({**given, "member": _of_its_kind(given.get("member"))})
    if name not in _NETWORKS:
        raise ValueError(f"{name!r} is no architecture; known: {', '.join(_NETWORKS)}")
    return _NETWORKS[name][0].model_validate(given)


# In a model.yaml or a recipe: the key `architecture` names the network.
Architecture = Annotated[SerializeAsAny[NetworkConfig], BeforeValidator(_of_its_kind)]
