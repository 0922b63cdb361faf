"""trinat average: the mean of several models' weights, kept where validation gains by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, update_bn

from trinat.pipelines.common.models import check_out, description_of, find_source
from trinat.pipelines.train.data import open_data
from trinat.pipelines.train.result import CONFIG
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model, save_changed
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, ValidationConfig
from trinat.segmentation.training.state import seeded
from trinat.segmentation.training.validation import validate

# Number of this job's generator among those of a seed: training has 0 to 2.
_STREAM = 3


@dataclass(frozen=True)
class Gain:
    """Mean validation Dice of a view's members, and of the mean of those that were kept.

    `kept` has the numbers of these among the `members`.
    """

    view: View
    members: tuple[float, ...]
    kept: tuple[int, ...]
    mean: float

    def __str__(self) -> str:
        alone = " ".join(f"{dice:.4f}" for dice in self.members)
        gained = self.mean - max(self.members)
        return (
            f"{self.view.value}: Dice {alone}; mean of {len(self.kept)} {self.mean:.4f} "
            f"({gained:+.4f} over the best)"
        )


def average(
    given: Sequence[Path],
    out: Path,
    *,
    greedy: bool = False,
    batches: int = 50,
    device: str = "auto",
    overwrite: bool = False,
) -> list[Gain]:
    """Write the mean of models to `out`; return one gain for each view.

    The first of the `given` is a run, whose recipe has the data for validation and for `batches`
    batches that the statistics of norms are computed from. With `greedy`, a model is kept only if
    the mean validates no worse with it. Fewer than two models, models of different networks,
    labels or licences, and a first one without a recipe are a ConfigError.
    """
    check_out(out, overwrite)
    if len(given) < 2:
        raise ConfigError("there is no mean of one", remedy="give two runs or more")
    models = [load_model(find_source(place)) for place in given]
    first = models[0]
    chosen_device = choose_device(device)
    _check_alike(given, models)
    # The resolved recipe that a run keeps.
    config = given[0] / CONFIG
    if not config.is_file():
        raise ConfigError(
            "has no recipe to take data from", where=given[0], remedy="give a run"
        )
    recipe = read_recipe(str(config))
    gains = []
    networks = {}
    for view in first.networks:
        members = [model.networks[view].to(chosen_device) for model in models]
        gain, networks[view] = _average_view(
            members, recipe, view, batches, greedy, chosen_device
        )
        gains.append(gain)
    # The first model's description, but for what was measured of its own weights.
    dice = {gain.view.value: gain.mean for gain in gains}
    changed = {"quality": None, "metrics": {"validation_dice": dice}}
    save_changed(
        first,
        out,
        description_of(first, out).model_copy(update=changed),
        networks,
        parcels=first.parcels,
        overwrite=overwrite,
    )
    return gains


def _check_alike(given: Sequence[Path], models: Sequence[Model]) -> None:
    """Refuse models whose weights cannot be averaged with those of the first, or must not be."""
    expected = models[0].info
    for place, model in zip(given, models, strict=True):
        info = model.info
        is_alike = (
            info.architectures == expected.architectures
            and info.labels_sha256 == expected.labels_sha256
            and info.preprocessing == expected.preprocessing
            and info.contrast == expected.contrast
            and info.reverse_contrast == expected.reverse_contrast
            and info.stripped_by == expected.stripped_by
        )
        if not is_alike:
            raise ConfigError(
                f"has other networks or labels than {given[0]}",
                where=place,
                remedy="give runs of one recipe",
            )
        # The mean has one licence: who made one of its members may not have granted that.
        if info.training.licence != expected.training.licence:
            raise ConfigError(
                f"has another licence than {given[0]}",
                where=place,
                remedy="give runs of one licence",
            )


def _average_view(
    members: Sequence[Network],
    recipe: Recipe,
    view: View,
    batches: int,
    greedy: bool,
    device: torch.device,
) -> tuple[Gain, Network]:
    """Average one view's networks; return what was gained, and the mean."""
    # The last stage that trains the view, with validation whether it had it or not.
    stages = [stage for stage in recipe.stages if view in (stage.views or recipe.views)]
    validation = stages[-1].validation or ValidationConfig()
    stage = stages[-1].model_copy(update={"validation": validation})
    scheme = load_scheme(recipe.scheme)
    data = open_data(recipe, stage, (view,), scheme, device, 1)
    with data as (source, scans):

        def images() -> Iterator[Tensor]:
            """Draw batches (B, C, H, W) for the statistics of norms: the same at each call."""
            for first_slice in range(0, batches * stage.batch, stage.batch):
                generator = seeded(device, recipe.seed, _STREAM, first_slice)
                batch = source.draw(view, first_slice, stage.batch, generator)
                yield batch.images

        def averaged(kept: Sequence[int]) -> Network:
            """Return the mean of some members, ready for inference."""
            if len(kept) == 1:
                # As it was saved, one alone has the statistics that belong to it.
                return members[kept[0]]
            mean = mean_of([members[number] for number in kept])
            update_bn(images(), mean)
            return mean.eval()

        def score(network: Network) -> float:
            """Return the mean Dice over the scans that validate."""
            config = network.config
            found = validate(
                network, scans(view), config.classes, config.channels, device
            )
            return found.mean_dice

        def score_of_mean(kept: Sequence[int]) -> float:
            return score(averaged(kept))

        scores = [score(network) for network in members]
        kept = list(range(len(members)))
        if greedy:
            kept = soup(scores, score_of_mean)
        mean = averaged(kept)
        return Gain(view, tuple(scores), tuple(kept), score(mean)), mean


def mean_of(networks: Sequence[Network], *, with_statistics: bool = False) -> Network:
    """Average the weights, and `with_statistics` those of norms, too.

    Else the statistics are the first one's, and are to be renewed: those of a mean are near the
    mean of those only where networks are near each other.
    """
    mean = AveragedModel(networks[0], use_buffers=with_statistics)
    for network in networks:
        mean.update_parameters(network)
    assert isinstance(mean.module, Network)
    return mean.module


def soup(scores: Sequence[float], score: Callable[[Sequence[int]], float]) -> list[int]:
    """Choose which members to average, by "greedy soup" (arXiv 2203.05482).

    From the best member on, each is kept that does not make the mean worse. `scores` are those of
    the members alone; `score` gives that of the mean of some, named by their numbers.
    """
    best_first = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    kept = best_first[:1]
    best_score = scores[best_first[0]]
    for member in best_first[1:]:
        found = score([*kept, member])
        if found >= best_score:
            kept = [*kept, member]
            best_score = found
    return kept
