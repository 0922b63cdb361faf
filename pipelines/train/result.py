"""What the finished jobs of a run have left: weights to start from, and the model made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trinat.segmentation.errors import IntegrityError, TrainingError
from trinat.segmentation.io.files import read_text
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Training
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.network import ViewsNet
from trinat.segmentation.training.state import State, read_latest, read_state

# In a job's folder: when it is finished, and the state that validated best.
DONE, BEST = "done.json", "best.state"
# In a run's folder: what it found in its stores.
DATA = "data.json"


def _finished(out: Path, stage: StageConfig, view: View) -> Path | None:
    """The folder of the finished job of a stage that trained a view, alone or with others."""
    folders = (done.parent for done in sorted((out / stage.name).glob(f"*/{DONE}")))
    return next((folder for folder in folders if view.value in folder.name.split("-")), None)


def trained(
    recipe: Recipe, stages: Sequence[StageConfig], view: View, out: Path, say: Callable[[str], None]
) -> tuple[Network, View]:
    """A view's network after the last of some stages that trained it: the best state, or the last.

    A view that none has trained gets another view's network; returns that view.
    """
    found = (
        (stage, folder, each)
        for each in (view, *recipe.views)
        for stage in reversed(stages)
        for folder in [_finished(out, stage, each)]
        if folder is not None
    )
    try:
        stage, folder, view = next(found)
    except StopIteration:
        names = ", ".join(stage.name for stage in stages)
        raise TrainingError(f"{names} left no {view.value} network", where=out) from None
    views = [View(name) for name in folder.name.split("-")]
    state, scheme = _best_or_last(folder, say), load_scheme(recipe.scheme)
    network = ViewsNet(recipe.network, {each: len(scheme.seen_in(each)) for each in views})
    network.load_state_dict(state.average if stage.ema else state.network)
    return network.extract(view), view


def first_weights(
    recipe: Recipe, stage: StageConfig, view: View, out: Path, say: Callable[[str], None]
) -> tuple[Network, LabelScheme] | None:
    """The network that a stage starts a view from, and its classes; None for random weights."""
    if stage.start is not None:
        model = load_model(stage.start)
        # A view that the model lacks starts from another.
        other = view if view in model.networks else next(iter(model.networks))
        return model.networks[other], model.classes_of(other)
    before = recipe.stages[: recipe.stages.index(stage)]
    finished = any(_finished(out, each, other) for each in before for other in recipe.views)
    if not finished and not any(view in (each.views or recipe.views) for each in before):
        if before:
            say(f"{stage.name}: {view.value} starts from random weights: no other view is here")
        return None
    network, other = trained(recipe, before, view, out, say)
    return network, load_scheme(recipe.scheme).seen_in(other)


def _best_or_last(folder: Path, say: Callable[[str], None]) -> State:
    """A finished job's best state, or the last where none was chosen or it is damaged."""
    if (folder / BEST).is_file():
        try:
            return read_state(folder / BEST)
        except IntegrityError as error:
            say(f"{error}: the last state is used instead of the best")
    state, problems = read_latest(folder)
    for problem in problems:
        say(f"{problem}: the state before it is used")
    if state is None:
        raise TrainingError(
            "no sound state is left", where=folder, remedy="delete this folder and --resume the run"
        )
    return state


def save_run(recipe: Recipe, out: Path, model: Path, say: Callable[[str], None]) -> list[str]:
    """Write the model folder of all views that are finished so far; returns their names."""
    scheme = load_scheme(recipe.scheme)
    networks = {}
    for view in recipe.views:
        stages = [stage for stage in recipe.stages if view in (stage.views or recipe.views)]
        if stages and _finished(out, stages[-1], view):
            networks[view] = trained(recipe, stages, view, out, say)[0]
    slices = 0
    for done in out.glob(f"*/*/{DONE}"):
        config = next(s for s in recipe.stages if s.name == done.parent.parent.name)
        slices += json.loads(done.read_text())["step"] * config.batch * config.accumulate
    data = read_data(out)
    synthetic = all(s.data.synthetic is not None and s.data.store is None for s in recipe.stages)
    seen = "synthetic scans" if synthetic else "scans of a slice store"
    # A model is given to others: it must not contain paths of this disk.
    starts = (stage.start for stage in recipe.stages if stage.start is not None)
    started = ["/".join(start.parts[-2:]) for start in starts]
    # Label maps for synthesis have no CSF like FreeSurfer's; all of it may be taught.
    csf = {label.name for label in scheme.labels if set(label.numbers) == {GENERATION_SURROUNDINGS}}
    untaught = [
        set() if stage.data.synthetic.synthesis.learn_fluid else csf
        for stage in recipe.stages
        if stage.data.synthetic is not None
    ]
    untaught += [set(found["not_predicted"]) for found in data.values()]
    never = set.intersection(*untaught) if untaught else set()
    own = scheme.name != recipe.scheme
    save_model(
        model,
        Description(
            name=recipe.name,
            labels=scheme.name,
            not_predicted=tuple(name for name in scheme.names if name in never),
            training=Training(
                data=", from the weights of ".join([seen, *started]),
                recipe=recipe.name,
                pseudo_labels=pseudo_labels(recipe, out),
                slices_seen=slices,
            ),
        ),
        networks,
        label_table=recipe.scheme if own else None,
        precision=recipe.stored,
        overwrite=True,
    )
    return [view.value for view in networks]


def read_data(out: Path) -> dict[str, Any]:
    """What a run found in each of its stores; of synthetic scans alone nothing."""
    path = out / DATA
    found: dict[str, Any] = json.loads(read_text(path)) if path.is_file() else {}
    return found


def pseudo_labels(recipe: Recipe, out: Path) -> str:
    """Which models made labels that the weights saw, in this run or before it."""
    made = {found["pseudo_labels"] for found in read_data(out).values()}
    for stage in recipe.stages:
        if stage.start is not None:
            made.add(read_info(find_model(stage.start)).training.pseudo_labels)
    return "; ".join(sorted(made - {""}))
