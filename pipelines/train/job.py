"""One job of a training run at work in its folder: it can be resumed from any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinat.pipelines.train.clock import JobClock, TimeLimit
from trinat.pipelines.train.data import ScansOf, open_data
from trinat.pipelines.train.log import (
    Metrics,
    append_scores,
    write_examples,
    write_page,
)
from trinat.pipelines.train.result import BEST, DONE, first_weights, pseudo_labels
from trinat.segmentation import timing
from trinat.segmentation.errors import (
    DatasetError,
    InputError,
    InterruptedRunError,
    TrainingError,
)
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View
from trinat.segmentation.training import state as states
from trinat.segmentation.training.config import Recipe, StageConfig, ValidationConfig
from trinat.segmentation.training.loop import StepReport, Trainer
from trinat.segmentation.training.network import ViewsNet, copy_matching
from trinat.segmentation.training.validation import Scores, validate
from trinat.segmentation.training.workers import Workers


@dataclass(frozen=True)
class Job:
    """One training: a stage for one view, or for several together."""

    stage: StageConfig
    views: tuple[View, ...]

    @property
    def name(self) -> str:
        """Its folder in the run: <stage>/<view>, or all views joined by hyphens."""
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

    def go(
        self, stop: Callable[[], bool], limit: TimeLimit | None = None, others: int = 0
    ) -> None:
        """Train to the end; within a limit of time, which `others` are to share."""
        job = self.job
        workers = self.workers
        if workers.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
        data = open_data(
            self.recipe, job.stage, job.views, self.scheme, self.device, workers.count
        )
        with data as (source, scans):
            # Machines that train together must have the same data.
            if workers.share(lambda: source.fingerprint) != source.fingerprint:
                what = (
                    f"process {workers.rank} does not have the data that process 0 has"
                )
                raise DatasetError(what, remedy="give all machines the same files")
            network = self._start()
            trainer = Trainer(
                self.recipe, job.stage, job.views, network, source, self.device, workers
            )
            identity = self._identity(source.fingerprint)
            metrics = None
            if workers.leads:
                self._resume(trainer, identity, by_time=limit is not None)
                metrics = Metrics(
                    self.folder, trainer.counters.step, events=self.recipe.events
                )
            if workers.count > 1:
                # All processes start from the leader's state: disks may show each another file.
                alike = workers.share(lambda: states.to_bytes(trainer.state({})))
                if not workers.leads:
                    trainer.load(states.from_bytes(alike))
            scores = TrainScores(self, trainer, identity, scans, metrics, stop)
            _Training(self, scores, limit, others).go()

    def _identity(self, data: str) -> dict[str, Any]:
        """What must be the same for a run to be resumed; `data` is the data's fingerprint."""
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
        """run.html and progress.png of the job, as it stands."""
        title = self.job.name
        labels_of_models = pseudo_labels(self.recipe, self.out)
        if labels_of_models:
            title = f"{title}, {labels_of_models}"
        write_page(self.folder, title, self.scheme)

    def _resume(
        self, trainer: Trainer, identity: dict[str, Any], *, by_time: bool
    ) -> None:
        state, problems = states.read_latest(self.folder)
        instead = "the state before it is used"
        if state is None:
            instead = "no sound one is left, the job starts again"
        for problem in problems:
            self.watcher.say(f"{problem}: {instead}")
        if state is None:
            return
        states.check_identity(state.identity, identity, self.folder)
        if (
            not by_time
            and state.counters.share is not None
            and state.counters.share < 1
        ):
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
        if self.workers.leads:  # The others get theirs from the leader.
            for view in self.job.views:
                self._give_first_weights(network, view)
        return network

    def _give_first_weights(self, network: ViewsNet, view: View) -> None:
        """Copy what the stage before, or a model, has for a view; the rest stays random."""
        first = first_weights(
            self.recipe, self.job.stage, view, self.out, self.watcher.say
        )
        if first is None:
            return
        source, theirs = first
        ours = self.scheme.seen_in(view)
        kept, random = copy_matching(network, view, source, theirs, ours)
        if self.job.stage.start is None:
            return
        said = (
            f"{self.job.name}: {view.value} starts with the model's weights for "
            f"{kept} of {len(ours)} classes"
        )
        if random:
            said += f"; random weights: {', '.join(random)}"
        self.watcher.say(said)


