"""A training run: a recipe becomes networks, job by job.

A run has a folder: its recipe (config.yaml), what it took from stores (data.json), a folder for
each job (<stage>/<view>), and at the end the model. The same command with `resume` goes on where
a run was stopped, at the step, with the same numbers as if it had not been.

Several commands may train different jobs of one run at once. Each holds the locks of its jobs while
it trains, and that of the folder only while it reads or writes what is of the whole run. Each
writes the model of all views that are finished; the last one that of the whole run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from trinat.pipelines.common.config import check, find_recipe, read_yaml, with_settings
from trinat.pipelines.jobs.lock import refuse_existing, refuse_held, run_lock
from trinat.pipelines.jobs.process import prepare_training, stop_signals
from trinat.pipelines.train.clock import TrainingClock
from trinat.pipelines.train.foresight import (
    log_duration,
    refuse_missing_inputs,
    refuse_too_large,
)
from trinat.pipelines.train.job import (
    IN_ANOTHER_PROCESS,
    Job,
    JobRun,
    Watcher,
    train_job,
)
from trinat.pipelines.train.provenance import write_provenance
from trinat.pipelines.train.result import CONFIG, DATA, DONE, read_data, save_run
from trinat.segmentation import timing
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.errors import (
    ConfigError,
    DeviceError,
    InterruptedRunError,
    LockedError,
    TrainingError,
)
from trinat.segmentation.io.files import read_text, remove_leftovers, write_whole
from trinat.segmentation.models.architectures import PUBLISHED
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.hardware import choose_device, count_gpus
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import (
    Recipe,
    StageConfig,
    StoreConfig,
    ValidationConfig,
)
from trinat.segmentation.training.state import check_identity, has_state
from trinat.segmentation.training.workers import ALONE, Workers

_log = logging.getLogger(__name__)

# In the folder of a run, and in that of each job.
_LOCK = ".lock"
_CARD = "MODEL_CARD.md"
# Other processes hold the folder of a run for seconds only.
_PATIENCE_S = 300.0


def read_recipe(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name or file, with settings from the command line on top.

    One that starts from a model and names no network gets that of the model.
    """
    path = find_recipe(name_or_path, "train")
    content = with_settings(read_yaml(path), settings)
    recipe = check(Recipe, content, path)
    start = recipe.stages[0].start
    if start is None or "network" in content:
        return recipe
    architectures = read_info(find_model(start)).architectures
    chosen = [architectures[view] for view in recipe.views if view in architectures]
    if not chosen:
        chosen = list(architectures.values())
    # Networks of several numbers of classes are of one kind.
    classes = {"classes": PUBLISHED.classes}
    shapes = {config.model_copy(update=classes) for config in chosen}
    if len(shapes) > 1:
        remedy = "name the `network` to train in the recipe"
        raise ConfigError(
            "its views have different networks", where=start, remedy=remedy
        )
    return recipe.model_copy(update={"network": shapes.pop()})


def adapt_to_store(recipe: Recipe, root: Path, split: Path | None = None) -> Recipe:
    """Adapt a recipe to a store: its slices and split, its classes and views.

    What the recipe says of a store (its augmentation) stays; a recipe that knows none is trained on
    the store alone, and its weights are chosen by the participants for validation.
    """
    store = Store(root)
    views = tuple(view for view in recipe.views if view in store.views)
    if not views:
        raise ConfigError(f"holds no slices of the views of {recipe.name}", where=root)
    if split is None:
        split = root / SPLIT
    validation = None
    if read_split(split).validation:
        validation = ValidationConfig()
    place = StoreConfig(path=root, split=split)
    stages = []
    for stage in recipe.stages:
        own_views = None
        if stage.views is not None:
            own_views = tuple(view for view in stage.views if view in views)
            if not own_views:
                continue
        changed = _stage_on_store(
            stage, place, validation, can_flip=not store.scheme.has_unpartnered_sides
        )
        stages.append(changed.model_copy(update={"views": own_views}))
    whole = {"scheme": store.scheme_name, "views": views, "stages": tuple(stages)}
    return recipe.model_copy(update=whole)


