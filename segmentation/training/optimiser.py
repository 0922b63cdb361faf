"""The optimiser of a stage: parts of the network at their own rates, and what it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import torch
from torch import Tensor

from trinat.segmentation.training.config import OptimiserConfig, Part
from trinat.segmentation.training.network import ViewsNet


def build_optimiser(
    network: ViewsNet, config: OptimiserConfig
) -> torch.optim.Optimizer:
    """AdamW or SGD over the parts of the network that are not frozen.

    Each part is a group of parameters, with its `multiple` of the learning rate. The parameters of
    a part whose multiple is 0 need no gradient from here on.
    """
    groups = []
    for part in get_args(Part):
        multiple = config.parts.get(part, 1.0)
        parameters = [
            parameter
            for owner, _, parameter in network.part_parameters()
            if owner == part
        ]
        if multiple == 0:
            for parameter in parameters:
                parameter.requires_grad_(False)
        else:
            groups.append({"params": parameters, "multiple": multiple})
    if config.kind == "sgd":
        return torch.optim.SGD(
            groups,
            config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    # On a GPU all of it in one kernel, or each small one would be waited for.
    on_gpu = all(parameter.is_cuda for parameter in network.parameters())
    return torch.optim.AdamW(
        groups,
        config.rate,
        weight_decay=config.weight_decay,
        fused=True if on_gpu else None,
    )


def optimiser_tensors(
    network: ViewsNet, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """What the optimiser remembers of each parameter, by `parameter's name/its own key`.

    Tensors are shared with the optimiser, not copied. Parameters that were never updated have none.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        remembered = optimiser.state.get(parameter, {})
        for key, value in remembered.items():
            if value is not None:
                tensors[f"{name}/{key}"] = torch.as_tensor(value)
    return tensors


def load_optimiser(
    network: ViewsNet, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Let the optimiser remember what `optimiser_tensors` gave, and nothing else.

    The tensors are copied, to the devices that a resumed optimiser needs them on.
    """
    parameters = dict(network.named_parameters())
    is_fused = bool(optimiser.defaults.get("fused"))
    optimiser.state.clear()
    for path, value in tensors.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        if value.ndim:
            # Tensors of the parameter's shape get its memory format.
            empty = torch.empty_like(parameter)
        else:
            # Adam's number of steps: on the parameter's device if it is fused.
            device = parameter.device if is_fused else value.device
            empty = torch.empty_like(value, device=device)
        optimiser.state[parameter][key] = empty.copy_(value)
