"""Results of finished jobs: weights to start from, and the model of a run.

A finished job has done.json and its states. The weights that count are those of the state that
validated best, or of the last one where nothing was validated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinat.segmentation.errors import IntegrityError, TrainingError
from trinat.segmentation.io.files import read_text
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion, Training
from trinat.segmentation.models.zoo import OWN_LICENCE, find_model, licence_of
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.network import ViewsNet
from trinat.segmentation.training.state import State, read_latest, read_state

_log = logging.getLogger(__name__)

# In a job's folder: when it is finished, and the state that validated best.
DONE = "done.json"
BEST = "best.state"
# In a run's folder: its recipe, and what it found in its stores.
CONFIG = "config.yaml"
DATA = "data.json"


def _finished(out: Path, stage: StageConfig, view: View) -> Path | None:
    """Find the folder of the finished job of a stage that trained a view."""
    for done in sorted((out / stage.name).glob(f"*/{DONE}")):
        folder = done.parent
        if view.value in folder.name.split("-"):
            return folder
    return None


def _last_finished(
    recipe: Recipe,
    stages: Sequence[StageConfig],
    view: View,
    out: Path,
) -> tuple[StageConfig, Path, View]:
    """Find the last of some stages that trained a view, with its job's folder and the view.

    Where none has trained this view: the same of the first view of the recipe that one has.
    """
    for each in (view, *recipe.views):
        for stage in reversed(stages):
            folder = _finished(out, stage, each)
            if folder is not None:
                return stage, folder, each
    names = ", ".join(stage.name for stage in stages)
    raise TrainingError(f"{names} has no {view.value} network", where=out)


def best_dice(recipe: Recipe, out: Path) -> float | None:
    """Return the mean over the finished views of each one's best Dice in its last stage.

    None where none is finished, or one was not validated.
    """
    jobs = set()
    for view in recipe.views:
        for stage in reversed(recipe.stages):
            folder = _finished(out, stage, view)
            if folder is not None:
                jobs.add(folder)
                break
    best: list[float] = []
    for job in jobs:
        of_job = json.loads(read_text(job / DONE))["best"]
        if of_job is None:
            return None
        best.append(of_job)
    return sum(best) / len(best) if best else None


def trained(
    recipe: Recipe,
    stages: Sequence[StageConfig],
    view: View,
    out: Path,
) -> tuple[Network, View]:
    """Load a view's network after the last of some stages that trained it, with its view.

    Its weights are the moving average where the stage has one. A view that none has trained gets
    another view's network. TrainingError where no view is trained. Each damaged state is
    logged.
    """
    stage, folder, view = _last_finished(recipe, stages, view, out)
    views = [View(name) for name in folder.name.split("-")]
    state = _best_or_last(folder)
    scheme = load_scheme(recipe.scheme)
    classes = {each: len(scheme.seen_in(each)) for each in views}
    network = ViewsNet(recipe.network, classes)
    weights = state.network
    if stage.ema:
        weights = state.average
    network.load_state_dict(weights)
    return network.extract(view), view


def first_weights(
    recipe: Recipe,
    stage: StageConfig,
    view: View,
    out: Path,
) -> tuple[Network, LabelScheme] | None:
    """Load the network that a stage starts a view from, with its classes; None if random.

    That is the stage's own `start`, a model, or what the stages before left of this view, else
    of another. It is logged where a later stage starts from random weights after all.
    """
    if stage.start is not None:
        model = load_model(stage.start)
        other = view
        if other not in model.networks:
            # A view that the model lacks starts from another.
            other = next(iter(model.networks))
        return model.networks[other], model.classes_of(other)
    before = recipe.stages[: recipe.stages.index(stage)]
    trains_view = any(view in (each.views or recipe.views) for each in before)
    has_finished = any(
        _finished(out, each, other) for each in before for other in recipe.views
    )
    if not trains_view and not has_finished:
        if before:
            _log.info(
                "%s: %s starts from random weights: no other view is here",
                stage.name,
                view.value,
            )
        return None
    network, other = trained(recipe, before, view, out)
    return network, load_scheme(recipe.scheme).seen_in(other)


def _best_or_last(folder: Path) -> State:
    """Read a finished job's best state, or the last if there is none or it is damaged.

    TrainingError where no state is sound.
    """
    if (folder / BEST).is_file():
        try:
            return read_state(folder / BEST)
        except IntegrityError as error:
            _log.warning("%s: the last state is used instead of the best", error)
    state, problems = read_latest(folder)
    for problem in problems:
        _log.warning("%s: the state before it is used", problem)
    if state is None:
        raise TrainingError(
            "no sound state is left",
            where=folder,
            remedy="delete this folder and --resume the run",
        )
    return state


def save_run(
    recipe: Recipe,
    out: Path,
    model: Path,
) -> list[str]:
    """Write the model folder of all views that are finished so far; return their names.

    A view is finished once the last of its stages is. The model takes along a label scheme of the
    user's own, what its training data were, and which structures they never showed.
    """
    scheme = load_scheme(recipe.scheme)
    networks = {}
    for view in recipe.views:
        stages = [
            stage for stage in recipe.stages if view in (stage.views or recipe.views)
        ]
        if stages and _finished(out, stages[-1], view):
            networks[view] = trained(recipe, stages, view, out)[0]
    slices_seen = 0
    stages_by_name = {stage.name: stage for stage in recipe.stages}
    for done in out.glob(f"*/*/{DONE}"):
        stage = stages_by_name[done.parent.parent.name]
        steps = json.loads(done.read_text())["step"]
        slices_seen += steps * stage.batch * stage.accumulate
    # Licences of models whose weights a run starts from hold for what it makes. That of trinat
    # itself allows another one for what is made of it.
    starts = [stage.start for stage in recipe.stages if stage.start is not None]
    licences = {licence_of(find_model(start)) for start in starts}
    label_table = None
    if scheme.name != recipe.scheme:
        label_table = recipe.scheme  # a file of the user's, which the model takes along
    never = _not_predicted(recipe, scheme, out)
    save_model(
        model,
        Description(
            name=recipe.name,
            labels=scheme.name,
            fusion=_fusion_of_start(recipe, out),
            contrast=recipe.contrast,
            reverse_contrast=recipe.reverse_contrast,
            stripped_by=recipe.stripped_by,
            not_predicted=tuple(name for name in scheme.names if name in never),
            csf=_csf_taught(recipe, out),
            training=Training(
                data=_data_seen(recipe, out),
                licence="; ".join(sorted(licences - {"", OWN_LICENCE})),
                recipe=recipe.name,
                pseudo_labels=pseudo_labels(recipe, out),
                slices_seen=slices_seen,
            ),
        ),
        networks,
        label_table=label_table,
        precision=recipe.stored,
        overwrite=True,
    )
    return [view.value for view in networks]


def _fusion_of_start(recipe: Recipe, out: Path) -> Fusion:
    """Return the fusion of the model that the weights come from; the defaults without one.

    Weights that were fitted to that model are closer than those of the paper, if all views come
    from it and it has each of them. The odds of CSF are dropped if the model taught another kind of
    CSF, and the odds of structures always, because training makes them needless.
    """
    start_of: dict[View, Path | None] = dict.fromkeys(recipe.views)
    for stage in recipe.stages:
        if stage.start is not None:
            start_of.update(dict.fromkeys(stage.views or recipe.views, stage.start))
    starts = {start_of[view] for view in recipe.views}
    start = starts.pop()
    if start is None or starts:
        return Fusion()
    model = read_info(find_model(start))
    if not set(recipe.views) <= set(model.architectures):
        return Fusion()
    changed: dict[str, object] = {"class_odds": {}}
    if model.csf != _csf_taught(recipe, out):
        changed["csf_odds"] = 1.0
    return model.fusion.model_copy(update=changed)


def _data_seen(recipe: Recipe, out: Path) -> str:
    """Describe the training data of a model.

    That is the kind of scans and their licence, and the weights that it starts from.
    """
    sources = [stage.data for stage in recipe.stages]
    seen = "synthetic scans"
    for data in sources:
        if data.store is not None or data.synthetic is None:
            seen = "scans of a slice store"
    licences: set[str] = set()
    for of_store in read_data(out).values():
        licences.update(of_store["licences"])
    if licences:
        seen += f" ({'; '.join(sorted(licences))})"
    for stage in recipe.stages:
        if stage.start is not None:
            # A model is given to others: it must not contain paths of this disk.
            start = "/".join(stage.start.parts[-2:])
            seen += f", from the weights of {start}"
    return seen


def _not_predicted(recipe: Recipe, scheme: LabelScheme, out: Path) -> set[str]:
    """Return the names of the structures that no source of slices of a run teaches."""
    # Label maps for synthesis have no CSF like FreeSurfer's; all of it may be taught.
    csf = {
        label.name
        for label in scheme.labels
        if set(label.numbers) == {GENERATION_SURROUNDINGS}
    }
    untaught: list[set[str]] = []
    for stage in recipe.stages:
        if stage.data.synthetic is None:
            continue
        if stage.data.synthetic.synthesis.learn_fluid:
            untaught.append(set())
        else:
            untaught.append(csf)
    of_stores = read_data(out).values()
    untaught += [set(of_store["not_predicted"]) for of_store in of_stores]
    if not untaught:
        return set()
    return set.intersection(*untaught)


def _csf_taught(recipe: Recipe, out: Path) -> Csf:
    """Return the kind of CSF that the last stage of a recipe teaches.

    Labels of people and of FreeSurfer have a small region, unless `trinat prepare` filled in all
    fluid. All fluid is learnt only where all sources of the stage have it.
    """
    data = recipe.stages[-1].data
    taught: set[Csf] = set()
    if data.store is not None:
        # In the order of the stages: stores may lie elsewhere than when the run began.
        places = [
            stage.data.store.path
            for stage in recipe.stages
            if stage.data.store is not None
        ]
        found = list(read_data(out).values())
        of_store = found[list(dict.fromkeys(places)).index(data.store.path)]
        taught.add(of_store["csf"])
    if data.synthetic is not None and data.synthetic.synthesis.learn_fluid:
        taught.add("intracranial")
    elif data.synthetic is not None:
        taught.add("region")
    if taught == {"intracranial"}:
        return "intracranial"
    return "region"


def read_data(out: Path) -> dict[str, Any]:
    """Read what a run found in each of its stores; empty for synthetic scans alone."""
    path = out / DATA
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(read_text(path))
    return found


def pseudo_labels(recipe: Recipe, out: Path) -> str:
    """Name the models whose predictions served as training labels, joined by "; ".

    Includes the labels that the starting weights were trained on. The text is for the model's
    description. It is empty if people made all labels.
    """
    made = {found["pseudo_labels"] for found in read_data(out).values()}
    for stage in recipe.stages:
        if stage.start is not None:
            made.add(read_info(find_model(stage.start)).training.pseudo_labels)
    return "; ".join(sorted(made - {""}))
