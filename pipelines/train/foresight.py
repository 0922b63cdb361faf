"""What a run on a processor will take, said before it is taken: memory of a step, hours of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from trinat.pipelines.train.job import Job
from trinat.segmentation.errors import DeviceError
from trinat.segmentation.io.memory import free_memory
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.hardware import bfloat16_hardware, training_layout
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.memory import StepMemory, smaller_batch

_GIB = 2**30
# A slice of this part of its rows and columns is timed, and the quickest of so many counts: the
# first prepares, and others are slow where other work comes between.
_PART = 2
_TIMES = 3
_TOLD_HOURS = 1
# Beyond this, another recipe is proposed.
_LONG_HOURS = 48


def uses_bfloat16(stage: StageConfig, device: torch.device) -> bool:
    if stage.precision == "auto":
        return bool(bfloat16_hardware(device))
    return stage.precision == "bfloat16"


def refuse_too_large(recipe: Recipe, jobs: Sequence[Job], processes: int) -> None:
    """Refuse a step that this machine has no memory for: the kernel ends such runs unsaid."""
    there = free_memory()
    device = torch.device("cpu")
    for stage in {job.stage.name: job.stage for job in jobs}.values():
        size = stage.data.rows, stage.data.columns
        step = StepMemory.of(
            recipe.network, size, bfloat16=uses_bfloat16(stage, device)
        )
        slices = max(1, stage.batch // processes)
        needed = step.needed(slices) * processes
        if needed <= there:
            continue
        fits = step.largest_batch(slices, there // processes)
        remedy = "set data.rows and data.columns, or network.filters, lower"
        if fits:
            remedy = smaller_batch(stage.batch, stage.accumulate, fits * processes)
        raise DeviceError(
            f"a step of {stage.batch} slices of {size[0]}x{size[1]} needs about "
            f"{needed / _GIB:.1f} GiB of memory, and {there / _GIB:.1f} GiB are free",
            where=stage.name,
            remedy=remedy,
        )


def say_how_long(
    recipe: Recipe, jobs: Sequence[Job], processes: int, say: Callable[[str], None]
) -> None:
    """Say how many hours the jobs will take on processors, and what takes less."""
    seconds = 0.0
    timed: dict[tuple[int, int], float] = {}
    for job in jobs:
        size = job.stage.data.rows, job.stage.data.columns
        if size not in timed:
            timed[size] = slice_seconds(recipe.network, size)
        seconds += timed[size] * slices_of(job)
    hours = seconds / processes / 3600
    if hours < _TOLD_HOURS:
        return
    instead = ""
    if hours > _LONG_HOURS:
        instead = "; use a GPU, or `trinat train finetune`, which starts from a trained network"
    say(f"{recipe.name} will take about {hours:.0f} h on this processor{instead}")


def slices_of(job: Job) -> int:
    """How many slices a job trains on."""
    schedule = job.stage.schedule
    if schedule.steps is not None:
        return schedule.steps * job.stage.batch * job.stage.accumulate
    assert schedule.epochs is not None
    return schedule.epochs * job.stage.data.epoch_slices * len(job.views)


def slice_seconds(config: NetworkConfig, size: tuple[int, int]) -> float:
    """Seconds forward and backward through one slice, by the quickest of some smaller ones."""
    rows, columns = (max(32, side // _PART) for side in size)
    # Random weights take numbers that the run itself wants.
    with torch.random.fork_rng([]):
        network = build(config).train()
        network.arrange(training_layout(torch.device("cpu")))
        slices = torch.rand(1, config.channels, rows, columns)
        times = []
        for _ in range(_TIMES):
            began = time.perf_counter()
            network(slices).logsumexp(1).mean().backward()
            times.append(time.perf_counter() - began)
    return min(times) * size[0] * size[1] / (rows * columns)
