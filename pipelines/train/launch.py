"""A training starts here: in this process, or in several that train as one.

Several are started by torchrun on any number of machines, or from here, by torchrun's agent in this
process. The one of rank 0 leads, writes and reports.

The death of a process ends the others, too, and all start again from the last state, some times
over. An error that would come again ends them all: the process that has it writes it down, so that
no process of this machine is started for it once more.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import distributed

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.jobs.pool import pickled
from trinat.pipelines.jobs.process import cpu_count, prepare_process, stop_signals
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.run import find_device, train_runs
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation.errors import ConfigError, DeviceError, TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.models.hardware import count_gpus, use_gpu
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.workers import Workers

# Opens a watcher, which gets the reports of the training.
Watching = Callable[[], AbstractContextManager[Watcher]]

# How often processes are started again after one has died.
_RESTARTS = 3
# What torchrun sets in the environment of a process: its place among all processes, and among
# those of its machine.
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# The file of the error that ends all processes of a machine: in the folder that torch keeps for
# them, for all of their restarts.
_VERDICT = "verdict"
# A dead process is noticed at once. One that hangs in a step, as a network or a driver may, is
# given up after minutes; while the leader validates whole scans, the others wait for hours.
_PATIENCE_STEP = timedelta(minutes=15)
_PATIENCE_LEADER = timedelta(hours=6)
# Processes that have views apart wait until another's view is done.
_PATIENCE_APART = timedelta(days=365)
# "[/.../gloo/transport/tcp/pair.cc:537] Read error ..."
_OF_GLOO = re.compile(r"/gloo/transport/\S+:\d+\]|Connection closed by peer")
_SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)


@dataclass(frozen=True)
class _Request:
    """What a training is asked for: the same for each process that takes part in it.

    `recipes` has the folder of each run with its recipe. `device` may name several, as
    "cuda:0,cuda:1": each then trains jobs of its own. `watching` is opened in the process that
    leads; for several processes it must be picklable.
    """

    recipes: Mapping[Path, Recipe]
    watching: Watching
    views: tuple[View, ...] | None
    resume: bool
    seconds: float | None
    device: str

    @property
    def out(self) -> Path:
        """The folder of the run, or that of all runs."""
        first, *others = self.recipes
        return first.parent if others else first

    @property
    def devices(self) -> list[str]:
        """The devices by name, one or several."""
        return self.device.split(",")

    @property
    def is_apart(self) -> bool:
        """Whether each process trains jobs of its own, instead of a part of each batch."""
        return len(self.devices) > 1


def launch(
    recipes: Mapping[Path, Recipe],
    watching: Watching,
    asked: TrainSettings,
) -> list[Path]:
    """Train runs as they are asked for; returns the folders of their models.

    `recipes` has the folder of each run with its recipe. `watching` is opened in the process that
    leads; for several processes it must be picklable. A process that torchrun has started trains
    together with the others. ConfigError for a view that does not exist, and for numbers of
    processes and devices that do not fit each other.
    """
    known = {each.value: each for each in View}
    views = None
    if asked.view != "all":
        if asked.view not in known:
            remedy = f"all, {', '.join(known)}"
            raise ConfigError(f"{asked.view!r} is no view", remedy=remedy)
        views = (known[asked.view],)
    device = ",".join(asked.devices)
    request = _Request(recipes, watching, views, asked.resume, asked.seconds, device)
    if request.is_apart and asked.processes > 1:
        remedy = "give --device cuda and --nproc for several GPUs a view"
        raise ConfigError(
            "--nproc with several devices, which have a view each", remedy=remedy
        )
    count = max(asked.processes, len(request.devices))
    if all(name in os.environ for name in _TORCHRUN_VARIABLES):
        if count > 1:
            remedy = "leave --nproc out, and give one device"
            raise ConfigError("torchrun has started the processes", remedy=remedy)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return _take_part(request, restarts)
    if count > 1:
        return _run_agent(request, count)
    prepare_process()
    with watching() as watcher:
        return train_runs(
            recipes,
            watcher,
            views=views,
            resume=asked.resume,
            seconds=asked.seconds,
            device=device,
        )


def _run_agent(request: _Request, processes: int) -> list[Path]:
    """Train in this number of processes; returns the folders of the models.

    Raises the error that a process has written down, or TrainingError after too many deaths.
    Signals to this process stop all, once they have saved.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # A device that cannot be used is refused before any process starts.
    for local_rank in range(processes):
        find_device(_own_device(request, local_rank, processes))
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)

    def stop_all() -> None:
        """All processes see this: they save and end."""
        stop.value = 1

    # torchrun reports each death in forty lines; one line of ours is enough.
    logging.disable()
    try:
        with TemporaryDirectory(prefix="trinat-") as folder, stop_signals(stop_all):
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id="trinat",
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="localhost",
                # Its restarts follow errors, and what a signal has stopped, too.
                max_restarts=0,
                # Other signals are handled here: torchrun kills its processes after thirty seconds.
                signals_to_handle="SIGQUIT",
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            )
            start = elastic_launch(config, _work)
            for restarts in range(_RESTARTS + 1):
                began = time.monotonic()
                try:
                    models_of_rank: dict[int, list[Path]] = start(
                        request, restarts, stop
                    )
                    return models_of_rank[0]
                except ChildFailedError as error:
                    for verdict in Path(folder).glob(f"*/{_VERDICT}"):
                        raise pickle.loads(verdict.read_bytes()) from None
                    rank, failure = error.get_first_failure()
                    how_it_died = failure.signal_name()
                if request.seconds:
                    left_s = request.seconds - (time.monotonic() - began)
                    request = replace(request, seconds=max(1.0, left_s))
    finally:
        logging.disable(logging.NOTSET)
    what = f"process {rank} died {_RESTARTS + 1} times, the last time of {how_it_died}"
    remedy = "the same command with --resume goes on from the last state"
    raise TrainingError(what, where=request.out, remedy=remedy)


