"""TorchIO's and MONAI's transforms of slices as a store holds them, here or in other processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from functools import partial

import numpy as np
import torch

from trinat.segmentation.data.dataset import StoredSlice
from trinat.segmentation.data.slices import quantise
from trinat.segmentation.data.transforms import SliceTransforms
from trinat.segmentation.errors import TrainingError
from trinat.segmentation.space.views import View


class StoredTransforms:
    """Gives the change of each slice of a training; its numbers follow from the slice's number."""

    def __init__(
        self,
        transforms: SliceTransforms,
        seed: int,
        processes: Executor | None,
    ) -> None:
        """`seed` is that of the run. Without `processes` slices are changed where they are read."""
        self.transforms = transforms
        self.seed = seed
        self.processes = processes

    def change(self, view: View, number: int) -> Callable[[StoredSlice], StoredSlice]:
        """How slice `number` of a view, counted from the run's start, is changed."""
        parts = (self.seed, list(View).index(view), number)
        seed = int(np.random.SeedSequence(parts).generate_state(1)[0])
        if self.processes is None:
            return partial(transformed, self.transforms, seed)
        return partial(_elsewhere, self.processes, self.transforms, seed)


def transformed(
    transforms: SliceTransforms, seed: int, stored: StoredSlice
) -> StoredSlice:
    """A slice after the transforms, as codes again; one that they leave alone stays bit for bit."""
    image = torch.from_numpy(stored.image.values())
    labels = torch.from_numpy(stored.labels)
    changed, classes = transforms(image, labels, seed)
    if changed is image:
        return stored
    return StoredSlice(quantise(changed.contiguous().numpy()), classes.numpy())


def _elsewhere(
    processes: Executor,
    transforms: SliceTransforms,
    seed: int,
    stored: StoredSlice,
) -> StoredSlice:
    """As `transformed`, in one of the processes; TrainingError where one of them has died."""
    try:
        return processes.submit(transformed, transforms, seed, stored).result()
    except BrokenExecutor as error:
        raise TrainingError(
            "a process that transforms slices died, perhaps for want of memory",
            remedy="set data.store.workers to a smaller number, or to 0",
        ) from error
