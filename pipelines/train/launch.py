"""Several processes train as one, started from here, or by torchrun on any number of machines."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from pipelines.common.exits import Exit
from pipelines.common.process import cpu_count, prepare_process, stop_signals
from pipelines.train.job import Watcher
from pipelines.train.run import train
from segmentation.errors import ConfigError, DeviceError, TrainingError
from segmentation.io.files import atomic_write
from segmentation.space.views import View
from segmentation.training.config import Recipe
from segmentation.training.workers import Workers

__all__ = ["launch"]

RESTARTS = 3
# In the folder that torch keeps for the processes of one machine, for all of their restarts.
VERDICT = "verdict"
# The others wait while the leader validates whole scans. It is no guard against a dead process:
# that is noticed at once.
_PATIENCE = timedelta(hours=6)
_SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)

Watching = Callable[[], AbstractContextManager[Watcher]]


def launch(
    recipe: Recipe,
    out: Path,
    watching: Watching,
    *,
    view: str = "all",
    resume: bool = False,
    seconds: float | None = None,
    device: str = "cpu",
    processes: int = 1,
) -> Path:
    """Train by `recipe` with so many processes; returns the folder of the model.

    `watching` is opened in the process that leads; for several processes it must be picklable.
    Where torchrun has started this process, it takes its part with the others.
    """
    job = _Job(recipe, out, _views(view), resume, seconds, device)
    place = _place()
    if place is not None:
        if processes > 1:
            raise ConfigError("torchrun has started the processes", remedy="leave --nproc out")
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return _take_part(replace(job, restarts=restarts), place, watching)
    if processes > 1:
        return _lead(job, watching, processes)
    prepare_process()
    with watching() as watcher:
        return job.train(watcher, device)


@dataclass(frozen=True)
class _Job:
    """What is trained, where, and within what time; how often all processes were restarted."""

    recipe: Recipe
    out: Path
    views: tuple[View, ...] | None
    resume: bool
    seconds: float | None
    device: str
    restarts: int = 0

    def train(self, watcher: Watcher, device: str, **how: Any) -> Path:
        return train(
            self.recipe,
            self.out,
            watcher,
            views=self.views,
            resume=self.resume,
            seconds=self.seconds,
            device=device,
            **how,
        )


@dataclass(frozen=True)
class _Place:
    """This process among all, and among those of its machine."""

    rank: int
    count: int
    local_rank: int
    local_count: int


def _views(view: str) -> tuple[View, ...] | None:
    known = {v.value: v for v in View}
    if view != "all" and view not in known:
        raise ConfigError(f"{view!r} is no view", remedy=f"all, {', '.join(known)}")
    return None if view == "all" else (known[view],)


def _place() -> _Place | None:
    """What torchrun says in the environment; None where it did not start this process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return None
    rank, count, local_rank, local_count = (int(os.environ[name]) for name in names)
    return _Place(rank, count, local_rank, local_count)


def _take_part(
    job: _Job,
    place: _Place,
    watching: Watching,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train as one of several processes; what another start would only repeat is written down."""
    verdict = _verdict()
    if job.restarts and verdict is not None and verdict.is_file():
        # Whom it happened to has said so. torchrun starts all anew whatever it was.
        raise SystemExit(Exit.ALL_FAILED)
    try:
        return _train_together(job, place, watching, told_to_stop)
    except Exception as error:
        if isinstance(error, distributed.DistError) or "gloo" in str(error):
            raise TrainingError(
                "another process has died",
                where=job.out,
                remedy="torchrun says which; with --max-restarts all go on from the last state",
            ) from error
        if verdict is not None:
            with atomic_write(verdict) as file:
                file.write(_pickled(error))
        raise


def _verdict() -> Path | None:
    """The file that says why no process of this machine need be started again."""
    # .../attempt_0/RANK/error.json is torch's own, and of this attempt alone.
    above = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    return above[2] / VERDICT if len(above) > 2 else None


def _pickled(error: Exception) -> bytes:
    """The error with its traceback, for --debug; as text, where it does not survive the way."""
    error.add_note(traceback.format_exc())
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _train_together(
    job: _Job, place: _Place, watching: Watching, told_to_stop: Callable[[], bool]
) -> Path:
    """The leader alone writes and speaks."""
    device = _own_device(job.device, place)
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // place.local_count))
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)
    workers = Workers(place.rank, place.count)
    # torchrun counts restarts for each machine apart, and the leader's may have had no fault.
    restarts = int(workers.largest(job.restarts))
    with watching() if workers.leads else nullcontext(_SILENT) as watcher:
        if restarts:
            watcher.say(f"a process died: all go on from the last state (restart {restarts})")
        job = replace(job, resume=job.resume or restarts > 0)
        model = job.train(watcher, device, workers=workers, told_to_stop=told_to_stop)
    distributed.destroy_process_group()
    return model


def _own_device(device: str, place: _Place) -> str:
    """One device for each process of a machine."""
    if not device.startswith("cuda"):
        return device
    if device != "cuda" and place.local_count > 1:
        raise ConfigError(f"{place.local_count} processes cannot share {device}: use --device cuda")
    found = torch.cuda.device_count()
    if place.local_count > found:
        raise DeviceError(
            f"there are {found} CUDA devices for {place.local_count} processes",
            remedy="give each process its own: fewer processes on this machine, or --device cpu",
        )
    return f"cuda:{place.local_rank}" if device == "cuda" else device


def _lead(job: _Job, watching: Watching, processes: int) -> Path:
    """Start torchrun's agent in this process; after a death start all processes anew."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What no process could do is said before any is started.
    _own_device(job.device, _Place(0, processes, 0, processes))
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trinat-"))
        # The processes save, stop and say so.
        stack.enter_context(stop_signals(lambda: setattr(stop, "value", 1)))
        # torchrun reports each death in forty lines; one of ours says what becomes of it.
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable()
        for restarts in range(RESTARTS + 1):
            began = time.monotonic()
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id="trinat",
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                # It would start processes anew whatever ended them.
                max_restarts=0,
                # Others are ours: torchrun would give its processes thirty seconds and kill them.
                signals_to_handle="SIGQUIT",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            )
            try:
                models = elastic_launch(config, _work)(job, watching, stop)
            except ChildFailedError as error:
                for verdict in Path(folder).glob(f"*/{VERDICT}"):
                    raise pickle.loads(verdict.read_bytes()) from None
                rank, failure = error.get_first_failure()
                left = job.seconds and max(1.0, job.seconds - (time.monotonic() - began))
                job = replace(job, restarts=restarts + 1, seconds=left)
            else:
                return models[0]  # type: ignore[no-any-return]
    raise TrainingError(
        f"process {rank} died {RESTARTS + 1} times, the last time of {failure.signal_name()}",
        where=job.out,
        remedy="the same command with --resume goes on from the last state",
    )


def _work(job: _Job, watching: Watching, stop: Any) -> Path:
    """What each process does."""
    logging.disable()
    place = _place()
    assert place is not None
    model = _take_part(job, place, watching, lambda: bool(stop.value))
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: nobody takes its outcome.
        os._exit(0)
    return model
