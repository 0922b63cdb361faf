"""A training run: a recipe becomes networks, job by job."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import yaml

from pipelines.common.config import check, find_recipe, read_yaml, with_settings
from pipelines.common.lock import run_lock
from pipelines.common.process import prepare_training, stop_signals
from pipelines.train.clock import TimeLimit
from pipelines.train.job import Job, JobRun, Watcher
from pipelines.train.result import DONE, save_run
from segmentation.data.splits import read_split
from segmentation.data.store import Store
from segmentation.errors import (
    ConfigError,
    DatasetError,
    DeviceError,
    InterruptedRunError,
    TrainingError,
)
from segmentation.io.files import atomic_text
from segmentation.models.architectures import PUBLISHED
from segmentation.models.base import NetworkConfig
from segmentation.models.checkpoint import read_info
from segmentation.models.zoo import find_model
from segmentation.space.views import View
from segmentation.synthetic.heads import load_heads
from segmentation.training.config import Recipe, StageConfig
from segmentation.training.state import check_identity, has_state
from segmentation.training.workers import ALONE, Workers

__all__ = ["read_recipe", "train"]

CONFIG = "config.yaml"
# See segmentation/io/files.py, and `save_model` for the folder that becomes the model.
LEFTOVERS = ".trinat-*.tmp"


def read_recipe(name_or_path: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, with settings from the command line on top."""
    path = find_recipe(name_or_path, "train")
    content = with_settings(read_yaml(path), settings)
    recipe = check(Recipe, content, path)
    start = recipe.stages[0].start
    if start is not None and "network" not in content:
        recipe = recipe.model_copy(update={"network": _network_of(start, recipe.views)})
    return recipe


def _network_of(model: Path, views: Sequence[View]) -> NetworkConfig:
    """The configuration that a model's networks share, all but the number of classes."""
    architectures = read_info(find_model(model)).architectures
    chosen = [architectures[view] for view in views if view in architectures]
    classes = {"classes": PUBLISHED.classes}
    shapes = {c.model_copy(update=classes) for c in chosen or architectures.values()}
    if len(shapes) > 1:
        raise ConfigError(
            "its views have different networks",
            where=model,
            remedy="say in the recipe which `network` to train",
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
    should_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train all of a recipe's jobs in the folder `out`; returns the folder of the model.

    With `seconds` this call does all that is left, whatever the recipe's steps, in that time.
    Of several processes only the leader reads and writes there.
    """
    chosen = tuple(view for view in recipe.views if views is None or view in views)
    if not chosen:
        raise ConfigError(f"the recipe {recipe.name} trains none of these views")
    target, jobs = _device(device), plan_jobs(recipe, chosen)
    prepare_training(target)
    with ExitStack() as stack:
        signalled = threading.Event()
        stack.enter_context(stop_signals(signalled.set))
        if workers.leads:
            out.mkdir(parents=True, exist_ok=True)
            stack.enter_context(run_lock(out / ".lock"))
            _clear(out, *(out / job.name for job in jobs))
            _look_ahead(job.stage for job in jobs if not (out / job.name / DONE).is_file())
            stack.enter_context(_claimed(recipe, out, resume=resume))
        limit = None if seconds is None else TimeLimit(seconds)

        def stop() -> bool:
            return signalled.is_set() or should_stop() or (limit is not None and limit.is_over)

        runs = [JobRun(recipe, job, out, watcher, target, workers) for job in jobs]
        left = [run for run in runs if not run.is_done]
        for place, run in enumerate(left, 1):
            if place > 1 and workers.largest(float(stop())):
                raise InterruptedRunError(
                    f"stopped before {run.job.name}",
                    where=out,
                    remedy="the same command with --resume goes on",
                )
            run.go(stop, limit, others=len(left) - place)
        model = out / "model"
        saved = workers.share(lambda: save_run(recipe, out, model, watcher.say))
        watcher.say(f"{model}: {', '.join(saved)} of {recipe.name}")
    return model


@contextmanager
def _claimed(recipe: Recipe, out: Path, *, resume: bool) -> Iterator[None]:
    """Write the resolved recipe down; refuse to mix two runs in one folder."""
    path = out / CONFIG
    content = recipe.model_dump(mode="json")
    if path.is_file():
        if not resume:
            remedy = "go on with --resume, or give another --out"
            raise TrainingError("a run is there already", where=out, remedy=remedy)
        check_identity(read_yaml(path), content, out)
        yield
        return
    with atomic_text(path) as file:
        yaml.safe_dump(content, file, sort_keys=False)
    try:
        yield
    finally:
        # A start that was refused is no run.
        if not any(has_state(folder) for folder in out.glob("*/*/")):
            path.unlink()


def _clear(*folders: Path) -> None:
    """Remove what a killed process left half-written; the run's lock is held."""
    for folder in folders:
        for left in (*folder.glob(LEFTOVERS), *folder.glob(f"examples/{LEFTOVERS}")):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _look_ahead(stages: Iterable[StageConfig]) -> None:
    """Refuse what a stage lacks now, and not after hours of the stages before it."""
    for stage in stages:
        if stage.start is not None:
            find_model(stage.start)
        if stage.distillation is not None:
            find_model(stage.distillation.teacher)
        synthetic, store = stage.data.synthetic, stage.data.store
        if (
            synthetic is not None
            and isinstance(synthetic.heads, Path)
            and not synthetic.heads.exists()
        ):
            load_heads(synthetic.heads)  # Raises.
        if store is not None:
            Store(store.path)
            if not read_split(store.split).validation and stage.validation is not None:
                raise DatasetError(
                    "has no subject for validation",
                    where=store.split,
                    remedy="add some (trinat split --ratios 8 1 1), or use --set validation=null",
                )


def _device(name: str) -> torch.device:
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DeviceError("there is no CUDA device", where=name, remedy="use --device cpu")
    return torch.device(name)
