"""Results of finished jobs: weights to start from, and the model of a run.

A job is the training of one stage of a recipe for one view. A finished job has the file done.json
and its checkpoints (states). Its result is the checkpoint with the best validation, or the last one
if it was not validated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinat.segmentation.errors import IntegrityError, TrainingError
from trinat.segmentation.io.files import read_text
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import GENERATION_SURROUNDINGS
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model, read_info, save_model
from trinat.segmentation.models.model_info import Description, Fusion, Training
from trinat.segmentation.models.zoo import OWN_LICENCE, find_model, licence_of
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, StageConfig, StoreConfig
from trinat.segmentation.training.state import State, read_latest, read_state

_log = logging.getLogger(__name__)

# Files in a job's folder: the mark of a finished job, and the checkpoint with the best validation.
DONE = "done.json"
BEST = "best.state"
# Files in a run's folder: its recipe, the description of its stores, and its label scheme.
CONFIG = "config.yaml"
DATA = "data.json"
SCHEME = "scheme.json"


@dataclass(frozen=True)
class Job:
    """Training of one stage of a recipe, for one view.

    The jobs of a run are trained one after the other, or by several commands at the same time. Each
    job has checkpoints of its own, and the next stage of the same view starts from these.
    """

    stage: StageConfig
    view: View

    @property
    def name(self) -> str:
        """Folder of the job in the run: <stage>/<view>."""
        return f"{self.stage.name}/{self.view.value}"

    def is_done(self, out: Path) -> bool:
        """Return True if the training of the job is complete; `out` is the folder of the run."""
        return (out / self.name / DONE).is_file()


def plan_jobs(recipe: Recipe, views: Sequence[View]) -> list[Job]:
    """Return the jobs of a run in the order of training: stage by stage, and view by view.

    A job trains one stage for one view. A stage without any of `views` has none.
    """
    return [
        Job(stage, view)
        for stage in recipe.stages
        for view in views
        if view in recipe.views_of(stage)
    ]


def _last_finished_job(
    stages: Sequence[StageConfig], view: View, out: Path
) -> Job | None:
    """Return the last job of a view that is finished, of those in `stages`; None if none is."""
    for stage in reversed(stages):
        job = Job(stage, view)
        if job.is_done(out):
            return job
    return None


def best_dice(recipe: Recipe, out: Path) -> float | None:
    """Return the best mean Dice on the validation scans, averaged over the jobs of a run's views.

    Only the last finished job of each view counts. Returns None if no job is finished, or if one of
    these jobs was not validated.
    """
    best: list[float] = []
    for view in recipe.views:
        job = _last_finished_job(recipe.stages, view, out)
        if job is None:
            continue
        of_job = json.loads(read_text(out / job.name / DONE))["best"]
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
    """Load the network of a view as it was after the last of some stages; return it with its view.

    If no stage has trained this view, the network of another view is loaded, and that view is
    returned: the first view of the recipe that has been trained. The weights are the moving average
    over steps if the stage has one. Raises TrainingError if no view is trained. Damaged checkpoints
    are logged.
    """
    jobs = [_last_finished_job(stages, each, out) for each in (view, *recipe.views)]
    job = next((job for job in jobs if job is not None), None)
    if job is None:
        names = ", ".join(stage.name for stage in stages)
        raise TrainingError(f"{names} has no {view.value} network", where=out)
    state = _best_or_last(out / job.name)
    classes = len(load_scheme(recipe.scheme).seen_in(job.view))
    network = build(recipe.network.model_copy(update={"classes": classes}))
    weights = state.network
    if job.stage.ema:
        weights = state.average
    network.load_state_dict(weights)
    return network, job.view


def first_weights(
    recipe: Recipe,
    stage: StageConfig,
    view: View,
    out: Path,
) -> tuple[Network, LabelScheme] | None:
    """Load the network from which a stage starts a view, with the label scheme of its classes.

    It is, in this order: the network of this view after the earlier stages, that of the model named
    by the stage's `start`, or the network of another view after the earlier stages. Returns None if
    the stage starts from random weights; for a later stage that is logged. `out` is the folder of
    the run.
    """
    start = recipe.start_of(stage, view)
    if start is not None:
        model = load_model(start)
        other = view
        if other not in model.networks:
            # A view that the model lacks starts from one of its other views.
            other = next(iter(model.networks))
        return model.networks[other], model.classes_of(other)
    before = recipe.stages[: recipe.stages.index(stage)]
    trains_view = any(view in recipe.views_of(each) for each in before)
    has_finished = any(_last_finished_job(before, each, out) for each in recipe.views)
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
    """Read the best checkpoint of a finished job, or the last if the best is missing or damaged.

    `folder` is the folder of the job. Raises TrainingError if all checkpoints are damaged.
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
    """Write the model of a run with all views that are finished so far; return the views' names.

    A view is finished once its last stage is. The model includes the user's own label scheme, if
    there is one, a description of its training data, and the structures that these data did not
    have. `out` is the folder of the run, and `model` that of the model.
    """
    scheme = load_scheme(recipe.scheme)
    networks = {}
    for view in recipe.views:
        stages = [stage for stage in recipe.stages if view in recipe.views_of(stage)]
        if stages and Job(stages[-1], view).is_done(out):
            networks[view] = trained(recipe, stages, view, out)[0]
    slices_seen = 0
    for job in plan_jobs(recipe, recipe.views):
        if job.is_done(out):
            steps = json.loads(read_text(out / job.name / DONE))["step"]
            slices_seen += steps * job.stage.batch * job.stage.accumulate
    # The licence of a model that a run starts from also applies to the trained model. trinat's own
    # licence does not require this.
    starts = [stage.start for stage in recipe.stages if stage.start is not None]
    licences = {licence_of(find_model(start)) for start in starts}
    label_table = None
    if scheme.name != recipe.scheme:
        # The user's own file, which is copied into the model.
        label_table = recipe.scheme
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
            csf=_csf_of_data(recipe, out),
            training=Training(
                data=_describe_data(recipe, out),
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
    """Return the settings for fusing views that the new model takes from its starting model.

    They were fitted to that model, so they suit the new one better than the defaults, provided that
    all views start from this model and it has each of them; otherwise the defaults are returned.
    The factors on the odds of structures are always dropped, because training makes them
    unnecessary. The factor on the odds of CSF is dropped if the new training data define CSF
    differently.
    """
    start_of: dict[View, Path | None] = dict.fromkeys(recipe.views)
    for stage in recipe.stages:
        for view in recipe.views_of(stage):
            start_of[view] = start_of[view] or recipe.start_of(stage, view)
    starts = set(start_of.values())
    start = starts.pop()
    if start is None or starts:
        return Fusion()
    model = read_info(find_model(start))
    if not set(recipe.views) <= set(model.architectures):
        return Fusion()
    changed: dict[str, object] = {"class_odds": {}}
    if model.csf != _csf_of_data(recipe, out):
        changed["csf_odds"] = 1.0
    return model.fusion.model_copy(update=changed)


def _describe_data(recipe: Recipe, out: Path) -> str:
    """Return a text on the training data of a model, such as "scans of a slice store (CC BY 4.0)".

    It has the kind of scans, their licences, and the model that the training started from. A store
    that only validates is not described.
    """
    seen = "synthetic scans"
    licences: set[str] = set()
    for stage in recipe.stages:
        if stage.data.trains_on_store:
            seen = "scans of a slice store"
            licences.update(_data_of_store(recipe, stage, out)["licences"])
    if licences:
        seen += f" ({'; '.join(sorted(licences))})"
    starts = [stage.start for stage in recipe.stages if stage.start is not None]
    for start in dict.fromkeys(starts):
        # A model may be given to other people, so it must not contain paths of this disk.
        seen += f", from the weights of {'/'.join(start.parts[-2:])}"
    return seen


def _not_predicted(recipe: Recipe, scheme: LabelScheme, out: Path) -> set[str]:
    """Return the names of the structures that no training data of a run have.

    `scheme` is the label scheme of the recipe, and `out` the folder of the run. Such structures
    cannot be predicted by the model.
    """
    # Label maps for synthesis have no small region of CSF like FreeSurfer's; with `learn_fluid` all
    # fluid is CSF.
    csf = {
        label.name
        for label in scheme.labels
        if set(label.numbers) == {GENERATION_SURROUNDINGS}
    }
    untaught: list[set[str]] = []
    for stage in recipe.stages:
        synthetic = stage.data.synthetic
        if synthetic is not None and stage.data.trains_on_synthetic:
            untaught.append(set() if synthetic.synthesis.learn_fluid else csf)
        if stage.data.trains_on_store:
            of_store = _data_of_store(recipe, stage, out)
            untaught.append(set(of_store["not_predicted"]))
    if not untaught:
        return set()
    return set.intersection(*untaught)


def _csf_of_data(recipe: Recipe, out: Path) -> Csf:
    """Return the definition of CSF in the training data of the last stage.

    "intracranial" means all fluid inside the skull, and is returned only if all data of the stage
    define it so. "region" is the small region that manual and FreeSurfer labels have, unless
    `trinat prepare` filled in all fluid.
    """
    last = recipe.stages[-1]
    synthetic = last.data.synthetic
    taught: set[Csf] = set()
    if last.data.trains_on_store:
        taught.add(_data_of_store(recipe, last, out)["csf"])
    if synthetic is not None and last.data.trains_on_synthetic:
        taught.add("intracranial" if synthetic.synthesis.learn_fluid else "region")
    if taught == {"intracranial"}:
        return "intracranial"
    return "region"


def _data_of_store(recipe: Recipe, stage: StageConfig, out: Path) -> dict[str, Any]:
    """Return the description of a stage's slice store, from data.json in the folder of the run.

    Stores are found by their order in the stages: they may have moved since the run began.
    """
    wanted = stage.data.store
    assert wanted is not None
    found: list[dict[str, Any]] = list(read_data(out).values())
    places = [(store.path, store.split) for store in stores_of(recipe).values()]
    return found[places.index((wanted.path, wanted.split))]


def stores_of(recipe: Recipe) -> dict[str, StoreConfig]:
    """Return the slice stores of a recipe, by their names in data.json.

    The name is the path of the store. If a later stage uses the same store with another split, the
    path of this split is added.
    """
    stores: dict[str, StoreConfig] = {}
    for stage in recipe.stages:
        store = stage.data.store
        if store is None:
            continue
        name = str(store.path)
        if name in stores and stores[name].split != store.split:
            name = f"{name}, {store.split}"
        stores[name] = store
    return stores


def read_data(out: Path) -> dict[str, Any]:
    """Read data.json, the descriptions of a run's slice stores, by the names of `stores_of`.

    {} for a run with synthetic scans only. Values are those of `run._describe_store`.
    """
    path = out / DATA
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(read_text(path))
    return found


def pseudo_labels(recipe: Recipe, out: Path) -> str:
    """Return the names of the models whose predictions served as training labels, joined by "; ".

    The labels that the starting weights were trained on are included. The text is for the model's
    description. It is empty if people made all labels.
    """
    made = {found["pseudo_labels"] for found in read_data(out).values()}
    for stage in recipe.stages:
        if stage.start is not None:
            made.add(read_info(find_model(stage.start)).training.pseudo_labels)
    return "; ".join(sorted(made - {""}))