def _stage_on_store(
    stage: StageConfig,
    place: StoreConfig,
    validation: ValidationConfig | None,
    *,
    can_flip: bool,
) -> StageConfig:
    """Adapt a stage to a store; a stage without validation gets `validation`.

    `can_flip`: flipped slices show only what the store's label scheme has a class for.
    """
    known = stage.data.store
    if known is None:
        store = place
        synthetic = None
        validation = stage.validation or validation
    else:
        store = known.model_copy(update={"path": place.path, "split": place.split})
        synthetic = stage.data.synthetic
        validation = stage.validation
    if not can_flip:
        unflipped = store.augmentation.model_copy(update={"flip": 0.0})
        store = store.model_copy(update={"augmentation": unflipped})
    data = stage.data.model_copy(update={"store": store, "synthetic": synthetic})
    return stage.model_copy(update={"data": data, "validation": validation})


def plan_jobs(recipe: Recipe, views: Sequence[View]) -> list[Job]:
    """List the jobs of a run in order: stage by stage, and view by view unless together.

    A stage without any of the views has no job.
    """
    jobs = []
    for stage in recipe.stages:
        own_views = tuple(view for view in views if view in (stage.views or views))
        if stage.together and own_views:
            jobs.append(Job(stage, own_views))
        else:
            jobs += [Job(stage, (view,)) for view in own_views]
    return jobs


def refuse_before_others(recipe: Recipe, view: str, out: Path) -> None:
    """Raise if a view is to be trained alone that starts from others which are not trained.

    It would start from random weights, and the run would not be what its jobs in turn make of it.
    All views, "all", start in the right order.
    """
    before = []
    for stage in recipe.stages:
        trained = [each.value for each in stage.views or recipe.views]
        if view == "all" or view in trained:
            if stage.start is not None:
                return
            break
        before.append(stage)
    jobs = plan_jobs(recipe.model_copy(update={"stages": tuple(before)}), recipe.views)
    for job in _left(jobs, out):
        names = ", ".join(each.value for each in job.views)
        raise TrainingError(
            f"{view} starts from {names}, which is not trained yet",
            where=out,
            remedy=f"train --view {names} first, or leave --view out",
        )


def train(
    recipe: Recipe,
    out: Path,
    watcher: Watcher,
    *,
    views: Sequence[View] | None = None,
    resume: bool = False,
    seconds: float | None = None,
    device: str = "cpu",
) -> Path:
    """Train all jobs of a recipe in the folder `out`; return the folder of the model.

    `views` limits the training to some of the recipe's views. A folder that already holds a run is
    refused unless `resume` is given, and then the recipe and the data must be the same as before.

    With `seconds` the remaining training is fitted into that time, whatever number of steps the
    recipe has.
    """
    (model,) = train_runs(
        {out: recipe},
        watcher,
        views=views,
        resume=resume,
        seconds=seconds,
        device=device,
    )
    return model