def _work(request: _Request, restarts: int, stop: Any) -> list[Path]:
    """What each process does; `stop` is a value that all share, not 0 once they are to stop."""

    def should_stop() -> bool:
        return bool(stop.value)

    logging.disable()
    models = _take_part(request, restarts, should_stop)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: there is nobody to return the result to.
        os._exit(0)
    return models


def _take_part(
    request: _Request,
    restarts: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Path]:
    """Train as one of several processes; returns the folders of the models.

    `restarts` says how often all were started again. An error that a restart would repeat is
    written down and raised. The death of another process is none of these: TrainingError.
    """
    # .../attempt_0/RANK/error.json is torch's own, and of this attempt alone. There is no folder
    # for those of a machine where torchrun names none.
    verdict = None
    above = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    if len(above) > 2:
        verdict = above[2] / _VERDICT
    if restarts and verdict is not None and verdict.is_file():
        # The process with the error has printed it. torchrun restarts after any error.
        raise SystemExit(Exit.ALL_FAILED)
    try:
        return _train_together(request, restarts, should_stop)
    except Exception as error:
        # gloo has no type of its own for the death of another process.
        of_gloo = isinstance(error, RuntimeError) and _OF_GLOO.search(str(error))
        if of_gloo or isinstance(error, distributed.DistError):
            remedy = (
                "torchrun says which; with --max-restarts all go on from the last state"
            )
            raise TrainingError(
                "another process has died", where=request.out, remedy=remedy
            ) from error
        if verdict is not None:
            write_whole(verdict, pickled(error))
        raise


def _train_together(
    request: _Request, restarts: int, should_stop: Callable[[], bool]
) -> list[Path]:
    """Join the other processes and train; the leader alone writes and reports."""
    rank, count, local_rank, local_count = (
        int(os.environ[name]) for name in _TORCHRUN_VARIABLES
    )
    device = _own_device(request, local_rank, local_count)
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // local_count))

    backend = "gloo"
    if device.startswith("cuda"):
        use_gpu(device)
        if not request.is_apart:
            backend = "nccl"
    step = leader = _PATIENCE_APART
    if not request.is_apart:
        step = _PATIENCE_STEP
        leader = _PATIENCE_LEADER
    # Waits until all processes are there.
    distributed.init_process_group(backend, timeout=step)
    patient = distributed.new_group(backend="gloo", timeout=leader)
    workers = Workers(rank, count, patient)
    # torchrun counts restarts by machine: the leader's machine may have had none.
    restarts = int(workers.largest(restarts))

    watching: AbstractContextManager[Watcher] = nullcontext(_SILENT)
    if workers.leads:
        watching = request.watching()
    elif request.is_apart:
        # rich: lines beside the leader's bar.
        os.environ["TTY_COMPATIBLE"] = "0"
        watching = request.watching()
    with watching as watcher:
        if restarts:
            watcher.say(
                f"a process died: all go on from the last state (restart {restarts})"
            )
        models = train_runs(
            request.recipes,
            watcher,
            views=request.views,
            resume=request.resume or restarts > 0,
            seconds=request.seconds,
            device=device,
            workers=workers,
            apart=request.is_apart,
            should_stop=should_stop,
        )
    distributed.destroy_process_group()
    return models


def _own_device(request: _Request, local_rank: int, local_count: int) -> str:
    """The device of one of a machine's processes; refused where there are not enough."""
    if request.is_apart:
        return request.devices[local_rank]
    device = request.device
    if device == "auto":
        device = find_device(device).type
    if not device.startswith("cuda"):
        return device
    if device != "cuda" and local_count > 1:
        raise ConfigError(
            f"{local_count} processes cannot share {device}: use --device cuda"
        )
    found = count_gpus()
    if local_count > found:
        what = f"there are {found} CUDA devices for {local_count} processes"
        remedy = "give each process its own: fewer processes on this machine, or --device cpu"
        raise DeviceError(what, remedy=remedy)
    if device == "cuda":
        return f"cuda:{local_rank}"
    return device
