"""Preflight checks of a training run: missing inputs, expected memory and duration."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from trinat.pipelines.train.job import Job
from trinat.segmentation.data.dataset import open_slices
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError, DeviceError
from trinat.segmentation.io.limits import free_memory
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import NetworkConfig
from trinat.segmentation.models.hardware import training_layout
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import load_heads
from trinat.segmentation.training.config import (
    TRUNK,
    Recipe,
    StageConfig,
    StoreConfig,
    ValidationConfig,
)
from trinat.segmentation.training.loop import precision_of
from trinat.segmentation.training.memory import StepMemory, smaller_batch

_log = logging.getLogger(__name__)

_GIB = 2**30
# To estimate the time of a slice, a slice with this fraction of its rows and columns is timed
# several times, and the shortest time counts: the first pass prepares, and others are slow if other
# work interrupts them.
_PART_OF_SIZE = 2
_TIMED_PASSES = 3
# Time of a forward pass, relative to a forward and a backward pass.
_FORWARD_SHARE = 1 / 3
# Approximate size of a synthetic head in voxels, because reading all heads takes seconds.
_HEAD_SHAPE = (176, 208, 176)
# The duration of shorter runs is not reported; for longer ones another recipe is proposed.
_REPORTED_HOURS = 1
_LONG_HOURS = 48


def refuse_missing_inputs(stages: Iterable[StageConfig]) -> None:
    """Raise an error if a stage lacks an input, before earlier stages have trained for hours.

    The inputs are the model that the stage starts from, its label maps of heads, and the files of
    its slice store, which must be unchanged. A stage with validation also needs subjects for
    validation. The errors are those of opening the inputs.
    """
    for stage in stages:
        if stage.start is not None:
            find_model(stage.start)
        if stage.data.synthetic is not None:
            heads = stage.data.synthetic.heads
            if isinstance(heads, Path) and not heads.exists():
                load_heads(heads)  # Raises.
        if stage.data.store is not None:
            store = Store(stage.data.store.path)
            split = stage.data.store.split
            validation = read_split(split).validation
            store.check([*store.part("train", split), *validation])
            if stage.validation is not None and not validation:
                remedy = "add some (trinat split --ratios 8 1 1), or use --set validation=null"
                what = "has no subject for validation"
                raise DatasetError(what, where=split, remedy=remedy)


def refuse_too_large(recipe: Recipe, jobs: Sequence[Job], processes: int) -> None:
    """Raise DeviceError if a training step on the CPU needs more memory than is free.

    Without this check, the kernel would kill such a run without a message. Each of the `processes`
    computes a part of a batch. The error proposes a smaller batch or, if none fits, other settings.
    """
    free = free_memory()
    device = torch.device("cpu")
    stages = {job.stage.name: job.stage for job in jobs}
    for stage in stages.values():
        size = (stage.data.rows, stage.data.columns)
        halves = precision_of(stage, device) != torch.float32
        step = StepMemory.of(recipe.network, size, bfloat16=halves)
        slices = max(1, stage.batch // processes)
        needed = step.needed(slices) * processes
        if needed <= free:
            continue
        fits = step.largest_batch(slices, free // processes)
        remedy = "set data.rows and data.columns, or network.filters, lower"
        if fits:
            remedy = smaller_batch(stage.batch, stage.accumulate, fits * processes)
        raise DeviceError(
            f"a step of {stage.batch} slices of {size[0]}x{size[1]} needs about "
            f"{needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free",
            where=stage.name,
            remedy=remedy,
        )


def expected_seconds(recipe: Recipe, jobs: Sequence[Job], processes: int) -> float:
    """Estimate how long `jobs` take on a CPU together, in seconds.

    One slice is timed here, and its time is multiplied by the number of slices, including those of
    validations. `processes` is the number of processes that share each batch.
    """
    seconds = 0.0
    timed: dict[tuple[int, int], float] = {}
    for job in jobs:
        size = (job.stage.data.rows, job.stage.data.columns)
        if size not in timed:
            timed[size] = slice_seconds(recipe.network, size)
        trained = slices_of(job) / processes
        parts = job.stage.optimiser.parts
        if all(parts.get(part) == 0 for part in TRUNK):
            trained *= _FORWARD_SHARE
        # One process validates while the others wait.
        seconds += timed[size] * (trained + validation_slices(job, recipe.seed))
    return seconds


def log_duration(recipe: Recipe, jobs: Sequence[Job], processes: int) -> None:
    """Log how many hours `jobs` will take on a CPU; log nothing below one hour."""
    hours = expected_seconds(recipe, jobs, processes) / 3600
    if hours < _REPORTED_HOURS:
        return
    instead = ""
    if hours > _LONG_HOURS:
        instead = "; use a GPU, or `trinat train finetune`, which starts from a trained network"
    _log.info(
        "%s will take about %.0f h on this processor%s", recipe.name, hours, instead
    )


def slices_of(job: Job) -> int:
    """Return the number of slices that a job trains on in all steps or epochs of its schedule."""
    schedule = job.stage.schedule
    if schedule.steps is not None:
        return schedule.steps * job.stage.batch * job.stage.accumulate
    assert schedule.epochs is not None
    return schedule.epochs * epoch_slices_of(job)


def epoch_slices_of(job: Job) -> int:
    """Return the number of slices in an epoch of a job, over all its views."""
    data = job.stage.data
    if data.epoch_slices is not None:
        return data.epoch_slices * len(job.views)
    assert data.store is not None
    of_store = [
        len(open_slices(data.store.path, data.store.split, "train", view))
        for view in job.views
    ]
    return sum(of_store)


def validation_slices(job: Job, seed: int) -> float:
    """Return the cost of all validations of a job, as a number of training slices.

    A validation scores whole scans, whatever the size of the training slices, and needs only a
    forward pass. `seed` decides which scans are scored.
    """
    stage = job.stage
    validation = stage.validation
    if validation is None:
        return 0.0
    epochs = slices_of(job) / epoch_slices_of(job)
    times = math.ceil(epochs / validation.every_epochs)
    size = stage.data.rows * stage.data.columns
    pixels = 0
    for view in job.views:
        if stage.data.store is not None:
            pixels += _pixels_scored(stage.data.store, validation, view, seed)
        elif stage.data.synthetic is not None:
            heads = validation.participants or stage.data.synthetic.held_out or 1
            pixels += heads * math.prod(_HEAD_SHAPE)
    return times * _FORWARD_SHARE * pixels / size


def _pixels_scored(
    config: StoreConfig, validation: ValidationConfig, view: View, seed: int
) -> int:
    """Return the number of pixels in all slices of a view that one validation on a store scores.

    `config` names the store, and `validation` with the `seed` the participants that are scored.
    """
    store = Store(config.path)
    subjects = store.part("validation", config.split)
    participant_of = {entry.subject: entry.participant for entry in store.metadata}
    participants = [participant_of[subject] for subject in subjects]
    pixels = 0
    for place in validation.choose(participants, seed):
        file = store.file(subjects[place])
        slice_ = file.labels(view, 0, 1)[0]
        pixels += file.slice_count(view) * slice_.size
        file.close()
    return pixels


def slice_seconds(config: NetworkConfig, size: tuple[int, int]) -> float:
    """Measure how long a forward and backward pass of one slice takes on a CPU, in seconds.

    `size` is (rows, columns). The time is extrapolated from the fastest of several passes of a
    smaller slice. The random numbers of the run are not affected.
    """
    rows = max(32, size[0] // _PART_OF_SIZE)
    columns = max(32, size[1] // _PART_OF_SIZE)
    # The random weights would otherwise change the random numbers that the run itself uses.
    with torch.random.fork_rng([]):
        network = build(config).train()
        network.arrange(training_layout(torch.device("cpu")))
        slices = torch.rand(1, config.channels, rows, columns)
        times = []
        for _ in range(_TIMED_PASSES):
            began = time.perf_counter()
            logits = network(slices)
            logits.logsumexp(1).mean().backward()
            times.append(time.perf_counter() - began)
    return min(times) * size[0] * size[1] / (rows * columns)