def train_runs(
    recipes: Mapping[Path, Recipe],
    watcher: Watcher,
    *,
    views: Sequence[View] | None = None,
    resume: bool = False,
    seconds: float | None = None,
    device: str = "cpu",
    workers: Workers = ALONE,
    apart: bool = False,
) -> list[Path]:
    """Train runs, which have a folder each, as `train` does; return the folders of their models.

    Recipes of several runs differ in their data alone, as those of folds do. Several processes
    share each batch, and only the leader writes; or, `apart`, the jobs of all runs are dealt to
    them.

    The runs are saved and end with InterruptedRunError at a signal, or when their time is over and
    a job is left.
    """
    recipe = next(iter(recipes.values()))
    chosen = tuple(view for view in recipe.views if views is None or view in views)
    if not chosen:
        raise ConfigError(f"the recipe {recipe.name} trains none of these views")
    target = find_device(device)
    together = ALONE if apart else workers
    prepare_training(target, deterministic=recipe.deterministic)
    if target.type != "cpu":
        timing.wait_first(partial(torch.accelerator.synchronize, target))
    with ExitStack() as stack:
        signalled = threading.Event()
        stack.enter_context(stop_signals(signalled.set))
        runs = []
        left = []
        for out, each in recipes.items():
            jobs = plan_jobs(each, chosen)
            if workers.leads:
                stack.enter_context(_claimed(each, out, jobs, resume=resume))
            left += _left(jobs, out)
            runs += [JobRun(each, job, out, watcher, target, together) for job in jobs]
        if target.type == "cpu":
            refuse_too_large(recipe, left, together.count)
            if workers.leads and seconds is None:
                log_duration(recipe, left, workers.count)
        clock = None
        if seconds is not None:
            clock = TrainingClock(seconds)

        def why_stop() -> str:
            """Return what ends the run now, a signal or the limit of time; else ""."""
            if signalled.is_set():
                return "it got a signal"
            return clock.why_over if clock is not None else ""

        ended = _train_jobs(recipe, runs, workers, why_stop, clock, apart=apart)
        models = []
        for out, each in recipes.items():
            model = out / "model"
            saved = workers.share(partial(_save_model, each, out, model))
            what = f"{model}: {', '.join(saved)} of {each.name}"
            if ended:
                what += f", ended by {ended}"
            _log.info(what)
            models.append(model)
    return models


def _save_model(recipe: Recipe, out: Path, model: Path) -> list[str]:
    """Write the model of a run, one process after another; return the names of its views."""
    with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
        # A model is saved as a whole folder; a card that somebody wrote stays.
        card = model / _CARD
        by_hand = read_text(card) if card.is_file() else ""
        saved = save_run(recipe, out, model)
        write_provenance(out, model)
        if by_hand:
            write_whole(card, by_hand)
    return saved


@contextmanager
def _claimed(
    recipe: Recipe,
    out: Path,
    jobs: Sequence[Job],
    *,
    resume: bool,
) -> Iterator[None]:
    """Lock the jobs of a run, and record its recipe and the content of its stores.

    Two runs are not mixed in one folder: a run that is there already needs `resume`, the same
    recipe and the same data. What a killed run left half-written goes. What a stage lacks is
    refused before the run is written down, and a new one whose start is refused within the block
    leaves nothing. LockedError where another process trains one of the jobs.
    """
    refuse_missing_inputs(job.stage for job in _left(jobs, out))
    folders = [*(stage.name for stage in recipe.stages), "model"]
    is_new = False
    try:
        with ExitStack() as held:
            with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
                if not (out / CONFIG).is_file():
                    # Runs have no mark: one that is there is of another command.
                    refuse_existing(out, [CONFIG, *folders, DATA])
                    # From here on what is in these folders is the run's own.
                    is_new = True
                _write_down(recipe, out, resume=resume)
                for job in jobs:
                    held.enter_context(run_lock(out / job.name / _LOCK))
                of_jobs = [out / job.name for job in jobs]
                remove_leftovers(out, *of_jobs)
            yield
    finally:
        if is_new:
            with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
                _remove_unbegun(out, folders)


