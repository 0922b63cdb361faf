"""One job of a training run at work in its folder: it can be resumed from any moment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinat.pipelines.train.data import open_data
from trinat.pipelines.train.log import Metrics, append_scores, write_examples, write_page
from trinat.pipelines.train.result import BEST, DONE, first_weights, pseudo_labels
from trinat.segmentation import timing
from trinat.segmentation.errors import DatasetError, InputError, InterruptedRunError, TrainingError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training import state as states
from trinat.segmentation.training.config import Recipe, StageConfig, ValidationConfig
from trinat.segmentation.training.loop import StepReport, Trainer
from trinat.segmentation.training.network import ViewsNet, copy_matching
from trinat.segmentation.training.validation import Scan, Scores, validate
from trinat.segmentation.training.workers import Workers

# Share of a job's time that is reserved for validation until one has been measured.
_UNMEASURED = 0.1


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
    """What a run reports as it goes on."""

    say: Callable[[str], None]
    step: Callable[[Job, StepReport, float], None]  # the last: progress, 0 to 1


@dataclass(frozen=True, eq=False)
class JobRun:
    """One job at work in its folder."""

    recipe: Recipe
    job: Job
    out: Path  # of the run
    watcher: Watcher
    device: torch.device
    workers: Workers

    @property
    def folder(self) -> Path:
        return self.out / self.job.name

    @cached_property
    def scheme(self) -> LabelScheme:
        return load_scheme(self.recipe.scheme)

    @property
    def is_done(self) -> bool:
        return (self.folder / DONE).is_file()

    def go(self, stop: Callable[[], bool], limit: TimeLimit | None = None, others: int = 0) -> None:
        """Train to the end; within a limit of time, which `others` are to share."""
        job, recipe, workers = self.job, self.recipe, self.workers
        if workers.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
        with open_data(recipe, job.stage, job.views, self.scheme, self.device, workers.count) as (
            source,
            scans,
        ):
            # Machines that train together must have the same data.
            if workers.share(lambda: source.fingerprint) != source.fingerprint:
                what = f"process {workers.rank} does not have the data that process 0 has"
                raise DatasetError(what, remedy="give all machines the same files")
            trainer = Trainer(
                recipe, job.stage, job.views, self._start(), source, self.device, workers
            )
            identity = {
                "stage": job.stage.model_dump(mode="json"),
                "network": recipe.network.model_dump(mode="json"),
                "scheme": recipe.scheme,
                "seed": recipe.seed,
                "views": [view.value for view in job.views],
                "processes": workers.count,
                "data": source.fingerprint,
            }
            metrics = None
            if workers.leads:
                self._resume(trainer, identity, by_time=limit is not None)
                metrics = Metrics(self.folder, trainer.counters.step, events=recipe.events)
            if workers.count > 1:
                # All processes start from the leader's state: disks may show each another file.
                alike = workers.share(lambda: states.to_bytes(trainer.state({})))
                if not workers.leads:
                    trainer.load(states.from_bytes(alike))
            self._train(TrainScores(self, trainer, identity, scans, metrics, stop), limit, others)

    def _train(self, scores: TrainScores, limit: TimeLimit | None, others: int) -> None:
        leads, trainer = self.workers.leads, scores.trainer
        saved_at, said = trainer.counters.step, False

        def save() -> None:
            scores.save()
            self.write_page()

        # A run that was killed after its patience had ended does not train further.
        over = scores.tried_patience
        if trainer.counters.validation_due:
            over = scores.take()
        clock = None
        if limit is not None:
            validates = self.job.stage.validation is not None
            clock = JobClock(limit, trainer.progress, others, validates=validates)
            trainer.counters.share = trainer.progress
        while trainer.progress < 1 and not over:
            try:
                report = trainer.step()
            except (DatasetError, InputError):
                # The user can repair a file that cannot be read; the steps before are kept.
                if leads and trainer.counters.step > saved_at:
                    scores.save()
                raise
            if trainer.not_compiled and not said:
                said = True
                self.watcher.say(f"trains without being compiled: {trainer.not_compiled}")
            if clock is not None and clock.has_started:
                trainer.counters.share = self.workers.largest(clock.tick(report.seconds))
            self.watcher.step(self.job, report, trainer.progress)
            if scores.metrics is not None:
                scores.metrics.add(report, last=trainer.progress >= 1)
            if clock is not None and not clock.has_started:
                began = time.monotonic()
                self.workers.share(save)
                clock.start(time.monotonic() - began)
            # All processes stop at the same step, or the others would wait for ever.
            stopped = self.workers.largest(float(scores.stop())) > 0
            at_rest = trainer.progress >= 1 or report.step % trainer.epoch_steps == 0
            trainer.counters.validation_due = at_rest and scores.are_due
            due = report.step - saved_at >= self.job.stage.checkpoint_every_steps
            if leads and (due or at_rest or stopped):
                # Before validation, which takes minutes: a run killed in it loses no step.
                scores.save()
                saved_at = report.step
            if stopped and (trainer.progress < 1 or trainer.counters.validation_due):
                # A process that ends may end the others: not before the state is written.
                self.workers.share(lambda: None)
                raise scores.interruption()
            if at_rest:
                began, validated = time.monotonic(), trainer.counters.validation_due
                over = scores.take()
                if limit is not None and validated:
                    limit.validation_s = max(limit.validation_s or 0, time.monotonic() - began)
        if leads:
            write_whole(self.folder / DONE, json.dumps(asdict(trainer.counters)))

    def write_page(self) -> None:
        title = filter(None, (self.job.name, pseudo_labels(self.recipe, self.out)))
        write_page(self.folder, ", ".join(title), self.scheme)

    def _resume(self, trainer: Trainer, identity: dict[str, Any], *, by_time: bool) -> None:
        state, problems = states.read_latest(self.folder)
        before = (
            "the state before it is used" if state else "no sound one is left, the job starts again"
        )
        for problem in problems:
            self.watcher.say(f"{problem}: {before}")
        if state is None:
            return
        states.check_identity(state.identity, identity, self.folder)
        if not by_time and state.counters.share is not None and state.counters.share < 1:
            what = f"{state.counters.share:.0%} of its schedule are done, by time and not by steps"
            remedy = "--resume --seconds N does the rest in N seconds"
            raise TrainingError(what, where=self.folder, remedy=remedy)
        trainer.load(state)
        self.watcher.say(f"{self.job.name}: goes on at step {state.counters.step}")

    def _start(self) -> ViewsNet:
        """A network with its first weights: of the stage before, of a model, or random."""
        torch.manual_seed(self.recipe.seed)
        classes = {view: len(self.scheme.seen_in(view)) for view in self.job.views}
        network = ViewsNet(self.recipe.network, classes)
        # The others get theirs from the leader.
        for view in self.job.views if self.workers.leads else ():
            first = first_weights(self.recipe, self.job.stage, view, self.out, self.watcher.say)
            if first is None:
                continue
            source, theirs = first
            ours = self.scheme.seen_in(view)
            kept, random = copy_matching(network, view, source, theirs, ours)
            if self.job.stage.start is not None:
                more = f"; random weights: {', '.join(random)}" if random else ""
                self.watcher.say(
                    f"{self.job.name}: {view.value} starts with the model's weights for "
                    f"{kept} of {len(ours)} classes{more}"
                )
        return network


@dataclass(frozen=True, eq=False)
class TrainScores:
    """Scores of a job's weights: the state with the best is kept, and patience may end."""

    run: JobRun
    trainer: Trainer
    identity: dict[str, Any]
    scans: Callable[[View], Iterator[Scan]]
    metrics: Metrics | None  # the leader's
    stop: Callable[[], bool]

    @property
    def config(self) -> ValidationConfig | None:
        return self.run.job.stage.validation

    @timing.stage("save")
    def save(self, name: str | None = None) -> None:
        states.write_state(self.run.folder, self.trainer.state(self.identity), name=name)

    def interruption(self) -> InterruptedRunError:
        what = f"stopped at step {self.trainer.counters.step}; its state is saved"
        remedy = "the same command with --resume goes on"
        return InterruptedRunError(what, where=self.run.folder, remedy=remedy)

    @property
    def are_due(self) -> bool:
        """Whether the recipe has the weights scored at the end of this epoch, or of the job."""
        trainer = self.trainer
        epoch = trainer.counters.step // trainer.epoch_steps
        return self.config is not None and (
            trainer.progress >= 1 or epoch % self.config.every_epochs == 0
        )

    @property
    def tried_patience(self) -> bool:
        """Whether too many have been taken since the best."""
        if self.config is None or self.config.patience is None:
            return False
        return self.trainer.counters.validations_since_best >= self.config.patience

    @timing.stage("validation")
    def take(self) -> bool:
        """Between epochs: score the weights if that is due, and write the page.

        True if patience is at its end.
        """
        stopped = over = False
        if self.trainer.counters.validation_due:
            # The state that was saved before says that this is due, until one after it is saved.
            self.trainer.counters.validation_due = False
            stopped, over = self.run.workers.share(self._take)
        if stopped:
            raise self.interruption()
        if self.run.workers.leads:
            self.run.write_page()
        return over

    def _take(self) -> tuple[bool, bool]:
        """Whether a signal stopped it, and whether patience is at its end."""
        try:
            scores = {view: self._score(view) for view in self.run.job.views}
        except InterruptedRunError:
            return True, False
        counters = self.trainer.counters
        mean = float(np.mean([score.mean_dice for score in scores.values()]))
        for view, score in scores.items():
            scheme = self.run.scheme.seen_in(view)
            write_examples(self.run.folder, counters.step, view.value, score.examples, scheme)
        append_scores(self.run.folder, counters.step, scores, self.run.scheme)
        if self.metrics is not None:
            self.metrics.add_scores(scores, counters.step)
        self.run.watcher.say(f"{self.run.job.name}: step {counters.step}, Dice {mean:.3f}")
        # The mean of no values is NaN: it is never the best.
        if np.isfinite(mean) and (counters.best is None or mean > counters.best):
            counters.best, counters.best_step = mean, counters.step
            counters.validations_since_best = 0
            self.save(BEST)
        else:
            counters.validations_since_best += 1
        self.save()
        return False, self.tried_patience

    def _score(self, view: View) -> Scores:
        network = self.trainer.best_weights.extract(view).to(self.trainer.device)

        def check(*_: object) -> None:
            if self.stop():
                raise self.interruption()

        # A whole scan may take longer than a cluster waits: a few slices do not.
        network.register_forward_pre_hook(check)
        classes, channels = len(self.run.scheme.seen_in(view)), self.run.recipe.network.channels
        device, bf16 = self.trainer.device, self.trainer.bf16
        return validate(network, self.scans(view), classes, channels, device, bf16=bf16)


