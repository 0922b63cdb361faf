"""A training run: trains the networks of a recipe, job by job.

A job is the training of one stage of the recipe for one view. A run has a folder: its recipe
(config.yaml), its label scheme (scheme.json), a description of its slice stores (data.json), a
folder for each job (<stage>/<view>), and at the end the model. The same command with `resume`
continues a stopped run at its last step, with the same numbers as if it had not been stopped.

Several commands may train different jobs of one run at the same time. Each holds the locks of its
jobs while it trains. It locks the folder of the run only while it reads or writes files of the
whole run. Each writes a model with all views that are finished; the last one writes the complete
model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from trinat.pipelines.common.config import check, find_recipe, read_yaml, with_settings
from trinat.pipelines.jobs.lock import refuse_existing, refuse_held, run_lock
from trinat.pipelines.jobs.process import (
    prepare_process,
    prepare_training,
    stop_signals,
)
from trinat.pipelines.train.clock import TrainingClock
from trinat.pipelines.train.foresight import (
    refuse_missing_inputs,
    refuse_too_large,
)
from trinat.pipelines.train.job import JobRun, Watcher, train_job
from trinat.pipelines.train.leakage import (
    refuse_divided_stages,
    warn_of_seen_participants,
)
from trinat.pipelines.train.provenance import write_provenance
from trinat.pipelines.train.result import (
    CONFIG,
    DATA,
    DONE,
    SCHEME,
    Job,
    plan_jobs,
    read_data,
    save_run,
    stores_of,
)
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation import timing
from trinat.segmentation.data.open_store import whole_view
from trinat.segmentation.data.slices import scheme_table
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.errors import (
    ConfigError,
    DeviceError,
    InterruptedRunError,
    LockedError,
    TrainingError,
)
from trinat.segmentation.io.files import (
    read_bytes,
    read_text,
    remove_leftovers,
    write_whole,
)
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.architectures import PUBLISHED
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.hardware import choose_device
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View, chosen_views
from trinat.segmentation.training.config import (
    Recipe,
    StageConfig,
    StoreConfig,
)
from trinat.segmentation.training.state import check_identity, has_state

_log = logging.getLogger(__name__)

# Lock file in the folder of a run, and in that of each job.
_LOCK = ".lock"
_CARD = "MODEL_CARD.md"
# Settings from the command line about the synthetic scans of a recipe.
_SYNTHETIC = re.compile(r"\s*(data|stages)\b.*synthetic", re.DOTALL)
# Longest wait for the lock of a run's folder; other processes hold it for seconds only.
_PATIENCE_S = 300.0


def read_recipe(
    name_or_path: str,
    settings: Sequence[str] = (),
    store: Path | None = None,
    split: Path | None = None,
) -> Recipe:
    """Read a training recipe by its name or file, and apply settings from the command line.

    `settings` are texts such as "optimiser.rate=1e-3", which replaces the rate of all stages. With
    `store`, all stages read the slice store in this folder; `adapt_to_store` then fits the recipe
    to it. `split` is the file with the participants for training and validation; by default the one
    in the store. A recipe that starts from a model and has no `network` of its own gets the network
    of the model; ConfigError is raised if the networks of that model's views differ.
    """
    path = find_recipe(name_or_path)
    content = read_yaml(path)
    # A recipe without stages has one, in which all keys are those at the top.
    content["stages"] = content.get("stages") or [{}]
    content = with_settings(content, _for_each_stage(settings, content["stages"]))
    if store is not None:
        with_synthetic = any(_SYNTHETIC.match(setting) for setting in settings)
        content = _read_from_store(
            content, store, split or store / SPLIT, with_synthetic=with_synthetic
        )
    recipe = check(Recipe, content, path)
    start = recipe.stages[0].start
    if start is None or "network" in content:
        return recipe
    architectures = read_info(find_model(start)).architectures
    chosen = [architectures[view] for view in recipe.views if view in architectures]
    if not chosen:
        chosen = list(architectures.values())
    # Networks that differ only in their number of classes are of one kind.
    classes = {"classes": PUBLISHED.classes}
    shapes = {config.model_copy(update=classes) for config in chosen}
    if len(shapes) > 1:
        remedy = "name the `network` to train in the recipe"
        raise ConfigError(
            "its views have different networks", where=start, remedy=remedy
        )
    return recipe.model_copy(update={"network": shapes.pop()})


def _for_each_stage(settings: Sequence[str], stages: Any) -> list[str]:
    """Return settings from the command line, repeated for each stage that has the same key.

    Keys of a stage take precedence over keys at the top of the recipe, so that batch=4 would have
    no effect on a stage with a `batch` of its own. `stages` are those of the recipe, as in YAML.
    """
    repeated = []
    for setting in settings:
        repeated.append(setting)
        key = re.split("[.=]", setting)[0].strip()
        if key in Recipe.model_fields or not isinstance(stages, list):
            continue
        for number, stage in enumerate(stages):
            if isinstance(stage, dict) and key in stage:
                repeated.append(f"stages.{number}.{setting.strip()}")
    return repeated


def _read_from_store(
    content: dict[str, Any], root: Path, split: Path, *, with_synthetic: bool
) -> dict[str, Any]:
    """Return a recipe, as in YAML, all of whose stages read the slice store in the folder `root`.

    `split` is the file of its split. Settings of a stage for a store, such as augmentation, are
    kept. A stage that names no store loses the synthetic scans of the recipe, unless
    `with_synthetic`; if it says nothing about validation, its weights are selected on the
    participants for validation, if there are any.
    """
    merged: dict[str, Any] = Recipe.merge_stages(content)
    if merged is content:
        return content  # `check` refuses it, because its stages are malformed.
    has_validation = bool(Store(root).split(split).validation)
    for stage in merged["stages"]:
        data = stage.get("data") or {}
        if not isinstance(data, dict):
            continue  # `check` refuses it.
        known = data.get("store") or {}
        if not isinstance(known, dict):
            continue
        changed = {**data, "store": {**known, "path": root, "split": split}}
        if "path" not in known:
            if not with_synthetic:
                changed["synthetic"] = None
            if has_validation:
                stage.setdefault("validation", {})
        stage["data"] = changed
    return merged


def adapt_to_store(recipe: Recipe, root: Path) -> Recipe:
    """Return a recipe whose stages read the slice store in `root`, fitted to this store.

    Its label scheme is that of the store, and its views are those of which the store has slices.
    Slices are not mirrored in augmentation if the label scheme has a structure on one side only.
    Raises ConfigError if the store has no slices of the recipe's views.
    """
    store = Store(root)
    views = tuple(view for view in recipe.views if view in store.views)
    if not views:
        raise ConfigError(f"holds no slices of the views of {recipe.name}", where=root)
    stages = []
    for stage in recipe.stages:
        own_views = None
        if stage.views is not None:
            own_views = tuple(view for view in stage.views if view in views)
            if not own_views:
                continue
        changed = stage.model_copy(update={"views": own_views})
        if store.scheme.has_unpartnered_sides:
            changed = _without_flips(changed)
        stages.append(changed)
    whole = {"scheme": store.scheme_name, "views": views, "stages": tuple(stages)}
    return recipe.model_copy(update=whole)


def _without_flips(stage: StageConfig) -> StageConfig:
    """Return a stage that mirrors no slices of its store in augmentation."""
    store = stage.data.store
    assert store is not None
    augmentation = store.augmentation.model_copy(update={"flip": 0.0})
    store = store.model_copy(update={"augmentation": augmentation})
    data = stage.data.model_copy(update={"store": store})
    return stage.model_copy(update={"data": data})


def refuse_before_others(recipe: Recipe, view: str, out: Path) -> None:
    """Raise TrainingError if `view` is to be trained before the views whose weights it starts from.

    `out` is the folder of the run. Without those weights the view would start from random ones, and
    its result would differ from that of the whole run. With "all", the views are trained in the
    right order.
    """
    before = []
    for stage in recipe.stages:
        trained = [each.value for each in recipe.views_of(stage)]
        if view == "all" or view in trained:
            if stage.start is not None:
                return
            break
        before.append(stage)
    jobs = plan_jobs(recipe.model_copy(update={"stages": tuple(before)}), recipe.views)
    for job in jobs:
        if not job.is_done(out):
            first = job.view.value
            raise TrainingError(
                f"{view} starts from {first}, which is not trained yet",
                where=out,
                remedy=f"train --view {first} first, or leave --view out",
            )


def train_by_settings(
    recipe: Recipe, out: Path, watcher: Watcher, asked: TrainSettings
) -> Path:
    """Train a recipe in the folder `out` as the command line asks; return the folder of the model.

    `asked` are the settings of the command line, of which `out` is not used. Raises ConfigError for
    an unknown view.
    """
    views = None
    if asked.view != "all":
        views = chosen_views(asked.view)
    prepare_process()
    return train(
        recipe,
        out,
        watcher,
        views=views,
        resume=asked.resume,
        seconds=asked.seconds,
        device=asked.device,
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

    `watcher` has callbacks for each step and validation. `views` limits the training to some of the
    recipe's views. A folder that already holds a run is refused unless `resume` is given, and then
    the recipe and the data must be the same as before. With `seconds` the remaining training is
    fitted into that time, whatever number of steps the recipe has. `device` is a name such as
    "cuda:1" or "auto".

    Raises InterruptedRunError at a signal, or if the time is over before all jobs are done. A
    checkpoint of the run is then saved.
    """
    chosen = tuple(view for view in recipe.views if views is None or view in views)
    jobs = plan_jobs(recipe, chosen)
    if not jobs:
        raise ConfigError(f"the recipe {recipe.name} trains none of these views")
    if device != "mps":
        target = choose_device(device)
    elif torch.backends.mps.is_available():
        target = torch.device(device)
    else:
        raise DeviceError(
            "this torch has no MPS device", where=device, remedy="use --device cpu"
        )
    if target.type != "cpu":
        timing.wait_first(partial(torch.accelerator.synchronize, target))
    with ExitStack() as stack:
        stack.enter_context(
            prepare_training(target, deterministic=recipe.deterministic)
        )
        signalled = threading.Event()
        stack.enter_context(stop_signals(signalled.set))
        stack.enter_context(_claimed(recipe, out, jobs, resume=resume))
        scheme = load_scheme(recipe.scheme)
        for view in chosen:
            # Raises if slices of the view cannot show the classes.
            scheme.seen_in(view)
        runs = [JobRun(recipe, job, out, watcher, target) for job in jobs]
        if target.type == "cpu":
            refuse_too_large(recipe, [job for job in jobs if not job.is_done(out)])
        clock = None
        if seconds is not None:
            clock = TrainingClock(seconds)

        def why_stop() -> str:
            """Return the reason to stop the run now, a signal or the time limit; "" to continue."""
            if signalled.is_set():
                return "it got a signal"
            return clock.why_over if clock is not None else ""

        ended = _train_jobs(runs, why_stop, clock)
        model = out / "model"
        saved = _save_model(recipe, out, model)
        what = f"{model}: {', '.join(saved)} of {recipe.name}"
        if ended:
            what += f", ended by {ended}"
        _log.info(what)
    return model


