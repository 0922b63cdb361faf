"""A training starts here: in this process, or in several that train as one.

Several are started by torchrun on any number of machines, or from here (`agent.py`). What each of
them does is in `member.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from trinat.pipelines.common.process import prepare_process
from trinat.pipelines.train.agent import run_agent
from trinat.pipelines.train.member import TORCHRUN_VARIABLES, take_part
from trinat.pipelines.train.request import TrainRequest, Watching
from trinat.pipelines.train.run import train
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe


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
    request = TrainRequest(
        recipe,
        out,
        watching,
        views=_views_of(view),
        resume=resume,
        seconds=seconds,
        device=device,
    )
    if request.is_apart and processes > 1:
        remedy = "give --device cuda and --nproc for several GPUs a view"
        raise ConfigError(
            "--nproc with several devices, which have a view each", remedy=remedy
        )
    count = max(processes, len(request.devices))
    if all(name in os.environ for name in TORCHRUN_VARIABLES):
        if count > 1:
            remedy = "leave --nproc out, and give one device"
            raise ConfigError("torchrun has started the processes", remedy=remedy)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        return take_part(request, restarts)
    if count > 1:
        return run_agent(request, count)
    prepare_process()
    with watching() as watcher:
        return train(
            recipe,
            out,
            watcher,
            views=request.views,
            resume=resume,
            seconds=seconds,
            device=device,
        )


def _views_of(name: str) -> tuple[View, ...] | None:
    """The view of that name; None for "all": those of the recipe."""
    if name == "all":
        return None
    for view in View:
        if view.value == name:
            return (view,)
    known = ", ".join(view.value for view in View)
    raise ConfigError(f"{name!r} is no view", remedy=f"all, {known}")