# Training within a wall time: the time of a call, and each job's part of it ----------------


class TimeLimit:
    """The seconds that one call may take, from the end of its first step on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = math.inf  # by time.monotonic; not known before the first step
        self.validation_s: float | None = None  # the longest so far, with what is written then

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end


class JobClock:
    """What is done of a job's schedule, by the wall clock.

    The time left is divided among the jobs left by what each has still to do. A job's first step
    is no progress: a compiler may take minutes in it.
    """

    def __init__(self, limit: TimeLimit, done: float, others: int, *, validates: bool) -> None:
        self.limit, self.done, self.validates = limit, done, validates
        self.part = (1 - done) / (1 - done + others) if done < 1 else 0.0
        self.share = done
        self.has_started = False
        self.longest_s = 0.0

    def start(self, writing_s: float) -> None:
        """After the first step and the `writing_s` that its state then took."""
        self.has_started = True
        self.began, limit = time.monotonic(), self.limit
        limit.end = min(limit.end, self.began - writing_s + limit.seconds)
        self.seconds = (limit.end - self.began) * self.part
        # The state, the page, and the model that is made of all.
        self.writing_s = 2 * writing_s
        if self._for_steps() <= 0:
            limit.end = self.began

    def tick(self, step_s: float) -> float:
        """After a step; returns the share of the schedule that is done."""
        self.longest_s = max(step_s, 0.9 * self.longest_s)
        whole = self._for_steps() - self.longest_s
        spent = time.monotonic() - self.began
        now = min(1.0, spent / whole) if whole > 0 else 1.0
        self.share = max(self.share, self.done + (1 - self.done) * now)
        return self.share

    def _for_steps(self) -> float:
        """Seconds of this job without those at its end."""
        validation = 0.0
        if self.validates:
            known = self.limit.validation_s
            validation = _UNMEASURED * self.seconds if known is None else known
        return self.seconds - self.writing_s - validation
