"""Starts processes that train as one on this machine, and starts them again when one dies.

They are started by torchrun's agent, which runs in this process. After a death all start again from
the last state, some times over. An error that would come again ends them all: the process that has
it writes it down, and it is raised here with its traceback.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trinat.pipelines.common.process import stop_signals
from trinat.pipelines.train.member import VERDICT, own_device, take_part
from trinat.pipelines.train.request import TrainRequest
from trinat.pipelines.train.run import find_device
from trinat.segmentation.errors import TrainingError

# How often processes are started again after one has died.
_RESTARTS = 3


def run_agent(request: TrainRequest, processes: int) -> Path:
    """Train in this number of processes; returns the folder of the model.

    Raises the error that a process has written down, or TrainingError after too many deaths.
    Signals to this process stop all, once they have saved.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    # A device that cannot be used is refused before any process starts.
    for local_rank in range(processes):
        find_device(own_device(request, local_rank, processes))
    # Without a lock, which a killed process could take with it.
    stop = RawValue("b", 0)

    def stop_all() -> None:
        """All processes see this: they save and end."""
        stop.value = 1

    with (
        TemporaryDirectory(prefix="trinat-") as folder,
        stop_signals(stop_all),
        _silent_torchrun(),
    ):
        start = elastic_launch(_torchrun_config(processes, folder), _work)
        for restarts in range(_RESTARTS + 1):
            began = time.monotonic()
            try:
                model_of_rank: dict[int, Path] = start(request, restarts, stop)
                return model_of_rank[0]
            except ChildFailedError as error:
                _raise_verdict(Path(folder))
                rank, failure = error.get_first_failure()
                how_it_died = failure.signal_name()
                request = _with_time_left(request, time.monotonic() - began)
    what = f"process {rank} died {_RESTARTS + 1} times, the last time of {how_it_died}"
    remedy = "the same command with --resume goes on from the last state"
    raise TrainingError(what, where=request.out, remedy=remedy)


@contextmanager
def _silent_torchrun() -> Iterator[None]:
    """torchrun reports each death in forty lines; one line of ours is enough."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


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


def _raise_verdict(folder: Path) -> None:
    """Raise the error that a process has written down, if one has."""
    for verdict in folder.glob(f"*/{VERDICT}"):
        raise pickle.loads(verdict.read_bytes()) from None


def _with_time_left(request: TrainRequest, spent_s: float) -> TrainRequest:
    """The same training, with what is left of its seconds if they are limited."""
    if not request.seconds:
        return request
    return replace(request, seconds=max(1.0, request.seconds - spent_s))


def _work(request: TrainRequest, restarts: int, stop: Any) -> Path:
    """What each process does; `stop` is a value that all share, not 0 once they are to stop."""

    def should_stop() -> bool:
        return bool(stop.value)

    logging.disable()
    model = take_part(request, restarts, should_stop)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        # Killed, which stopped this process, too: there is nobody to return the result to.
        os._exit(0)
    return model
