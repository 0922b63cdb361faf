"""Start of a training: in this process, or in several processes that torchrun starts.

torchrun is started by the user, on any number of machines, or within this process (`--nproc`). Only
the process with rank 0 writes and reports.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import distributed

from trinat.pipelines.jobs.pool import pickle_error
from trinat.pipelines.jobs.process import cpu_count, prepare_process
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.progress import training_progress
from trinat.pipelines.train.run import find_device, train
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation.errors import ConfigError, DeviceError, TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.models.hardware import count_gpus, use_gpu
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.workers import ALONE, Workers

# Function that returns a context manager with the callbacks for a training.
Watching = Callable[[], AbstractContextManager[Watcher]]

# Variables that torchrun sets: rank of the process and number of processes, first among all
# machines, then on its own machine.
_TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_STOP_SIGNALS = "SIGTERM,SIGINT,SIGUSR1,SIGALRM"
# A process that has died is noticed at once. A process that hangs in a step, because of a network
# or a driver, is given up after minutes. While one process validates whole scans, the others wait
# for up to hours.
_STEP_TIMEOUT = timedelta(minutes=15)
_LEADER_TIMEOUT = timedelta(hours=6)
# "[/.../gloo/transport/tcp/pair.cc:537] Read error ..."
_GLOO_ERROR = re.compile(r"/gloo/transport/\S+:\d+\]|Connection closed by peer")


@dataclass(frozen=True)
class _Request:
    """A training, as it is passed to all of its processes.

    `out` is the folder of the run. `watching` returns a context manager with the callbacks; it is
    opened in the process with rank 0 only. `views` is None for all views of the recipe. `asked` are
    the settings of the command line. The error that ends the training is pickled to `error_file`,
    unless this is None.
    """

    out: Path
    recipe: Recipe
    watching: Watching
    views: tuple[View, ...] | None
    asked: TrainSettings
    error_file: Path | None = None

    def train(self, watcher: Watcher, device: str, workers: Workers = ALONE) -> Path:
        """Train on a device, with the callbacks of `watcher`; return the folder of the model."""
        return train(
            self.recipe,
            self.out,
            watcher,
            views=self.views,
            resume=self.asked.resume,
            seconds=self.asked.seconds,
            device=device,
            workers=workers,
        )


def launch(
    out: Path,
    recipe: Recipe,
    watching: Watching,
    asked: TrainSettings,
) -> Path:
    """Train a run in the folder `out`, in one process or in several; return its model's folder.

    `watching` returns a context manager with the callbacks of the training. It is opened in the
    process with rank 0; for several processes it must be picklable. `asked` are the settings of the
    command line, of which `out` is not used. If torchrun has started this process, it trains
    together with the others. Raises ConfigError for an unknown view, and for numbers of processes
    and devices that contradict each other.
    """
    known = {each.value: each for each in View}
    views = None
    if asked.view != "all":
        if asked.view not in known:
            remedy = f"all, {', '.join(known)}"
            raise ConfigError(f"{asked.view!r} is no view", remedy=remedy)
        views = (known[asked.view],)
    request = _Request(out, recipe, watching, views, asked)
    if all(name in os.environ for name in _TORCHRUN_VARIABLES):
        if asked.processes > 1:
            remedy = "leave --nproc out"
            raise ConfigError("torchrun has started the processes", remedy=remedy)
        return _train_together(request)
    if asked.processes > 1:
        return _run_processes(request)
    prepare_process()
    with watching() as watcher:
        return request.train(watcher, asked.device)


def _run_processes(request: _Request) -> Path:
    """Train in several processes of this machine; return the folder of the model.

    Raises the error that ended one of the processes, or TrainingError if a process died. If this
    process gets a signal, torchrun passes it on to the others, which save a checkpoint and end.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    asked = request.asked
    # A device that cannot be used is refused before any process starts.
    for local_rank in range(asked.processes):
        find_device(_own_device(asked.device, local_rank, asked.processes))
    _silence_torchrun()
    with TemporaryDirectory(prefix="trinat-") as folder:
        error_file = Path(folder) / "error"
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=asked.processes,
            run_id="trinat",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            signals_to_handle=_STOP_SIGNALS,
            # A step on a processor may take longer than the default of thirty seconds.
            shutdown_timeout=int(_STEP_TIMEOUT.total_seconds()),
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            start = elastic_launch(config, _train_in_process)
            model_of_rank: dict[int, Path] = start(
                replace(request, error_file=error_file)
            )
            return model_of_rank[0]
        except (ChildFailedError, SignalException) as error:
            if error_file.is_file():
                raise pickle.loads(error_file.read_bytes()) from None
            what = "stopped by a signal"
            if isinstance(error, ChildFailedError):
                rank, failure = error.get_first_failure()
                what = f"process {rank} died of {failure.signal_name()}"
    remedy = "run the same command with --resume to continue from the last state"
    raise TrainingError(what, where=request.out, remedy=remedy)


def _silence_torchrun() -> None:
    """Discard the log of torchrun, which has forty lines about each error."""
    for name in ("torch.distributed", "torch.multiprocessing"):
        logger = logging.getLogger(name)
        # torch gives these loggers a handler of its own.
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False


def _train_in_process(request: _Request) -> Path:
    """Train in one of the processes that `_run_processes` starts; return the model's folder."""
    _silence_torchrun()
    model = _train_together(request)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # A killed parent process cannot receive the result, and torch would wait for it forever.
        os._exit(0)
    return model


def _train_together(request: _Request) -> Path:
    """Train as one of several processes that share each batch; return the folder of the model.

    Raises TrainingError if another process has died. Another error is written to the `error_file`
    of the request, if there is one, and raised.
    """
    try:
        return _join_and_train(request)
    except Exception as error:
        # gloo has no error class of its own for the death of another process.
        is_of_gloo = isinstance(error, RuntimeError) and _GLOO_ERROR.search(str(error))
        if is_of_gloo or isinstance(error, distributed.DistError):
            remedy = (
                "torchrun names it; run the same command with --resume to continue from "
                "the last state"
            )
            raise TrainingError(
                "another process has died", where=request.out, remedy=remedy
            ) from error
        if request.error_file is not None:
            write_whole(request.error_file, pickle_error(error))
        raise


def _join_and_train(request: _Request) -> Path:
    """Connect to the other processes of the training, and train; return the folder of the model."""
    rank, count, local_rank, local_count = (
        int(os.environ[name]) for name in _TORCHRUN_VARIABLES
    )
    device = _own_device(request.asked.device, local_rank, local_count)
    # On a CPU mostly one thread for each process: see workers.py.
    prepare_process(threads=max(1, cpu_count() // local_count))

    backend = "gloo"
    if device.startswith("cuda"):
        use_gpu(device)
        backend = "nccl"
    # Waits until all processes have connected.
    distributed.init_process_group(backend, timeout=_STEP_TIMEOUT)
    patient = distributed.new_group(backend="gloo", timeout=_LEADER_TIMEOUT)
    workers = Workers(rank, count, patient)

    watching: AbstractContextManager[Watcher] = training_progress(quiet=True)
    if workers.leads:
        watching = request.watching()
    with watching as watcher:
        model = request.train(watcher, device, workers)
    distributed.destroy_process_group()
    return model


def _own_device(device: str, local_rank: int, local_count: int) -> str:
    """Return the torch device on which one of the processes of this machine trains.

    `device` is the one that the user named for all processes. `local_rank` is the number of the
    process on this machine, from 0, and `local_count` the number of its processes. Raises
    DeviceError if this machine has fewer GPUs than processes, and ConfigError if several processes
    are to use one GPU.
    """
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
