"""One job of a training run at work in its folder: each moment of it a file to resume from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.train.clock import JobClock, TimeLimit
from pipelines.train.data import open_data
from pipelines.train.log import Metrics
from pipelines.train.page import write_page
from pipelines.train.result import DONE, trained
from pipelines.train.scores import TrainScores, interruption
from segmentation.errors import ConfigError, DatasetError, InputError, TrainingError
from segmentation.io.files import atomic_text
from segmentation.labels.scheme import LabelScheme, load_scheme
from segmentation.models.base import Network
from segmentation.models.checkpoint import load_model
from segmentation.models.model_info import Preprocessing
from segmentation.models.zoo import find_model
from segmentation.space.views import View
from segmentation.training.batches import Source
from segmentation.training.config import Recipe, StageConfig
from segmentation.training.loop import StepReport, Trainer
from segmentation.training.network import ViewsNet, copy_matching
from segmentation.training.state import (
    check_identity,
    from_bytes,
    read_latest,
    to_bytes,
    write_state,
)
from segmentation.training.validation import Scan
from segmentation.training.workers import Workers

__all__ = ["Job", "JobRun", "Watcher"]


@dataclass(frozen=True)
class Job:
    """One training: a stage for one view, or for several together."""

    stage: StageConfig
    views: tuple[View, ...]

    @property
    def name(self) -> str:
        return f"{self.stage.name}/{'-'.join(view.value for view in self.views)}"


@dataclass
class Watcher:
    """What a run tells while it goes on."""

    say: Callable[[str], None]
    step: Callable[[Job, StepReport, float], None]  # the last: progress, 0 to 1


class JobRun:
    """One job at work in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        job: Job,
        out: Path,
        watcher: Watcher,
        device: torch.device,
        workers: Workers,
    ) -> None:
        self.recipe, self.job, self.out, self.watcher = recipe, job, out, watcher
        self.device, self.workers = device, workers
        self.folder = out / job.name
        self.scheme = load_scheme(recipe.scheme)

    @property
    def is_done(self) -> bool:
        return self.workers.share((self.folder / DONE).is_file)

    def go(self, stop: Callable[[], bool], limit: TimeLimit | None = None, others: int = 0) -> None:
        """Train to the end; within a limit of time, which `others` are to share."""
        if self.workers.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
        opened = open_data(
            self.recipe,
            self.job.stage,
            self.job.views,
            self.scheme,
            self.device,
            self.workers.count,
        )
        with opened as (source, scans):
            self._train(source, scans, stop, limit, others)

    def _train(
        self,
        source: Source,
        scans: Callable[[View], Iterator[Scan]],
        stop: Callable[[], bool],
        limit: TimeLimit | None,
        others: int,
    ) -> None:
        leads = self.workers.leads
        self._check_same(source)
        trainer = Trainer(
            self.recipe,
            self.job.stage,
            self.job.views,
            self._start(),
            source,
            self.device,
            self.workers,
            self._teachers(),
        )
        identity = {
            "stage": self.job.stage.model_dump(mode="json"),
            "network": self.recipe.network.model_dump(mode="json"),
            "scheme": self.recipe.scheme,
            "seed": self.recipe.seed,
            "views": [view.value for view in self.job.views],
            "processes": self.workers.count,
            "data": source.fingerprint,
        }
        if leads:
            self._resume(trainer, identity, by_time=limit is not None)
        self._begin_alike(trainer)
        writer = (
            Metrics(
                self.folder,
                trainer.counters.step,
                events=self.recipe.events,
                mlflow=self.recipe.mlflow,
                settings=identity,
            )
            if leads
            else None
        )
        scores = TrainScores(
            self.job.name,
            self.job.stage.validation,
            trainer,
            scans,
            self.job.views,
            self.scheme,
            self.recipe.network.channels,
            self.folder,
            identity,
            writer,
            self.watcher.say,
            stop,
            self.workers,
        )
        saved_at, told = trainer.counters.step, False
        # A run that was killed when its patience had ended does not begin anew to be patient.
        over = scores.tried_patience
        if trainer.counters.validation_due:
            over = self._rest(scores)
        clock = None
        if limit is not None:
            validates = self.job.stage.validation is not None
            clock = JobClock(limit, trainer.progress, others, validates=validates)
            trainer.counters.share = trainer.progress
        while trainer.progress < 1 and not over:
            try:
                report = trainer.step()
            except (DatasetError, InputError):
                # What cannot be read can be mended; the steps before are not lost.
                if leads and trainer.counters.step > saved_at:
                    write_state(self.folder, trainer.state(identity))
                raise
            if trainer.not_compiled and not told:
                told = True
                self.watcher.say(f"trains without being compiled: {trainer.not_compiled}")
            if clock is not None and clock.has_started:
                trainer.counters.share = self.workers.largest(clock.tick(report.seconds))
            self.watcher.step(self.job, report, trainer.progress)
            if writer is not None:
                writer.add(report, last=trainer.progress >= 1)
            if clock is not None and not clock.has_started:
                began = time.monotonic()
                self.workers.share(lambda: self._write(trainer, identity))
                clock.start(time.monotonic() - began)
            # All processes stop at the same step, or those left would wait for ever.
            stopped = self.workers.largest(float(stop())) > 0
            at_rest = trainer.progress >= 1 or report.step % trainer.epoch_steps == 0
            trainer.counters.validation_due = at_rest and scores.are_due
            due = report.step - saved_at >= self.job.stage.checkpoint_every_steps
            if leads and (due or at_rest or stopped):
                # Before validation, which takes minutes: whoever is killed in it loses no step.
                write_state(self.folder, trainer.state(identity))
                saved_at = report.step
            if stopped and (trainer.progress < 1 or trainer.counters.validation_due):
                # Whoever ends first may take the others along: not before the state is written.
                self.workers.share(lambda: None)
                raise interruption(trainer, self.folder)
            if at_rest:
                began, validated = time.monotonic(), trainer.counters.validation_due
                over = self._rest(scores)
                if limit is not None and validated:
                    limit.validation_s = max(limit.validation_s or 0, time.monotonic() - began)
        if leads:
            with atomic_text(self.folder / DONE) as file:
                json.dump(asdict(trainer.counters), file)

    def _rest(self, scores: TrainScores) -> bool:
        """Between epochs: score the weights where it is time to, and draw the page.

        True where patience is at its end.
        """
        over = scores.take()
        if self.workers.leads:
            write_page(self.folder, self.job.name, self.scheme)
        return over

    def _write(self, trainer: Trainer, identity: dict[str, Any]) -> None:
        write_state(self.folder, trainer.state(identity))
        write_page(self.folder, self.job.name, self.scheme)

    def _check_same(self, source: Source) -> None:
        """Machines that train together must have the same data."""
        if self.workers.share(lambda: source.fingerprint) != source.fingerprint:
            raise DatasetError(
                f"process {self.workers.rank} does not have the data that process 0 has",
                remedy="give all machines the same files",
            )

    def _resume(self, trainer: Trainer, identity: dict[str, Any], *, by_time: bool) -> None:
        state, problems = read_latest(self.folder)
        before = (
            "the state before it is taken" if state else "no sound one is left, all begins anew"
        )
        for problem in problems:
            self.watcher.say(f"{problem}: {before}")
        if state is None:
            return
        check_identity(state.identity, identity, self.folder)
        if not by_time and state.counters.share is not None and state.counters.share < 1:
            raise TrainingError(
                f"{state.counters.share:.0%} of its schedule are done, by time and not by steps",
                where=self.folder,
                remedy="--resume --seconds N does the rest in N seconds",
            )
        trainer.load(state)
        self.watcher.say(f"{self.job.name}: goes on at step {state.counters.step}")

    def _begin_alike(self, trainer: Trainer) -> None:
        """All processes start where the leader does: a disk may show each another state."""
        if self.workers.count == 1:
            return
        state = self.workers.share(lambda: to_bytes(trainer.state({})))
        if not self.workers.leads:
            trainer.load(from_bytes(state))

    def _start(self) -> ViewsNet:
        """A network with its first weights: of the stage before, of a model, or drawn."""
        torch.manual_seed(self.recipe.seed)
        network = ViewsNet(
            self.recipe.network,
            {view: len(self.scheme.seen_in(view)) for view in self.job.views},
        )
        # The others get theirs from the leader.
        for view in self.job.views if self.workers.leads else ():
            beginning = self._weights_to_start_from(view)
            if beginning is None:
                continue
            source, theirs = beginning
            ours = self.scheme.seen_in(view)
            kept, anew = copy_matching(network, view, source, theirs, ours)
            if self.job.stage.start is not None:
                more = f"; anew begin {', '.join(anew)}" if anew else ""
                self.watcher.say(
                    f"{self.job.name}: {view.value} starts with the model's weights for "
                    f"{kept} of {len(ours)} classes{more}"
                )
        return network

    def _teachers(self) -> dict[View, Network]:
        """Networks whose probabilities are learnt: they must know these labels and these slices."""
        if self.job.stage.distillation is None:
            return {}
        where = self.job.stage.distillation.teacher
        model = load_model(find_model(where), self.job.views)
        if model.scheme.names != self.scheme.names or model.info.preprocessing != Preprocessing():
            raise ConfigError(
                "teaches other labels, or from scans made ready otherwise", where=where
            )
        for view, teacher in model.networks.items():
            if teacher.config.classes != len(self.scheme.seen_in(view)):
                raise ConfigError(f"has other {view.value} classes than are trained", where=where)
            if teacher.config.channels > self.recipe.network.channels:
                raise ConfigError(
                    f"looks at {teacher.config.channels} slices at a time",
                    where=where,
                    remedy=f"set network.channels to {teacher.config.channels} or more",
                )
        return dict(model.networks)

    def _weights_to_start_from(self, view: View) -> tuple[Network, LabelScheme] | None:
        """A network, and its classes."""
        if self.job.stage.start is not None:
            model = load_model(find_model(self.job.stage.start))
            # A view that the model lacks starts from another.
            other = view if view in model.networks else next(iter(model.networks))
            return model.networks[other], model.classes_of(other)
        index = self.recipe.stages.index(self.job.stage)
        if index == 0:
            return None
        say = self.watcher.say
        network, other = trained(self.recipe, self.recipe.stages[:index], view, self.out, say)
        return network, self.scheme.seen_in(other)
