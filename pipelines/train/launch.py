"""Several processes train as one, started from here, or by torchrun on any number of machines.

From here they are started by torchrun's agent, which runs in this process. All train the same
run; the one of rank 0 leads, writes and reports. After a death all start again from the last
state, some times over. An error that would come again ends them all: the process that has it
writes it down, and the agent raises it with its traceback.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

from torch import distributed

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.process import cpu_count, prepare_process, stop_signals
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.run import find_device, train
from trinat.segmentation.errors import ConfigError, DeviceError, TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.models.hardware import count_gpus, use_gpu
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.workers import Workers

# How often processes are started again after one has died.
RESTARTS = 3
# The error after which no process of this machine is started again: in the folder that torch keeps
# for the processes of one machine, for all of their restarts.
VERDICT = "verdict"
# The others wait while the leader validates whole scans. A dead process is noticed at once.
_PATIENCE = timedelta(hours=6)
# Processes that have views apart wait until another's view is done.
_PATIENCE_APART = timedelta(days=365)
# "[/.../gloo/transport/tcp/pair.cc:537] Read error ..."
_OF_GLOO = re.compile(r"/gloo/transport/\S+:\d+\]|Connection closed by peer")
_SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)

# What torchrun sets in the environment of a process.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

# Opens a watcher; for several processes it must be picklable.
Watching = Callable[[], AbstractContextManager[Watcher]]
# `train` with its recipe and folder; called with a watcher.
Training = partial[Path]


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
    """Train by `recipe` with this number of processes; returns the folder of the model.

    Several devices, as "cuda:0,cuda:1", train a view each at once.
    `watching` is opened in the process that leads; for several processes it must be picklable.
    A process that torchrun has started trains together with the others.

    `view` is one of the recipe's, or "all". ConfigError for a view that does not exist, and for
    numbers of processes and devices that do not fit each other.
    """
    training = partial(
        train,
        recipe,
        out,
        views=_views_of(view),
        resume=resume,
        seconds=seconds,
        device=device,
    )
    more_devices = device.count(",")
    if more_devices and processes > 1:
        remedy = "give --device cuda and --nproc for several GPUs a view"
        raise ConfigError(
            "--nproc with several devices, which have a view each", remedy=remedy
        )
    is_several = processes > 1 or more_devices > 0
    if all(name in os.environ for name in _PLACE):
        if is_several:
            remedy = "leave --nproc out, and give one device"
            raise ConfigError("torchrun has started the processes", remedy=remedy)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return _take_part(training, watching, restarts)
    if is_several:
        return _lead(training, watching, processes + more_devices)
    prepare_process()
    with watching() as watcher:
        return training(watcher)


def _views_of(name: str) -> tuple[View, ...] | None:
    """The view of that name; None for "all": those of the recipe."""
    if name == "all":
        return None
    for view in View:
        if view.value == name:
            return (view,)
    known = ", ".join(view.value for view in View)
    raise ConfigError(f"{name!r} is no view", remedy=f"all, {known}")


def _take_part(
    training: Training,
    watching: Watching,
    restarts: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train as one of several processes; an error that a restart would repeat is written down.

    The death of another process is none of these: torchrun, or the agent here, starts all again.
    """
    verdict = _verdict_file()
    if restarts and verdict is not None and verdict.is_file():
        # The process with the error has printed it. torchrun restarts after any error.
        raise SystemExit(Exit.ALL_FAILED)
    try:
        return _train_together(training, watching, restarts, should_stop)
    except Exception as error:
        if _is_death_of_another(error):
            remedy = (
                "torchrun says which; with --max-restarts all go on from the last state"
            )
            raise TrainingError(
                "another process has died", where=_folder_of(training), remedy=remedy
            ) from error
        if verdict is not None:
            write_whole(verdict, _pickled(error))
        raise


def _verdict_file() -> Path | None:
    """Where the processes of this machine write the error that ends them all.

    None where torchrun gives them no folder.
    """
    # .../attempt_0/RANK/error.json is torch's own, and of this attempt alone.
    above = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    if len(above) <= 2:
        return None
    return above[2] / VERDICT


def _is_death_of_another(error: Exception) -> bool:
    """Whether an error only says that another process is gone."""
    if isinstance(error, distributed.DistError):
        return True
    # gloo has no type of its own for it.
    return isinstance(error, RuntimeError) and bool(_OF_GLOO.search(str(error)))


def _folder_of(training: Training) -> Path:
    """The folder of the run."""
    _, out = training.args
    assert isinstance(out, Path)
    return out


