"""One network that learns several views at once: a shared trunk, and a classifier per view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Classifier, Network, NetworkConfig
from trinat.segmentation.space.views import View


class ViewsNet(nn.Module):
    """Slices of several views, group by group, to logits; with one view a plain network."""

    def __init__(self, config: NetworkConfig, classes: Mapping[View, int]) -> None:
        super().__init__()
        self.config = config
        self.trunk = build(config)
        self.trunk.classifier = nn.Identity()  # type: ignore[assignment]
        self.configs = {
            v: config.model_copy(update={"classes": k}) for v, k in classes.items()
        }
        self.classifiers = nn.ModuleDict(
            {view.value: self.trunk.new_classifier(k) for view, k in classes.items()}
        )

    def forward(
        self,
        slices: Tensor,
        groups: Sequence[tuple[View, int]],
        trunk: Callable[[Tensor], Tensor] | None = None,
    ) -> list[Tensor]:
        """Logits of each group; `trunk` is the network's own, compiled."""
        rows, columns = slices.shape[-2:]
        features: Tensor = (trunk or self.trunk.features)(slices)
        parts = torch.split(features, [count for _, count in groups])
        return [
            self.classifiers[view.value](part)[..., :rows, :columns]
            for (view, _), part in zip(groups, parts, strict=True)
        ]

    def extract(self, view: View) -> Network:
        """A copy of one view's network, on its own."""
        alone = build(self.configs[view])
        state = self.trunk.state_dict()
        classifier = self.classifiers[view.value].state_dict()
        state |= {f"classifier.{name}": value for name, value in classifier.items()}
        alone.load_state_dict(state)
        return alone

    def part_parameters(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Part (encoders, bottleneck, decoders, classifier), name and value of each parameter."""
        for name, parameter in self.named_parameters():
            first, second = name.split(".")[:2]
            yield ("classifier" if first == "classifiers" else second), name, parameter


@torch.no_grad()
def copy_matching(
    network: ViewsNet,
    view: View,
    source: Network,
    theirs: LabelScheme,
    ours: LabelScheme,
) -> tuple[int, list[str]]:
    """Take from `source` what fits: weights by name and shape, the classifier's rows by structure.

    `theirs` and `ours` are the classes of the two. -> how many classes have the source's row, and
    which weights of the trunk are not the source's.
    """
    given, missing = source.state_dict(), []
    for name, value in network.trunk.state_dict().items():
        if name in given and given[name].shape == value.shape:
            value.copy_(given[name])
        else:
            missing.append(name)
    own = cast("Classifier", network.classifiers[view.value])
    old, new = source.classifier.by_class(), own.by_class()
    # Rows for other features cannot be used, whatever their names.
    fits = old["weight"].shape[1:] == new["weight"].shape[1:]
    pairs = [
        (ours.names.index(name), theirs.names.index(name))
        for name in ours.names
        if fits and name in theirs.names
    ]
    for row, taken in pairs:
        for name, values in new.items():
            values[row] = old[name][taken]
    return len(pairs), missing


@torch.no_grad()
def update_average(
    average: nn.Module, network: nn.Module, decay: float, step: int
) -> None:
    """Move the running average of the weights; young averages follow faster."""
    decay = min(decay, (1 + step) / (10 + step))
    now = network.state_dict()
    pairs = [(value, now[name]) for name, value in average.state_dict().items()]
    moving = [pair for pair in pairs if pair[0].is_floating_point()]
    # All at once: a GPU would wait for two hundred small launches.
    averages, values = (list(part) for part in zip(*moving, strict=True))
    get_ema_multi_avg_fn(decay)(averages, values, 0)  # type: ignore[no-untyped-call]
    for value, latest in pairs:
        if not value.is_floating_point():
            value.copy_(latest)
