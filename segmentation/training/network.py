"""Network that learns several views at once, with a shared trunk and a classifier for each view.

The module also has its optimiser: learning rates by part of the network, and the optimiser's state
by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Classifier, Network, NetworkConfig
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import NetworkPart, OptimiserConfig


class ViewsNet(nn.Module):
    """Network for slices of several views; with one view it equals a plain network.

    `trunk` is everything before the classifier, `classifiers` has one classifier for each view, and
    `configs` the configuration of each view's network.
    """

    def __init__(self, config: NetworkConfig, classes: Mapping[View, int]) -> None:
        """Build the trunk and a classifier for each view.

        `config` describes the network of one view, and `classes` has the number of classes of each
        view.
        """
        super().__init__()
        self.config = config
        self.trunk = build(config)
        self.trunk.classifier = nn.Identity()  # type: ignore[assignment]
        self.configs: dict[View, NetworkConfig] = {}
        self.classifiers = nn.ModuleDict()
        for view, count in classes.items():
            self.configs[view] = config.model_copy(update={"classes": count})
            self.classifiers[view.value] = self.trunk.new_classifier(count)

    def forward(
        self,
        slices: Tensor,
        groups: Sequence[tuple[View, int]],
        trunk: Callable[[Tensor], Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the logits (n, K, H, W) of each group of slices.

        `slices` (N, C, H, W) are those of all groups. `groups` has the view and the number of
        slices n of each group, in the order of the slices. `trunk` is used in place of the
        network's own, for example a compiled one.
        """
        rows, columns = slices.shape[-2:]
        if trunk is None:
            trunk = self.trunk.features
        features = trunk(slices)
        parts = torch.split(features, [count for _, count in groups])
        logits = []
        for (view, _), part in zip(groups, parts, strict=True):
            classifier = self.classifiers[view.value]
            logits.append(classifier(part)[..., :rows, :columns])
        return logits

    def extract(self, view: View) -> Network:
        """Return a copy of one view's network, on its own.

        The weights are copied, so training may continue. The network has the form of a model
        folder.
        """
        alone = build(self.configs[view])
        state = self.trunk.state_dict()
        classifier = self.classifiers[view.value]
        for name, value in classifier.state_dict().items():
            state[f"classifier.{name}"] = value
        alone.load_state_dict(state)
        return alone

    def part_parameters(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Yield the part, the name and the value of each parameter.

        The part is encoders, bottleneck, decoders or classifier, or another name in other
        architectures.
        """
        for name, parameter in self.named_parameters():
            # For example trunk.encoders.0..., classifiers.axial...
            first, second = name.split(".")[:2]
            part = "classifier" if first == "classifiers" else second
            yield part, name, parameter


@torch.no_grad()
def copy_matching(
    network: ViewsNet,
    view: View,
    source: Network,
    theirs: LabelScheme,
    ours: LabelScheme,
) -> tuple[int, list[str]]:
    """Copy the weights of `source` that match into the network for a view.

    Weights of the trunk match by name and shape, rows of the classifier by the name of the
    structure. `theirs` are the classes of `source`, `ours` those of `network`. Return the number of
    classes whose row was copied, and the names of the weights of the trunk that were not.
    """
    given = source.state_dict()
    missing: list[str] = []
    for name, value in network.trunk.state_dict().items():
        if name in given and given[name].shape == value.shape:
            value.copy_(given[name])
        else:
            missing.append(name)
    classifier = cast("Classifier", network.classifiers[view.value])
    old = source.classifier.by_class()
    new = classifier.by_class()
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


def build_optimiser(
    network: ViewsNet, config: OptimiserConfig
) -> torch.optim.Optimizer:
    """Return AdamW or SGD for the parts of the network that are not frozen.

    Each part is a group of parameters, with its `multiple` of the learning rate. A part with a
    multiple of 0 is frozen: its parameters no longer require gradients. Parameters that belong to
    none of the four parts form one more group, which occurs in custom architectures.
    """
    groups: list[dict[str, Any]] = []
    for part in get_args(NetworkPart):
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
    others = [
        parameter
        for owner, _, parameter in network.part_parameters()
        if owner not in get_args(NetworkPart)
    ]
    if others:
        groups.append({"params": others, "multiple": 1.0})
    if config.kind == "sgd":
        return torch.optim.SGD(
            groups,
            config.rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    # On a GPU the update runs in one fused kernel; many small kernels would be slow.
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
    network: ViewsNet, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
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
