"""One of several processes that train the same run as one: what it does, and how it ends.

The one of rank 0 leads, writes and reports. The death of another process ends this one, too, and
whoever started them starts all again. An error that would come again is written down, so that no
process of this machine is started for it once more.
"""

from __future__ import annotations

import os
import pickle
import re
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch import distributed

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.common.process import cpu_count, prepare_process
from trinat.pipelines.train.job import Watcher
from trinat.pipelines.train.request import TrainRequest
from trinat.pipelines.train.run import find_device, train
from trinat.segmentation.errors import ConfigError, DeviceError, TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.models.hardware import count_gpus, use_gpu
from trinat.segmentation.training.workers import Workers

# What torchrun sets in the environment of a process.
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# The file of the error that ends all processes of a machine: in the folder that torch keeps for
# them, for all of their restarts.
VERDICT = "verdict"
# The others wait while the leader validates whole scans. A dead process is noticed at once.
_PATIENCE = timedelta(hours=6)
# Processes that have views apart wait until another's view is done.
_PATIENCE_APART = timedelta(days=365)
# "[/.../gloo/transport/tcp/pair.cc:537] Read error ..."
_OF_GLOO = re.compile(r"/gloo/transport/\S+:\d+\]|Connection closed by peer")
_SILENT = Watcher(say=lambda line: None, step=lambda job, report, progress: None)


@dataclass(frozen=True)
class Place:
    """This process among all (`rank`, `count`), and among those of its machine."""

    rank: int
    count: int
    local_rank: int
    local_count: int

    @classmethod
    def of_this_process(cls) -> Place:
        """As torchrun has written it into the environment."""
        return cls(*(int(os.environ[name]) for name in TORCHRUN_VARIABLES))


def take_part(
    request: TrainRequest,
    restarts: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path:
    """Train as one of several processes; returns the folder of the model.

    `restarts` says how often all were started again. An error that a restart would repeat is
    written down and raised. The death of another process is none of these: TrainingError.
    """
    verdict = _verdict_file()
    if restarts and verdict is not None and verdict.is_file():
        # The process with the error has printed it. torchrun restarts after any error.
        raise SystemExit(Exit.ALL_FAILED)
    try:
        return _train_together(request, restarts, should_stop)
    except Exception as error:
        if _is_death_of_another(error):
            remedy = (
                "torchrun says which; with --max-restarts all go on from the last state"
            )
            raise TrainingError(
                "another process has died", where=request.out, remedy=remedy
            ) from error
        if verdict is not None:
            write_whole(verdict, _pickled(error))
        raise


def _train_together(
    request: TrainRequest, restarts: int, should_stop: Callable[[], bool]
) -> Path:
    """Join the other processes and train; the leader alone writes and reports."""
    place = Place.of_this_process()
    device = own_device(request, place.local_rank, place.local_count)
    # On a CPU mostly one thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // place.local_count))
    _join_others(device, is_apart=request.is_apart)
    workers = Workers(place.rank, place.count)
    # torchrun counts restarts by machine: the leader's machine may have had none.
    restarts = int(workers.largest(restarts))
    with _watched(request, leads=workers.leads) as watcher:
        if restarts:
            watcher.say(
                f"a process died: all go on from the last state (restart {restarts})"
            )
        model = train(
            request.recipe,
            request.out,
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
    return model


def _join_others(device: str, *, is_apart: bool) -> None:
    """Set up torch.distributed; waits until all processes are there."""
    is_cuda = device.startswith("cuda")
    if is_cuda:
        use_gpu(device)
    backend = "gloo"
    if is_cuda and not is_apart:
        backend = "nccl"
    timeout = _PATIENCE_APART if is_apart else _PATIENCE
    distributed.init_process_group(backend, timeout=timeout)


def _watched(request: TrainRequest, *, leads: bool) -> AbstractContextManager[Watcher]:
    """The watcher of this process; a silent one where only the leader reports."""
    if leads:
        return request.watching()
    if request.is_apart:
        # rich: lines beside the leader's bar.
        os.environ["TTY_COMPATIBLE"] = "0"
        return request.watching()
    return nullcontext(_SILENT)


def own_device(request: TrainRequest, local_rank: int, local_count: int) -> str:
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