def _save_model(recipe: Recipe, out: Path, model: Path) -> list[str]:
    """Write the model of the run in the folder `out` to the folder `model`; return its views.

    The views are those that are finished so far. A lock prevents two processes from writing at the
    same time. A model card that somebody wrote is kept.
    """
    with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
        # Saving replaces the whole folder of the model, so a card that somebody wrote is put back.
        card = model / _CARD
        by_hand = read_bytes(card) if card.is_file() else b""
        saved = save_run(recipe, out, model)
        jobs = plan_jobs(recipe, recipe.views)
        write_provenance(out, [job.name for job in jobs], model)
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
    """Lock the jobs of a run for the duration of the block, and write the files of `_record_run`.

    A folder that already holds a run needs `resume`, the same recipe and the same data. Temporary
    files of a killed run are removed. Missing inputs are refused before anything is written. If a
    new run fails within the block before its first checkpoint, its files are removed. Raises
    LockedError if another process trains one of the jobs.
    """
    refuse_missing_inputs(job.stage for job in jobs if not job.is_done(out))
    refuse_divided_stages(recipe)
    warn_of_seen_participants(recipe)
    folders = [*(stage.name for stage in recipe.stages), "model"]
    is_new = False
    try:
        with ExitStack() as held:
            with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
                if not (out / CONFIG).is_file():
                    # The folder has no run, so files with these names are of another command.
                    refuse_existing(out, [CONFIG, *folders, DATA, SCHEME])
                    # From here on, all files in these folders belong to the run.
                    is_new = True
                _record_run(recipe, out, resume=resume)
                for job in jobs:
                    held.enter_context(run_lock(out / job.name / _LOCK))
                of_jobs = [out / job.name for job in jobs]
                remove_leftovers(out, *of_jobs)
            yield
    finally:
        if is_new:
            with run_lock(out / _LOCK, patience_s=_PATIENCE_S):
                _remove_unbegun(out, folders)


