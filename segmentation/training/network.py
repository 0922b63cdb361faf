"""Initial weights of a network, their running average, and its optimiser.

The optimiser has learning rates by part of the network, and its state is saved by parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.training.config import OptimiserConfig


def new_network(config: NetworkConfig, classes: int) -> Network:
    """Build the network of a view with `classes` classes, with random weights.

    `config` describes the networks of all views, except for their number of classes.
    """
    network = build(config)
    # Drawn a second time: a seed gives the same weights as in earlier versions.
    network.classifier = network.new_classifier(classes)
    network.config = config.model_copy(update={"classes": classes})
    return network


def copy_network(network: Network) -> Network:
    """Return a copy of the network in the form of a model folder, on the CPU.

    The weights are copied, so training may continue.
    """
    alone = build(network.config)
    alone.load_state_dict(network.state_dict())
    return alone


@torch.no_grad()
def copy_matching(
    network: Network,
    source: Network,
    theirs: LabelScheme,
    ours: LabelScheme,
) -> tuple[int, list[str]]:
    """Copy the weights of `source` that match into `network`.

    Weights before the classifier match by name and shape, rows of the classifier by the name of the
    structure. `theirs` are the classes of `source`, `ours` those of `network`. Return the number of
    classes whose row was copied, and the names of the weights before the classifier that were not.
    """
    given = source.state_dict()
    missing: list[str] = []
    for name, value in network.state_dict().items():
        if name.startswith("classifier."):
            continue
        if name in given and given[name].shape == value.shape:
            value.copy_(given[name])
        else:
            missing.append(name)
    old = source.classifier.by_class()
    new = network.classifier.by_class()
    # Rows for other features cannot be used, even if their names match.
    if old["weight"].shape[1:] != new["weight"].shape[1:]:
        return 0, missing
    taken = 0
    for row, structure in enumerate(ours.names):
        if structure not in theirs.names:
            continue
        their_row = theirs.names.index(structure)
        for name, values in new.items():
            values[row] = old[name][their_row]
        taken += 1
    return taken, missing


@torch.no_grad()
def update_average(
    average: nn.Module,
    network: nn.Module,
    decay: float,
    step: int,
) -> None:
    """Update the running average of the weights, in place.

    `step` is the number of steps so far: at the start the average follows faster than `decay` says.
    Integers, such as the number of batches that a norm has counted, are copied.
    """
    decay = min(decay, (1 + step) / (10 + step))
    now = network.state_dict()
    averages: list[Tensor] = []
    latest: list[Tensor] = []
    for name, value in average.state_dict().items():
        if value.is_floating_point():
            averages.append(value)
            latest.append(now[name])
        else:
            value.copy_(now[name])
    # All weights in one call: two hundred small kernels would be slow on a GPU.
    move = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    move(averages, latest, 0)


def build_optimiser(network: Network, config: OptimiserConfig) -> torch.optim.Optimizer:
    """Return AdamW or SGD for the parts of the network that are not frozen.

    Each part is a group of parameters, with its `multiple` of the learning rate. A part with a
    multiple of 0 is frozen: its parameters no longer require gradients. Custom architectures may
    have parts of other names, whose multiple is 1.
    """
    multiples: dict[str, float] = dict(config.parts.items())
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in network.named_parameters():
        part = name.partition(".")[0]
        multiple = multiples.get(part, 1.0)
        if multiple == 0:
            parameter.requires_grad_(False)
            continue
        group = groups.setdefault(part, {"params": [], "multiple": multiple})
        group["params"].append(parameter)
    if config.kind == "sgd":
        return torch.optim.SGD(
            list(groups.values()),
            config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    # On a GPU the update runs in one fused kernel; many small kernels would be slow.
    on_gpu = all(parameter.is_cuda for parameter in network.parameters())
    return torch.optim.AdamW(
        list(groups.values()),
        config.rate,
        weight_decay=config.weight_decay,
        fused=True if on_gpu else None,
    )


def optimiser_tensors(
    network: Network, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Return the optimiser's state of each parameter, by "parameter name/key of the state".

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
    network: Network, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Replace the optimiser's state by the tensors from `optimiser_tensors`.

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
            # Adam's step count: on the parameter's device if the optimiser is fused.
            device = parameter.device if is_fused else value.device
            empty = torch.empty_like(value, device=device)
        optimiser.state[parameter][key] = empty.copy_(value)
