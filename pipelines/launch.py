"""Several processes train as one, started from here, or by torchrun on any number of machines."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from pipelines.process import cpu_count, prepare_process
from pipelines.train import train
from pipelines.trainjob import Watcher
from segmentation.errors import (
    ConfigError,
    DeviceError,
    InterruptedRunError,
    TrainingError,
    TrinatError,
)
from segmentation.files import atomic_write
from segmentation.training.config import Recipe
from segmentation.training.workers import Workers
from segmentation.views import View

__all__ = ["launch"]

RESTARTS = 3
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
    device: str = "cpu",
    processes: int = 1,
) -> Path:
    """Train by `recipe` with so many processes; returns the folder of the model.

    `watching` is opened in the process that leads; for several processes it must be picklable.
    Where torchrun has started this process, it takes its part with the others.
    """
    job = _Job(recipe, out, _views(view), resume, device)
    place = _place()
    if place is not None:
        if processes > 1:
            raise ConfigError("torchrun has started the processes", remedy="leave --nproc out")
        try:
            return _take_part(job, place, watching)
        except RuntimeError as error:
            if not isinstance(error, distributed.DistError) and "by peer" not in str(error):
                raise
            raise TrainingError(
                "another process has died",
                where=out,
                remedy="torchrun says which; with --max-restarts all go on from the last state",
            ) from error
    if processes > 1:
        return _lead_torchrun(job, watching, processes)
    prepare_process()
    with watching() as watcher:
        return train(recipe, out, watcher, views=job.views, resume=resume, device=device)


@dataclass(frozen=True)
class _Job:
    """What is trained, and where."""

    recipe: Recipe
    out: Path
    views: tuple[View, ...] | None
    resume: bool
    device: str


@dataclass(frozen=True)
class _Place:
    """This process among all, and among those of its machine; how often all were restarted."""

    rank: int
    count: int
    local_rank: int
    local_count: int
    restarts: int


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
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return _Place(rank, count, local_rank, local_count, restarts)


def _take_part(
    job: _Job,
    place: _Place,
    watching: Watching,
    told_to_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train as one of several processes; the leader alone writes and speaks."""
    device = _own_device(job.device, place)
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // place.local_count))
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)
    workers = Workers(place.rank, place.count)
    # torchrun counts restarts for each machine apart, and the leader's may have had no fault.
    restarts = int(workers.largest(place.restarts))
    with watching() if workers.leads else nullcontext(_SILENT) as watcher:
        if restarts:
            watcher.say(f"a process died: all go on from the last state (restart {restarts})")
        model = train(
            job.recipe,
            job.out,
            watcher,
            views=job.views,
            resume=job.resume or restarts > 0,
            device=device,
            workers=workers,
            told_to_stop=told_to_stop,
        )
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


def _lead_torchrun(job: _Job, watching: Watching, processes: int) -> Path:
    """Start torchrun's agent in this process: after a death it starts all processes anew."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What no process could do is said before any is started.
    _own_device(job.device, _Place(0, processes, 0, processes, 0))
    # A store that outlives the processes holds what the dead ones said (pytorch#135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)
    with tempfile.TemporaryDirectory(prefix="trinat-") as folder, _hush(), _set_on_signals(stop):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="trinat",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=RESTARTS,
            # Others are ours: torchrun would give its processes thirty seconds and kill them.
            signals_to_handle="SIGQUIT",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            outcomes = elastic_launch(config, _work)(job, watching, Path(folder), stop)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            what = failure.message["message"] if isinstance(failure.message, dict) else ""
            raise TrainingError(
                f"process {rank} died {RESTARTS + 1} times, "
                f"the last time of {what or failure.signal_name()}",
                where=job.out,
                remedy="the same command with --resume goes on from the last state",
            ) from error
    for outcome in outcomes.values():
        if isinstance(outcome, TrinatError):
            raise outcome
    return outcomes[0]  # type: ignore[no-any-return]


def _work(job: _Job, watching: Watching, folder: Path, stop: Any) -> Path | TrinatError:
    """What each process does; an error that a restart would only repeat is an outcome."""
    logging.disable()
    verdict = folder / "error"
    if verdict.exists():
        error: TrinatError = pickle.loads(verdict.read_bytes())
        return error
    place = _place()
    assert place is not None
    try:
        outcome: Path | TrinatError = _take_part(job, place, watching, lambda: bool(stop.value))
    except InterruptedRunError as interruption:
        # All of them together.
        outcome = interruption
    except TrinatError as error:
        # Those that wait for this process are freed by its end. All are started once more, and
        # find this.
        with atomic_write(verdict) as file:
            pickle.dump(error, file)
        raise
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: nobody takes its outcome.
        os._exit(0)
    return outcome


@contextmanager
def _hush() -> Iterator[None]:
    """torchrun reports each death in forty lines; one of ours says what becomes of it."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _set_on_signals(stop: Any) -> Iterator[None]:
    """Set the processes' flag at SIGTERM, SIGUSR1 or Ctrl-C: they save, stop and say so."""

    def handle(*_: object) -> None:
        stop.value = 1

    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = [signal.signal(number, handle) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)