def _pickled(error: Exception) -> bytes:
    """The error with its traceback, for --debug; as text, if it cannot be unpickled."""
    error.add_note(traceback.format_exc())
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    # Of any kind: both run code of the error's own class.
    except Exception:
        as_text = RuntimeError(f"{type(error).__name__}: {error}")
        as_text.__notes__ = error.__notes__
        content = pickle.dumps(as_text)
    return content


def _train_together(
    training: Training,
    watching: Watching,
    restarts: int,
    should_stop: Callable[[], bool],
) -> Path:
    """Join the other processes and train; the leader alone writes and reports."""
    rank, count, local_rank, local_count = (int(os.environ[name]) for name in _PLACE)
    devices = training.keywords["device"]
    device = _own_device(devices, local_rank, local_count)
    is_cuda = device.startswith("cuda")
    apart = "," in devices
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // local_count))
    if is_cuda:
        use_gpu(device)
    backend = "gloo"
    if is_cuda and not apart:
        backend = "nccl"
    timeout = _PATIENCE_APART if apart else _PATIENCE
    distributed.init_process_group(backend, timeout=timeout)
    workers = Workers(rank, count)
    # torchrun counts restarts by machine: the leader's machine may have had none.
    restarts = int(workers.largest(restarts))
    watched: AbstractContextManager[Watcher] = nullcontext(_SILENT)
    if workers.leads:
        watched = watching()
    elif apart:
        os.environ["TTY_COMPATIBLE"] = "0"  # rich: lines beside the leader's bar
        watched = watching()
    with watched as watcher:
        if restarts:
            watcher.say(
                f"a process died: all go on from the last state (restart {restarts})"
            )
        model = training(
            watcher,
            device=device,
            resume=training.keywords["resume"] or restarts > 0,
            workers=workers,
            apart=apart,
            should_stop=should_stop,
        )
    distributed.destroy_process_group()
    return model


def _own_device(device: str, local_rank: int, local_count: int) -> str:
    """One device for each process of a machine; refused where there are not enough."""
    if "," in device:
        return device.split(",")[local_rank]
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


def _lead(training: Training, watching: Watching, processes: int) -> Path:
    """Run torchrun's agent in this process; after a death start all processes again.

    Raises the error that a process has written down, or TrainingError after too many deaths.
    Signals to this process stop all, once they have saved.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    # A device that cannot be used is refused before any process starts.
    for place in range(processes):
        find_device(_own_device(training.keywords["device"], place, processes))
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trinat-"))
        # The processes save, stop and say so.
        stack.enter_context(stop_signals(lambda: setattr(stop, "value", 1)))
        # torchrun reports each death in forty lines; one line of ours is enough.
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable()
        config = _torchrun_config(processes, folder)
        for restarts in range(RESTARTS + 1):
            began = time.monotonic()
            try:
                models = elastic_launch(config, _work)(
                    training, watching, restarts, stop
                )
                return models[0]  # type: ignore[no-any-return]
            except ChildFailedError as error:
                for verdict in Path(folder).glob(f"*/{VERDICT}"):
                    raise pickle.loads(verdict.read_bytes()) from None
                rank, failure = error.get_first_failure()
                training = _with_time_left(training, time.monotonic() - began)
    what = f"process {rank} died {RESTARTS + 1} times, the last time of {failure.signal_name()}"
    remedy = "the same command with --resume goes on from the last state"
    raise TrainingError(what, where=_folder_of(training), remedy=remedy)


def _torchrun_config(processes: int, folder: str) -> Any:
    """What torchrun is to start on this machine; its logs go to a folder."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id="trinat",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        # Its restarts follow errors, too.
        max_restarts=0,
        # Other signals are handled here: torchrun kills its processes after thirty seconds.
        signals_to_handle="SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )


def _with_time_left(training: Training, spent_s: float) -> Training:
    """The same training, with what is left of its seconds if they are limited."""
    seconds = training.keywords["seconds"]
    if not seconds:
        return training
    return partial(training, seconds=max(1.0, seconds - spent_s))


def _work(training: Training, watching: Watching, restarts: int, stop: Any) -> Path:
    """What each process does; `stop` is a value that all share, not 0 once they are to stop."""

    def should_stop() -> bool:
        return bool(stop.value)

    logging.disable()
    model = _take_part(training, watching, restarts, should_stop)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: there is nobody to return the result to.
        os._exit(0)
    return model
