"""What a training is asked for: the same for each process that takes part in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.train.job import Watcher
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe

# Opens a watcher, which gets the reports of the training.
Watching = Callable[[], AbstractContextManager[Watcher]]


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of `trinat.pipelines.train.run.train` that no process has for itself.

    `device` may name several, as "cuda:0,cuda:1": each then trains views of its own. `watching` is
    opened in the process that leads; for several processes it must be picklable.
    """

    recipe: Recipe
    out: Path
    watching: Watching
    views: tuple[View, ...] | None = None
    resume: bool = False
    seconds: float | None = None
    device: str = "cpu"

    @property
    def devices(self) -> list[str]:
        """The devices by name, one or several."""
        return self.device.split(",")

    @property
    def is_apart(self) -> bool:
        """Whether each process trains views of its own, instead of a part of each batch."""
        return len(self.devices) > 1
