"""A training run: a recipe becomes networks, job by job."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from trinat.pipelines.common.config import check, find_recipe, read_yaml, with_settings
from trinat.pipelines.common.lock import refuse_foreign, run_lock
from trinat.pipelines.common.process import prepare_training, stop_signals
from trinat.pipelines.train.clock import TimeLimit
from trinat.pipelines.train.foresight import refuse_too_large, say_how_long
from trinat.pipelines.train.job import Job, JobRun, Watcher
from trinat.pipelines.train.result import DATA, DONE, read_data, save_run
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import SPLIT, Store
from trinat.segmentation.errors import (
    ConfigError,
    DatasetError,
    DeviceError,
    InterruptedRunError,
    TrainingError,
)
from trinat.segmentation.io.files import remove_leftovers, write_whole
from trinat.segmentation.models.architectures import PUBLISHED
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.hardware import choose_device, count_gpus
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import load_heads
from trinat.segmentation.training.config import (
    Recipe,
    StageConfig,
    StoreConfig,
    ValidationConfig,
)
from trinat.segmentation.training.state import check_identity, has_state
from trinat.segmentation.training.workers import ALONE, Workers

CONFIG = "config.yaml"


def read_recipe(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, with settings from the command line on top."""
    path = find_recipe(name_or_path, "train")
    content = with_settings(read_yaml(path), settings)
    recipe = check(Recipe, content, path)
    start = recipe.stages[0].start
    if start is not None and "network" not in content:
        recipe = recipe.model_copy(update={"network": _network_of(start, recipe.views)})
    return recipe


def on_store(recipe: Recipe, root: Path, split: Path | None = None) -> Recipe:
    """The recipe on a store's slices and split, for its classes and views.

    What the recipe says of a store (its augmentation) stays; a recipe that knows none is trained on
    the store alone, and its weights are chosen by the persons for validation.
    """
    store = Store(root)
    views = tuple(view for view in recipe.views if view in store.views)
    if not views:
        raise ConfigError(f"holds no slices of the views of {recipe.name}", where=root)
    split = split or root / SPLIT
    validation = ValidationConfig() if read_split(split).validation else None
    place = StoreConfig(path=root, split=split)
    stages = []
    for stage in recipe.stages:
        own, known = tuple(v for v in stage.views or () if v in views), stage.data.store
        if stage.views and not own:
            continue
        held = (
            known.model_copy(update={"path": place.path, "split": place.split})
            if known
            else place
        )
        if (
            store.scheme.has_unpartnered_sides
        ):  # flipped slices would show what it has no class for
            unflipped = held.augmentation.model_copy(update={"flip": 0.0})
            held = held.model_copy(update={"augmentation": unflipped})
        source = {"store": held, "synthetic": stage.data.synthetic if known else None}
        changes = {
            "views": own or None,
            "data": stage.data.model_copy(update=source),
            "validation": stage.validation if known else stage.validation or validation,
        }
        stages.append(stage.model_copy(update=changes))
    whole = {"scheme": store.scheme_name, "views": views, "stages": tuple(stages)}
    return recipe.model_copy(update=whole)


def _network_of(model: Path, views: Sequence[View]) -> NetworkConfig:
    """The configuration that a model's networks share, all but the number of classes."""
    architectures = read_info(find_model(model)).architectures
    chosen = [architectures[view] for view in views if view in architectures]
    classes = {"classes": PUBLISHED.classes}
    shapes = {c.model_copy(update=classes) for c in chosen or architectures.values()}
    if len(shapes) > 1:
        remedy = "name the `network` to train in the recipe"
        raise ConfigError(
            "its views have different networks", where=model, remedy=remedy
        )
    return shapes.pop()


def plan_jobs(recipe: Recipe, views: Sequence[View]) -> list[Job]:
    """All trainings of a run, in order: stage by stage, and view by view unless together."""
    jobs = []
    for stage in recipe.stages:
        own = tuple(view for view in views if view in (stage.views or views))
        groups = [own] if stage.together and own else [(view,) for view in own]
        jobs += [Job(stage, group) for group in groups]
    return jobs


