"""Preflight checks of a training run: missing inputs and expected memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from trinat.pipelines.train.result import Job
from trinat.segmentation.data.splits import read_split
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import DatasetError, DeviceError
from trinat.segmentation.io.limits import free_memory
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.synthetic.heads import load_heads
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.loop import precision_of
from trinat.segmentation.training.memory import StepMemory, smaller_batch

_GIB = 2**30


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


def refuse_too_large(recipe: Recipe, jobs: Sequence[Job]) -> None:
    """Raise DeviceError if a training step on the CPU needs more memory than is free.

    Without this check, the kernel would kill such a run without a message. The error proposes a
    smaller batch or, if none fits, other settings.
    """
    free = free_memory()
    device = torch.device("cpu")
    stages = {job.stage.name: job.stage for job in jobs}
    for stage in stages.values():
        size = (stage.data.rows, stage.data.columns)
        halves = precision_of(stage, device) != torch.float32
        step = StepMemory.of(recipe.network, size, bfloat16=halves)
        needed = step.needed(stage.batch)
        if needed <= free:
            continue
        fits = step.largest_batch(stage.batch, free)
        raise DeviceError(
            f"a step of {stage.batch} slices of {size[0]}x{size[1]} needs about "
            f"{needed / _GIB:.1f} GiB of memory, and {free / _GIB:.1f} GiB are free",
            where=stage.name,
            remedy=smaller_batch(stage.batch, stage.accumulate, fits),
        )
