"""trinat average: the mean of several models' weights, kept where validation gains by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, update_bn

from trinat.pipelines.common.config import check
from trinat.pipelines.models.bundle import check_out, find_source
from trinat.pipelines.train.data import open_data
from trinat.pipelines.train.result import CONFIG
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model, save_model
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, ValidationConfig
from trinat.segmentation.training.state import seeded
from trinat.segmentation.training.validation import validate

# Of the generators of a seed: training has 0 to 2.
_STREAM = 3


@dataclass(frozen=True)
class Gain:
    """Mean validation Dice of a view's members, and of the mean of those that were kept."""

    view: View
    members: tuple[float, ...]
    kept: tuple[int, ...]
    mean: float

    def __str__(self) -> str:
        alone = " ".join(f"{dice:.4f}" for dice in self.members)
        return (
            f"{self.view.value}: Dice {alone}; mean of {len(self.kept)} {self.mean:.4f} "
            f"({self.mean - max(self.members):+.4f} over the best)"
        )


def average(
    given: Sequence[Path],
    out: Path,
    *,
    greedy: bool = False,
    batches: int = 50,
    device: str = "auto",
    overwrite: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> list[Gain]:
    """Write the mean of models to `out`; statistics and validation as in the first run's recipe."""
    check_out(out, overwrite)
    if len(given) < 2:
        raise ConfigError("there is no mean of one", remedy="give two runs or more")
    models = [load_model(find_source(place)) for place in given]
    first, chosen = models[0], choose_device(device)
    shapes = [
        (m.info.architectures, m.info.labels_sha256, m.info.preprocessing)
        for m in models
    ]
    for place, shape in zip(given, shapes, strict=True):
        if shape != shapes[0]:
            what = f"has other networks or labels than {given[0]}"
            raise ConfigError(what, where=place, remedy="give runs of one recipe")
    config = given[0] / CONFIG
    if not config.is_file():
        raise ConfigError(
            "has no recipe to take data from", where=given[0], remedy="give a run"
        )
    recipe = read_recipe(str(config))
    gains, networks = [], {}
    for view in first.networks:
        members = [model.networks[view].to(chosen) for model in models]
        gain, networks[view] = _mean(members, recipe, view, batches, greedy, chosen)
        gains.append(gain)
        say(str(gain))
    said = {key: getattr(first.info, key) for key in Description.model_fields}
    dice = {gain.view.value: gain.mean for gain in gains}
    # Limits of quality and scores are those of other weights.
    changes = {
        "name": out.resolve().name,
        "quality": None,
        "metrics": {"validation_dice": dice},
    }
    save_model(
        out,
        check(Description, {**said, **changes}, out),
        networks,
        label_table=first.label_table,
        template=first.template,
        precision=first.info.precision,
        overwrite=overwrite,
    )
    return gains


def _mean(
    members: Sequence[Network],
    recipe: Recipe,
    view: View,
    batches: int,
    greedy: bool,
    device: torch.device,
) -> tuple[Gain, Network]:
    stage = [s for s in recipe.stages if view in (s.views or recipe.views)][-1]
    stage = stage.model_copy(
        update={"validation": stage.validation or ValidationConfig()}
    )
    with open_data(
        recipe, stage, (view,), load_scheme(recipe.scheme), device, 1
    ) as data:
        source, scans = data

        def images() -> Iterator[Tensor]:  # the same at each call
            for first in range(0, batches * stage.batch, stage.batch):
                generator = seeded(device, recipe.seed, _STREAM, first)
                yield source.draw(view, first, stage.batch, generator).images

        def of(some: Sequence[int]) -> Network:
            # As it was saved, one alone has the statistics that belong to it.
            if len(some) == 1:
                return members[some[0]]
            mean = mean_of([members[n] for n in some])
            update_bn(images(), mean)
            return mean.eval()

        def score(network: Network) -> float:
            classes, channels = network.config.classes, network.config.channels
            return validate(network, scans(view), classes, channels, device).mean_dice

        scores = [score(network) for network in members]
        kept = (
            soup(scores, lambda some: score(of(some)))
            if greedy
            else range(len(members))
        )
        mean = of(kept)
        return Gain(view, tuple(scores), tuple(kept), score(mean)), mean


def mean_of(networks: Sequence[Network]) -> Network:
    """The mean of the weights; statistics of norms are the first one's, and are to be renewed."""
    mean = AveragedModel(networks[0])
    for network in networks:
        mean.update_parameters(network)
    assert isinstance(mean.module, Network)
    return mean.module


def soup(scores: Sequence[float], score: Callable[[Sequence[int]], float]) -> list[int]:
    """From the best on, each member that does not make the mean worse (arXiv 2203.05482)."""
    order = sorted(range(len(scores)), key=lambda n: -scores[n])
    kept, best = order[:1], scores[order[0]]
    for member in order[1:]:
        if (found := score([*kept, member])) >= best:
            kept, best = [*kept, member], found
    return kept