def _write_down(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Record a run's recipe and the content of its stores; raise if it began with others."""
    content = recipe.model_dump(mode="json")
    data = {}
    for stage in recipe.stages:
        if stage.data.store is not None:
            data[str(stage.data.store.path)] = _content_of_store(stage.data.store)
    known = read_data(out)
    if (out / CONFIG).is_file():
        # The same that was killed before its first state begins again.
        if not resume and (_has_begun(out) or read_yaml(out / CONFIG) != content):
            remedy = "continue it with --resume, or choose another --out"
            raise TrainingError(
                "the folder already has a run", where=out, remedy=remedy
            )
        check_identity(read_yaml(out / CONFIG), content, out)
        remedy = "give the store that it began with (--store), or another --out"
        if len(known) == len(data):
            # Stores may lie elsewhere than when the run began; their order is that of the stages.
            known = dict(zip(data, known.values(), strict=True))
        check_identity(known, data, out, remedy=remedy)
        return
    if data:
        write_whole(out / DATA, json.dumps(data, indent=1))
    write_whole(out / CONFIG, yaml.safe_dump(content, sort_keys=False))


def _remove_unbegun(out: Path, folders: Iterable[str]) -> None:
    """Remove the files of a run whose start was refused.

    It stays if a job has a state, or another process is about to begin one.
    """
    if _has_begun(out):
        return
    try:
        for lock in out.glob(f"*/*/{_LOCK}"):
            refuse_held(lock)
    except LockedError:
        return
    (out / CONFIG).unlink(missing_ok=True)
    (out / DATA).unlink(missing_ok=True)
    for name in folders:
        shutil.rmtree(out / name, ignore_errors=True)


def _has_begun(out: Path) -> bool:
    """Return True if any job of the run has a state, or has ended."""
    jobs = out.glob("*/*/")
    return any(has_state(job) or (job / DONE).is_file() for job in jobs)


def _content_of_store(config: StoreConfig) -> dict[str, Any]:
    """Describe what a run takes from a store: the files of its subjects, and its split.

    Of those that train it has the licences, and who made the labels; `not_predicted` are the
    structures that none of these labels has.
    """
    store = Store(config.path)
    subjects = store.info.subjects
    train = store.part("train", config.split)
    used = sorted({*train, *read_split(config.split).validation})
    digests = [(subject, subjects[subject].file.sha256) for subject in used]
    files = json.dumps(digests)
    licences = {subjects[subject].licence for subject in train}
    untaught: list[set[str]] = []
    for subject in train:
        model = subjects[subject].pseudo
        if model is None:
            untaught.append(set())
        else:
            untaught.append(set(model.not_predicted))
    split = read_split(config.split).model_dump_json()
    return {
        "sha256": hashlib.sha256(files.encode()).hexdigest(),
        "split_sha256": hashlib.sha256(split.encode()).hexdigest(),
        "licences": sorted(licences - {""}),
        "pseudo_labels": store.pseudo_labels(train),
        "not_predicted": sorted(set.intersection(*untaught)),
        "csf": store.info.csf,
    }


def _left(jobs: Iterable[Job], out: Path) -> list[Job]:
    """List the jobs that are not finished."""
    left = []
    for job in jobs:
        has_ended = (out / job.name / DONE).is_file()
        if not has_ended:
            left.append(job)
    return left


def _train_jobs(
    recipe: Recipe,
    runs: Sequence[JobRun],
    workers: Workers,
    why_stop: Callable[[], str],
    clock: TrainingClock | None,
    *,
    apart: bool,
) -> str:
    """Train the jobs that are left; InterruptedRunError where the run is to stop between two.

    If processes work `apart`, this one trains its share of each stage. Returns what ended its last
    job; empty where none was left.
    """
    # The leader decides: a view that finishes in the meantime must change nobody's share.
    places = workers.share(
        lambda: [place for place, run in enumerate(runs) if not run.is_done]
    )
    left = [runs[place] for place in places]
    stages = []
    for stage in recipe.stages:
        of_stage = [run for run in left if run.job.stage.name == stage.name]
        if apart:
            of_stage = of_stage[workers.rank :: workers.count]
        stages.append(of_stage)

    count = sum(len(of_stage) for of_stage in stages)
    begun = 0
    ended = ""
    for of_stage in stages:
        for run in of_stage:
            why = why_stop()
            if begun and run.workers.largest(float(bool(why))):
                what = f"stopped before {run.job.name}: {why or IN_ANOTHER_PROCESS}"
                remedy = "run the same command with --resume to continue"
                raise InterruptedRunError(what, where=run.out, remedy=remedy)
            begun += 1
            ended = train_job(run, why_stop, clock, others=count - begun)
        if apart:
            # A stage starts from what the stage before it left of any view.
            workers.share(lambda: None)
    return ended


def find_device(name: str) -> torch.device:
    """Return the device of that name; DeviceError if this machine has none.

    "auto" is the fastest one that there is.
    """
    if name.startswith("cuda") and not count_gpus():
        raise DeviceError(
            "there is no CUDA device", where=name, remedy="use --device cpu"
        )
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError(
                "this torch has no MPS device", where=name, remedy="use --device cpu"
            )
        return torch.device(name)
    return choose_device(name)