def _record_run(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Write the recipe of a run (config.yaml), its label scheme and a description of its stores.

    The recipe names the scheme's file, which may be edited: scheme.json has its labels. The stores
    are described in data.json. Files that the folder has already are compared instead.
    TrainingError is raised if they differ, or if the run has a checkpoint and `resume` is False.
    """
    content = recipe.model_dump(mode="json")
    data = {name: _describe_store(store) for name, store in stores_of(recipe).items()}
    scheme = scheme_table(load_scheme(recipe.scheme))
    if (out / CONFIG).is_file():
        # A run that was killed before its first checkpoint may begin again without --resume.
        if not resume and (_has_begun(out) or read_yaml(out / CONFIG) != content):
            remedy = "continue it with --resume, or choose another --out"
            raise TrainingError(
                "the folder already has a run", where=out, remedy=remedy
            )
        check_identity(read_yaml(out / CONFIG), content, out)
    else:
        # It is written first: it shows that the other files belong to a run.
        write_whole(out / CONFIG, yaml.safe_dump(content, sort_keys=False))
    if (out / DATA).is_file():
        remedy = "give the store that it began with (--store), or another --out"
        known = read_data(out)
        if len(known) == len(data):
            # Stores may have moved since the run began, so they are compared in the order of the
            # stages.
            known = dict(zip(data, known.values(), strict=True))
        check_identity(known, data, out, remedy=remedy)
    elif data:
        write_whole(out / DATA, json.dumps(data, indent=1))
    if (out / SCHEME).is_file():
        remedy = f"restore {recipe.scheme} as the run began, or give another --out"
        began = json.loads(read_text(out / SCHEME))
        check_identity(began, scheme, out, remedy=remedy)
    else:
        write_whole(out / SCHEME, json.dumps(scheme, indent=1))


def _remove_unbegun(out: Path, folders: Iterable[str]) -> None:
    """Remove the files of a run that was never trained.

    `folders` are the names of the folders to remove in `out`. All files are kept if a job has a
    checkpoint or is finished, or if another process has locked a job.
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
    (out / SCHEME).unlink(missing_ok=True)
    for name in folders:
        shutil.rmtree(out / name, ignore_errors=True)


def _has_begun(out: Path) -> bool:
    """Return True if any job of the run in the folder `out` has a checkpoint or is finished."""
    jobs = out.glob("*/*/")
    return any(has_state(job) or (job / DONE).is_file() for job in jobs)


def _describe_store(config: StoreConfig) -> dict[str, Any]:
    """Return the description of a slice store for data.json.

    It has two hashes: `sha256` of the files of all subjects for training and validation, and
    `split_sha256` of the split. The other values describe the subjects for training: `licences` and
    `csf` (the definition of CSF) of their labels, the models that made these labels
    (`pseudo_labels`), and the structures that cannot be learnt from them (`not_predicted`).
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
    return {
        "sha256": hashlib.sha256(files.encode()).hexdigest(),
        "split_sha256": read_split(config.split).sha256,
        "licences": sorted(licences - {""}),
        "pseudo_labels": store.pseudo_labels(train),
        "not_predicted": sorted(
            set.intersection(*untaught) | _absent_structures(store, train)
        ),
        "csf": store.info.csf,
    }


def _absent_structures(store: Store, subjects: Iterable[str]) -> set[str]:
    """Return the names of the structures that no label of these subjects has.

    The set is empty if only a part of a subject's labels is used in training, as in painted
    corrections: the other part may have any structure.
    """
    scheme = store.scheme
    view = whole_view(store)
    counts = np.zeros(len(scheme.seen_in(view)), np.int64)
    for subject in subjects:
        if not store.info.subjects[subject].has_labels:
            continue
        file = store.file(subject)
        is_partial = file.has(view, "counted")
        counts += file.class_counts(view).sum(axis=0, dtype=np.int64)
        file.close()
        if is_partial:
            return set()
    if view is View.SAGITTAL:
        counts = counts[scheme.merged.to_merged]
    return {
        label.name for label in scheme.labels if label.index and not counts[label.index]
    }


def _train_jobs(
    runs: Sequence[JobRun],
    why_stop: Callable[[], str],
    clock: TrainingClock | None,
) -> str:
    """Train the unfinished jobs of a run, one after the other; return why the last one ended.

    The reason is a text such as "its last step", for the log; "" if all jobs were finished before.
    `why_stop` is called between jobs and steps: it returns the reason to stop the run now (a
    signal, or the end of the time limit), or "" to continue. `clock` divides the time limit among
    the jobs; None if there is no limit, and each job then trains all steps of its schedule. Raises
    InterruptedRunError if the run is to stop before all jobs are done.
    """
    left = [run for run in runs if not run.job.is_done(run.out)]
    ended = ""
    for begun, run in enumerate(left):
        why = why_stop()
        if begun and why:
            what = f"stopped before {run.job.name}: {why}"
            remedy = "run the same command with --resume to continue"
            raise InterruptedRunError(what, where=run.out, remedy=remedy)
        ended = train_job(run, why_stop, clock, others=len(left) - begun - 1)
    return ended