def train(
    recipe: Recipe,
    out: Path,
    watcher: Watcher,
    *,
    views: Sequence[View] | None = None,
    resume: bool = False,
    seconds: float | None = None,
    device: str = "cpu",
    workers: Workers = ALONE,
    apart: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train all of a recipe's jobs in the folder `out`; returns the folder of the model.

    With `seconds` this call does all that is left, whatever the recipe's steps, in that time.
    Several processes share each batch, and only the leader writes; or, `apart`, each has views of
    its own.
    """
    chosen = tuple(view for view in recipe.views if views is None or view in views)
    if not chosen:
        raise ConfigError(f"the recipe {recipe.name} trains none of these views")
    target, jobs = find_device(device), plan_jobs(recipe, chosen)
    together = ALONE if apart else workers
    prepare_training(target)
    with ExitStack() as stack:
        signalled = threading.Event()
        stack.enter_context(stop_signals(signalled.set))
        if workers.leads:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out / ".lock"))
            folders = [out / job.name for job in jobs]
            remove_leftovers(
                out, *folders, *(folder / "examples" for folder in folders)
            )
            _look_ahead(
                job.stage for job in jobs if not (out / job.name / DONE).is_file()
            )
            stack.enter_context(_claimed(recipe, out, resume=resume))
        left = [job for job in jobs if not (out / job.name / DONE).is_file()]
        if target.type == "cpu":
            refuse_too_large(recipe, left, together.count)
            if workers.leads and seconds is None:
                say_how_long(recipe, left, workers.count, watcher.say)
        limit = None if seconds is None else TimeLimit(seconds)

        def stop() -> bool:
            return (
                signalled.is_set()
                or should_stop()
                or (limit is not None and limit.is_over)
            )

        runs = [JobRun(recipe, job, out, watcher, target, together) for job in jobs]
        # As the leader finds it: a view that is done meanwhile changes nobody's share.
        places = workers.share(
            lambda: [place for place, run in enumerate(runs) if not run.is_done]
        )
        stages = [
            [runs[n] for n in places if jobs[n].stage == stage]
            for stage in recipe.stages
        ]
        if apart:
            stages = [left[workers.rank :: workers.count] for left in stages]
        count, begun = sum(map(len, stages)), 0
        for runs_left in stages:
            for run in runs_left:
                if begun and together.largest(float(stop())):
                    what = f"stopped before {run.job.name}"
                    remedy = "the same command with --resume goes on"
                    raise InterruptedRunError(what, where=out, remedy=remedy)
                begun += 1
                run.go(stop, limit, others=count - begun)
            if apart:
                # A stage starts from what the stage before it left of any view.
                workers.share(lambda: None)
        model = out / "model"
        saved = workers.share(lambda: save_run(recipe, out, model, watcher.say))
        watcher.say(f"{model}: {', '.join(saved)} of {recipe.name}")
    return model


@contextmanager
def _claimed(recipe: Recipe, out: Path, *, resume: bool) -> Iterator[None]:
    """Write down the recipe and what its stores hold; refuse to mix two runs in one folder."""
    path = out / CONFIG
    content, data = recipe.model_dump(mode="json"), _data_of(recipe)
    if path.is_file():
        # The same that was killed before its first state begins again.
        if not resume and (_has_begun(out) or read_yaml(path) != content):
            remedy = "go on with --resume, or give another --out"
            raise TrainingError("a run is there already", where=out, remedy=remedy)
        check_identity(read_yaml(path), content, out)
        check_identity(read_data(out), data, out)
        yield
        return
    folders = [*(stage.name for stage in recipe.stages), "model"]
    refuse_foreign(out, [CONFIG, *folders, DATA])
    if data:
        write_whole(out / DATA, json.dumps(data, indent=1))
    write_whole(path, yaml.safe_dump(content, sort_keys=False))
    try:
        yield
    finally:
        # A start that was refused is no run.
        if not _has_begun(out):
            path.unlink()
            (out / DATA).unlink(missing_ok=True)
            for name in folders:
                shutil.rmtree(out / name, ignore_errors=True)


def _data_of(recipe: Recipe) -> dict[str, Any]:
    """By store, what a run takes from it."""
    data = {}
    for config in filter(None, (stage.data.store for stage in recipe.stages)):
        store = Store(config.path)
        known, train = store.info.subjects, store.part("train", config.split)
        used = sorted({*train, *read_split(config.split).validation})
        files = json.dumps([(subject, known[subject].file.sha256) for subject in used])
        made = (known[subject].pseudo for subject in train)
        untaught = [set(model.not_predicted) if model else set() for model in made]
        data[str(config.path)] = {
            "sha256": hashlib.sha256(files.encode()).hexdigest(),
            "pseudo_labels": store.pseudo_labels(train),
            "not_predicted": sorted(set.intersection(*untaught)),
        }
    return data


def _has_begun(out: Path) -> bool:
    return any(has_state(job) or (job / DONE).is_file() for job in out.glob("*/*/"))


def _look_ahead(stages: Iterable[StageConfig]) -> None:
    """Refuse what a stage lacks now, and not after hours of the stages before it."""
    for stage in stages:
        if stage.start is not None:
            find_model(stage.start)
        synthetic, store = stage.data.synthetic, stage.data.store
        heads = synthetic.heads if synthetic is not None else None
        if isinstance(heads, Path) and not heads.exists():
            load_heads(heads)  # Raises.
        if store is not None:
            opened, validation = Store(store.path), read_split(store.split).validation
            opened.check([*opened.part("train", store.split), *validation])
            if not validation and stage.validation is not None:
                remedy = "add some (trinat split --ratios 8 1 1), or use --set validation=null"
                what = "has no subject for validation"
                raise DatasetError(what, where=store.split, remedy=remedy)


def find_device(name: str) -> torch.device:
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
