"""Two processes that train together: this process is the leader and starts the other."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from helpers.claimed import claimed
from helpers.known import KnownSlices
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.network import ViewsNet
from trinat.segmentation.training.workers import Workers


def in_both(work: Callable[..., Any], *args: object) -> list[Any]:
    """Return the results of `work(workers, *args)` in both processes; `work` must be importable."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = context.Pipe()
        meeting = Path(folder) / "meeting"
        other = context.Process(
            target=_follow, args=(theirs, meeting, work, args), daemon=True
        )
        other.start()
        results = [_meet(0, meeting, work, args), ours.recv()]
        other.join()
    return results


def _follow(
    pipe: Connection, meeting: Path, work: Callable[..., Any], args: Any
) -> None:
    torch.set_num_threads(1)
    pipe.send(_meet(1, meeting, work, args))


def _meet(rank: int, meeting: Path, work: Callable[..., Any], args: Any) -> Any:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=5),
    )
    try:
        return work(Workers(rank, 2), *args)
    finally:
        distributed.destroy_process_group()


def losses(
    workers: Workers,
    recipes: Sequence[Recipe],
    steps: int = 3,
    device: str = "cpu",
) -> list[list[float]]:
    """Return the losses of each recipe's first steps on the same slices.

    Norm statistics are frozen. A device other than the processor is only claimed.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((20, 16, 16), generator=generator)
    source = KnownSlices({View.AXIAL: (images, (images * 3).to(torch.uint8))}, 3)
    with nullcontext() if device == "cpu" else claimed(device):
        return [_losses(workers, recipe, source, steps, device) for recipe in recipes]


def _losses(
    workers: Workers, recipe: Recipe, source: KnownSlices, steps: int, device: str
) -> list[float]:
    torch.manual_seed(0)
    network = ViewsNet(recipe.network, {View.AXIAL: source.classes})
    trainer = Trainer(
        recipe,
        recipe.stages[0],
        [View.AXIAL],
        network,
        source,
        torch.device(device),
        workers,
    )
    trainer.network.eval()
    # Each step switches to training mode, in which norms would use the statistics of half a
    # batch.
    trainer.network.train = lambda mode=True: trainer.network  # type: ignore[method-assign]
    return [trainer.step().loss for _ in range(steps)]


def exchange(workers: Workers, value: str) -> tuple[str, list[str], float]:
    """Return the leader's value, the values of both processes, and the larger rank."""
    mine = f"{value}{workers.rank}"
    return (
        workers.share(lambda: mine),
        workers.gather(mine),
        workers.largest(workers.rank),
    )
