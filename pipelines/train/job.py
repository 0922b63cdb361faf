"""What a training job is: a stage for some views, its folder in the run, and who works on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from trinat.pipelines.train.pages import write_page
from trinat.pipelines.train.result import DONE, pseudo_labels
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import Recipe, StageConfig
from trinat.segmentation.training.loop import StepReport
from trinat.segmentation.training.workers import Workers


@dataclass(frozen=True)
class Job:
    """One training: a stage for one view, or for several together.

    Jobs of a run are trained one after the other. Each ends with a state of its own, from which
    the next stage of the same view starts.
    """

    stage: StageConfig
    views: tuple[View, ...]

    @property
    def name(self) -> str:
        """Its folder in the run: <stage>/<view>, or all views joined by hyphens."""
        return f"{self.stage.name}/{'-'.join(view.value for view in self.views)}"


@dataclass
class Watcher:
    """What a run reports as it goes on.

    `say` gets a line of text, `step` a job, what its step did, and its progress from 0 to 1.
    """

    say: Callable[[str], None]
    step: Callable[[Job, StepReport, float], None]


@dataclass(frozen=True, eq=False)
class JobRun:
    """One job at work in its folder, by this process.

    `out` is the folder of the run. `workers` are the processes that share the job's batches; the
    one that leads writes all files.
    """

    recipe: Recipe
    job: Job
    out: Path
    watcher: Watcher
    device: torch.device
    workers: Workers

    @property
    def folder(self) -> Path:
        """Where all of the job is written."""
        return self.out / self.job.name

    @cached_property
    def scheme(self) -> LabelScheme:
        """The recipe's label scheme, with the classes of all views."""
        return load_scheme(self.recipe.scheme)

    @property
    def is_done(self) -> bool:
        """Whether the job has been trained to its end."""
        return (self.folder / DONE).is_file()

    def identity(self, data: str) -> dict[str, Any]:
        """What must be the same for a job to be resumed; `data` is the data's fingerprint.

        It is kept in each state.
        """
        return {
            "stage": self.job.stage.model_dump(mode="json"),
            "network": self.recipe.network.model_dump(mode="json"),
            "scheme": self.recipe.scheme,
            "seed": self.recipe.seed,
            "views": [view.value for view in self.job.views],
            "processes": self.workers.count,
            "data": data,
        }

    def write_page(self) -> None:
        """run.html and progress.png of the job, as it is now."""
        title = self.job.name
        labels_of_models = pseudo_labels(self.recipe, self.out)
        if labels_of_models:
            title = f"{title}, {labels_of_models}"
        write_page(self.folder, title, self.scheme)
