"""Several processes train as one, started from here, or by torchrun on any number of machines."""

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

RESTARTS = 3
# The error after which no process of this machine is started again: in the folder that torch keeps
# for the processes of one machine, for all of their restarts.
VERDICT = "verdict"
# The others wait while the leader validates whole scans. A dead process is noticed at once.
_PATIENCE = timedelta(hours=6)
# Where they have views apart, until another's view is done.
_A_VIEW = timedelta(days=365)
# "[/.../gloo/transport/tcp/pair.cc:537] Read error ..."
_OF_GLOO = re.compile(r"/gloo/transport/\S+:\d+\]|Connection closed by peer")
_SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)

# What torchrun sets in the environment of a process.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

Watching = Callable[[], AbstractContextManager[Watcher]]
Job = partial[Path]  # `train` with its recipe and folder; called with a watcher


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
    """
    known = {v.value: (v,) for v in View}
    if view != "all" and view not in known:
        raise ConfigError(f"{view!r} is no view", remedy=f"all, {', '.join(known)}")
    views = known.get(view)
    job = partial(
        train, recipe, out, views=views, resume=resume, seconds=seconds, device=device
    )
    apart = device.count(",")
    if apart and processes > 1:
        remedy = "give --device cuda and --nproc for several GPUs a view"
        raise ConfigError(
            "--nproc with several devices, which have a view each", remedy=remedy
        )
    if all(name in os.environ for name in _PLACE):
        if processes > 1 or apart:
            remedy = "leave --nproc out, and give one device"
            raise ConfigError("torchrun has started the processes", remedy=remedy)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return _take_part(job, watching, restarts)
    if processes > 1 or apart:
        return _lead(job, watching, processes + apart)
    prepare_process()
    with watching() as watcher:
        return job(watcher)


def _take_part(job: Job, watching: Watching, restarts: int, **how: Any) -> Path:
    """Train as one of several processes; an error that a restart would repeat is written down."""
    # .../attempt_0/RANK/error.json is torch's own, and of this attempt alone.
    above = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    verdict = above[2] / VERDICT if len(above) > 2 else None
    if restarts and verdict is not None and verdict.is_file():
        # The process with the error has printed it. torchrun restarts after any error.
        raise SystemExit(Exit.ALL_FAILED)
    try:
        return _train_together(job, watching, restarts, **how)
    except Exception as error:
        # gloo has no type of its own for the death of another process.
        of_gloo = isinstance(error, RuntimeError) and _OF_GLOO.search(str(error))
        if of_gloo or isinstance(error, distributed.DistError):
            remedy = (
                "torchrun says which; with --max-restarts all go on from the last state"
            )
            raise TrainingError(
                "another process has died", where=job.args[1], remedy=remedy
            ) from error
        if verdict is not None:
            write_whole(verdict, _pickled(error))
        raise


def _pickled(error: Exception) -> bytes:
    """The error with its traceback, for --debug; as text, if it cannot be unpickled."""
    error.add_note(traceback.format_exc())
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    # Of any kind: both run code of the error's own class.
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        told.__notes__ = error.__notes__
        content = pickle.dumps(told)
    return content


def _train_together(job: Job, watching: Watching, restarts: int, **how: Any) -> Path:
    """The leader alone writes and reports."""
    rank, count, local_rank, local_count = (int(os.environ[name]) for name in _PLACE)
    device = _own_device(job.keywords["device"], local_rank, local_count)
    apart = "," in job.keywords["device"]
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // local_count))
    if device.startswith("cuda"):
        use_gpu(device)
    backend = "nccl" if device.startswith("cuda") and not apart else "gloo"
    distributed.init_process_group(backend, timeout=_A_VIEW if apart else _PATIENCE)
    workers = Workers(rank, count)
    # torchrun counts restarts by machine: the leader's machine may have had none.
    restarts = int(workers.largest(restarts))
    if apart and not workers.leads:
        os.environ["TTY_COMPATIBLE"] = "0"  # rich: lines beside the leader's bar
    with watching() if workers.leads or apart else nullcontext(_SILENT) as watcher:
        if restarts:
            watcher.say(
                f"a process died: all go on from the last state (restart {restarts})"
            )
        resume = job.keywords["resume"] or restarts > 0
        model = job(
            watcher, device=device, resume=resume, workers=workers, apart=apart, **how
        )
    distributed.destroy_process_group()
    return model


def _own_device(device: str, local_rank: int, local_count: int) -> str:
    """One device for each process of a machine."""
    if "," in device:
        return device.split(",")[local_rank]
    device = find_device(device).type if device == "auto" else device
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
    return f"cuda:{local_rank}" if device == "cuda" else device


def _lead(job: Job, watching: Watching, processes: int) -> Path:
    """Run torchrun's agent in this process; after a death start all processes again."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # A device that cannot be used is refused before any process starts.
    for place in range(processes):
        find_device(_own_device(job.keywords["device"], place, processes))
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trinat-"))
        # The processes save, stop and say so.
        stack.enter_context(stop_signals(lambda: setattr(stop, "value", 1)))
        # torchrun reports each death in forty lines; one line of ours is enough.
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable()
        config = LaunchConfig(
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
        for restarts in range(RESTARTS + 1):
            began = time.monotonic()
            try:
                models = elastic_launch(config, _work)(job, watching, restarts, stop)
            except ChildFailedError as error:
                for verdict in Path(folder).glob(f"*/{VERDICT}"):
                    raise pickle.loads(verdict.read_bytes()) from None
                rank, failure = error.get_first_failure()
                if seconds := job.keywords["seconds"]:
                    job = partial(
                        job, seconds=max(1.0, seconds - (time.monotonic() - began))
                    )
            else:
                return models[0]  # type: ignore[no-any-return]
    what = f"process {rank} died {RESTARTS + 1} times, the last time of {failure.signal_name()}"
    remedy = "the same command with --resume goes on from the last state"
    raise TrainingError(what, where=job.args[1], remedy=remedy)


def _work(job: Job, watching: Watching, restarts: int, stop: Any) -> Path:
    """What each process does."""
    logging.disable()
    model = _take_part(job, watching, restarts, should_stop=lambda: bool(stop.value))
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: there is nobody to return the result to.
        os._exit(0)
    return model