class _Training:
    """A job's loop: steps, and between them states, scores and reports."""

    def __init__(
        self, run: JobRun, scores: TrainScores, limit: TimeLimit | None, others: int
    ) -> None:
        self.run = run
        self.scores = scores
        self.trainer = scores.trainer
        self.limit = limit
        self.saved_at = self.trainer.counters.step
        self.clock: JobClock | None = None
        if limit is not None:
            validates = run.job.stage.validation is not None
            self.clock = JobClock(
                limit, self.trainer.progress, others, validates=validates
            )

    def go(self) -> None:
        """Train until the schedule or patience is at its end, and write that it is done."""
        trainer = self.trainer
        # A run that was killed after its patience had ended does not train further.
        over = self.scores.tried_patience
        if trainer.counters.validation_due:
            over = self.scores.take()
        if self.clock is not None:
            trainer.counters.share = trainer.progress
        says_not_compiled = True
        while trainer.progress < 1 and not over:
            report = self._step()
            if trainer.not_compiled and says_not_compiled:
                says_not_compiled = False
                self.run.watcher.say(
                    f"trains without being compiled: {trainer.not_compiled}"
                )
            self._note(report)
            at_rest = self._save_or_stop(report)
            if at_rest:
                over = self._take_scores()
        if self.run.workers.leads:
            write_whole(self.run.folder / DONE, json.dumps(asdict(trainer.counters)))

    def _step(self) -> StepReport:
        try:
            return self.trainer.step()
        except (DatasetError, InputError):
            # The user can repair a file that cannot be read; the steps before are kept.
            if self.run.workers.leads and self.trainer.counters.step > self.saved_at:
                self.scores.save()
            raise

    def _note(self, report: StepReport) -> None:
        """Bring the clock, the watcher and the metrics up to date with a step."""
        clock = self.clock
        workers = self.run.workers
        if clock is not None and clock.has_started:
            self.trainer.counters.share = workers.largest(clock.tick(report.seconds))
        self.run.watcher.step(self.run.job, report, self.trainer.progress)
        if self.scores.metrics is not None:
            self.scores.metrics.add(report, last=self.trainer.progress >= 1)
        if clock is not None and not clock.has_started:
            began = time.monotonic()
            workers.share(self._save_with_page)
            clock.start(time.monotonic() - began)

    def _save_with_page(self) -> None:
        self.scores.save()
        self.run.write_page()

    def _save_or_stop(self, report: StepReport) -> bool:
        """Save the state where it is due; returns whether an epoch or the job ends here.

        Raises InterruptedRunError where the run is to stop.
        """
        trainer = self.trainer
        workers = self.run.workers
        # All processes stop at the same step, or the others would wait for ever.
        stopped = workers.largest(float(self.scores.stop())) > 0
        at_rest = trainer.progress >= 1 or report.step % trainer.epoch_steps == 0
        trainer.counters.validation_due = at_rest and self.scores.are_due
        due = report.step - self.saved_at >= self.run.job.stage.checkpoint_every_steps
        if workers.leads and (due or at_rest or stopped):
            # Before validation, which takes minutes: a run killed in it loses no step.
            self.scores.save()
            self.saved_at = report.step
        if stopped and (trainer.progress < 1 or trainer.counters.validation_due):
            # A process that ends may end the others: not before the state is written.
            workers.share(lambda: None)
            raise self.scores.interruption()
        return at_rest

    def _take_scores(self) -> bool:
        """Score the weights if that is due, and time it; returns whether patience is at its end."""
        began = time.monotonic()
        validated = self.trainer.counters.validation_due
        over = self.scores.take()
        if self.limit is not None and validated:
            longest = self.limit.validation_s or 0
            self.limit.validation_s = max(longest, time.monotonic() - began)
        return over


@dataclass(frozen=True, eq=False)
class TrainScores:
    """Scores of a job's weights: the state with the best is kept, and patience may end."""

    run: JobRun
    trainer: Trainer
    identity: dict[str, Any]
    scans: ScansOf
    metrics: Metrics | None  # the leader's
    stop: Callable[[], bool]

    @property
    def config(self) -> ValidationConfig | None:
        """How the stage validates; None where it does not."""
        return self.run.job.stage.validation

    @timing.stage("save")
    def save(self, name: str | None = None) -> None:
        """Write the state to the job's folder: as the newest one, or under a name."""
        states.write_state(
            self.run.folder, self.trainer.state(self.identity), name=name
        )

    def interruption(self) -> InterruptedRunError:
        """The error that ends a run which was stopped and can be resumed."""
        what = f"stopped at step {self.trainer.counters.step}; its state is saved"
        remedy = "the same command with --resume goes on"
        return InterruptedRunError(what, where=self.run.folder, remedy=remedy)

    @property
    def are_due(self) -> bool:
        """Whether the recipe has the weights scored at the end of this epoch, or of the job."""
        trainer = self.trainer
        epoch = trainer.counters.step // trainer.epoch_steps
        if self.config is None:
            return False
        return trainer.progress >= 1 or epoch % self.config.every_epochs == 0

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
        stopped = False
        over = False
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
            write_examples(
                self.run.folder, counters.step, view.value, score.examples, scheme
            )
        append_scores(self.run.folder, counters.step, scores, self.run.scheme)
        if self.metrics is not None:
            self.metrics.add_scores(scores, counters.step)
        self.run.watcher.say(
            f"{self.run.job.name}: step {counters.step}, Dice {mean:.3f}"
        )
        # The mean of no values is NaN: it is never the best.
        if np.isfinite(mean) and (counters.best is None or mean > counters.best):
            counters.best = mean
            counters.best_step = counters.step
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
        return validate(
            network,
            self.scans(view),
            len(self.run.scheme.seen_in(view)),
            self.run.recipe.network.channels,
            self.trainer.device,
            bf16=self.trainer.bf16,
        )
