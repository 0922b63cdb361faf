"""Several processes train as one: this one leads, the others follow it."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import torch
from torch import distributed

from pipelines.process import cpu_count, prepare_process
from pipelines.train import Watcher, train
from segmentation.errors import ConfigError
from segmentation.training.config import Recipe
from segmentation.training.workers import Workers
from segmentation.views import View

__all__ = ["launch"]


def launch(
    recipe: Recipe,
    out: Path,
    watcher: Watcher,
    *,
    view: str = "all",
    resume: bool = False,
    device: str = "cpu",
    processes: int = 1,
) -> Path:
    """Train by `recipe` with so many processes; returns the folder of the model."""
    known = {v.value: v for v in View}
    if view != "all" and view not in known:
        raise ConfigError(f"{view!r} is no view", remedy=f"all, {', '.join(known)}")
    views = None if view == "all" else (known[view],)
    if processes == 1:
        prepare_process()
        return train(recipe, out, watcher, views=views, resume=resume, device=device)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="trinat-") as folder:
        meeting = str(Path(folder) / "meeting")
        helpers = [
            # A daemon ends with this process, however that ends.
            context.Process(
                target=_follow,
                args=(recipe, out, views, resume, device, rank, processes, meeting),
                daemon=True,
            )
            for rank in range(1, processes)
        ]
        for helper in helpers:
            helper.start()
        try:
            _meet(0, processes, meeting, device)
            workers = Workers(0, processes)
            return train(
                recipe, out, watcher, views=views, resume=resume, device=device, workers=workers
            )
        finally:
            for helper in helpers:
                helper.terminate()
                helper.join()
            if distributed.is_initialized():
                distributed.destroy_process_group()


def _follow(
    recipe: Recipe,
    out: Path,
    views: tuple[View, ...] | None,
    resume: bool,
    device: str,
    rank: int,
    processes: int,
    meeting: str,
) -> None:
    """What a helper does: the same training, without files and words."""
    _meet(rank, processes, meeting, device)
    silent = Watcher(say=lambda line: None, step=lambda job, report, progress: None)
    train(
        recipe,
        out,
        silent,
        views=views,
        resume=resume,
        device=device,
        workers=Workers(rank, processes),
    )


def _meet(rank: int, processes: int, meeting: str, device: str) -> None:
    # One thread each: see workers.py.
    prepare_process(threads=max(1, cpu_count() // processes))
    distributed.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=processes,
    )
    if device.startswith("cuda"):
        torch.cuda.set_device(rank)
