"""Training job: one stage of a recipe for one view, from its first step to its last.

Between steps, checkpoints (states) are saved, whole scans are scored for validation, and the report
page run.html is written. A job can be killed at any moment: the checkpoint says what is due next.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trinat.pipelines.train.clock import TrainingClock
from trinat.pipelines.train.data import Scans, open_data
from trinat.pipelines.train.log import Metrics, append_scores, open_events
from trinat.pipelines.train.pages import write_page
from trinat.pipelines.train.provenance import recorded
from trinat.pipelines.train.result import BEST, DONE, Job, first_weights, pseudo_labels
from trinat.segmentation import timing
from trinat.segmentation.errors import (
    DatasetError,
    InputError,
    InterruptedRunError,
    TrainingError,
)
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.zoo import find_model, licence_notice
from trinat.segmentation.training import state as states
from trinat.segmentation.training.config import Recipe
from trinat.segmentation.training.loop import StepReport, Trainer
from trinat.segmentation.training.network import (
    copy_matching,
    copy_network,
    new_network,
)
from trinat.segmentation.training.validation import Scores, foresee, validate

_log = logging.getLogger(__name__)


@dataclass
class Watcher:
    """Callbacks invoked during a run; all default to no-ops.

    `step(job, report, progress)` is called after each step, with the completed part of the job from
    0 to 1. `score(job, step, dice)` is called after each validation, with the number of the step
    and the mean Dice over structures and scans.
    """

    step: Callable[[Job, StepReport, float], None] = lambda job, report, progress: None
    score: Callable[[Job, int, float], None] = lambda job, step, dice: None


@dataclass(frozen=True, eq=False)
class JobRun:
    """A job with everything that is needed to train it.

    `recipe` is the recipe of the whole run, and `out` its folder. `watcher` has the callbacks.
    """

    recipe: Recipe
    job: Job
    out: Path
    watcher: Watcher
    device: torch.device

    @property
    def folder(self) -> Path:
        """Folder for all files of the job."""
        return self.out / self.job.name

    @cached_property
    def scheme(self) -> LabelScheme:
        """Label scheme of the recipe, with the classes of all views."""
        return load_scheme(self.recipe.scheme)

    def identity(self, data: str) -> dict[str, Any]:
        """Return the settings that must be unchanged when the job is resumed.

        They are those of stage, network, label scheme, seed and view, and are saved in each
        checkpoint. `data` is the fingerprint of the training data.
        """
        return {
            "stage": self.job.stage.model_dump(mode="json"),
            "network": self.recipe.network.model_dump(mode="json"),
            "scheme": self.recipe.scheme,
            "seed": self.recipe.seed,
            "view": self.job.view.value,
            "data": data,
        }

    def write_page(self) -> None:
        """Write run.html, the report page of the job, with its curves so far."""
        title = self.job.name
        labels_of_models = pseudo_labels(self.recipe, self.out)
        if labels_of_models:
            title = f"{title}, {labels_of_models}"
        write_page(self.folder, title, self.scheme)


def train_job(
    run: JobRun,
    why_stop: Callable[[], str],
    clock: TrainingClock | None = None,
    others: int = 0,
) -> str:
    """Train a job to its end, from its newest checkpoint if it has one; return why it ended.

    The reason is a text such as "its last step", for the log. `why_stop` is called after each step:
    it returns the reason to stop now (a signal, or the end of the time limit), or "" to continue.
    When it returns a reason, a checkpoint is saved and InterruptedRunError is raised. `clock` is
    the time limit of the whole call; None if there is none. `others` is the number of jobs that
    follow, which share its time.
    """
    stage = run.job.stage
    view = run.job.view
    opening = time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    # A job that is finished is opened only to find that out; it gets no new records.
    begins = not run.job.is_done(run.out)
    with ExitStack() as opened:
        data = open_data(run.recipe, stage, view, run.scheme, run.device)
        source, scans = opened.enter_context(data)
        network = _first_network(run)
        trainer = Trainer(run.recipe, stage, network, source, run.device)
        identity = run.identity(source.fingerprint)
        _resume(run, trainer, identity, by_time=clock is not None)
        step = trainer.counters.step
        events = None
        if begins and run.recipe.tensorboard:
            events = opened.enter_context(open_events(run.folder, step))
        metrics = Metrics(run.folder, step, events)
        if clock is not None:
            validates = stage.validation is not None
            clock.begin_job(trainer.progress, others, validates=validates)
        at_work = _JobAtWork(
            run,
            trainer,
            identity,
            scans,
            metrics,
            why_stop,
            clock,
            opening_s=time.monotonic() - opening,
            saved_at=step,
        )
        if begins:
            start = run.recipe.start_of(stage, view)
            opened.enter_context(recorded(run.folder, stage, start, run.device))
        return at_work.go()


def _first_network(run: JobRun) -> Network:
    """Build the network of the job with its initial weights.

    The weights are those of the stage before, of a model, or random by the recipe's seed. Classes
    that the stage before or the model does not have also get random weights.
    """
    torch.manual_seed(run.recipe.seed)
    stage = run.job.stage
    view = run.job.view
    scheme = run.scheme.seen_in(view)
    network = new_network(run.recipe.network, len(scheme))
    first = first_weights(run.recipe, stage, view, run.out)
    if first is None:
        return network
    source, source_scheme = first
    kept, random = copy_matching(network, source, source_scheme, scheme)
    start = run.recipe.start_of(stage, view)
    if start is None:
        return network
    line = (
        f"{run.job.name}: {view.value} starts with the model's weights for "
        f"{kept} of {len(scheme)} classes"
    )
    if random:
        line += f"; random weights: {', '.join(random)}"
    _log.info(line)
    if notice := licence_notice(find_model(start)):
        _log.info(notice)
    return network


def _resume(
    run: JobRun,
    trainer: Trainer,
    identity: dict[str, Any],
    *,
    by_time: bool,
) -> None:
    """Load the newest undamaged checkpoint in the job's folder into the trainer, if there is one.

    `identity` has the settings that must be as in the checkpoint. `by_time` is True if the rest is
    trained within a time limit instead of the recipe's steps. Raises TrainingError if settings
    differ, or if the checkpoint was trained by time and the rest is not.
    """
    state, problems = states.read_latest(run.folder)
    instead = "the state before it is used"
    if state is None:
        instead = "no sound one is left, the job starts again"
    for problem in problems:
        _log.warning("%s: %s", problem, instead)
    if state is None:
        return
    states.check_identity(state.identity, identity, run.folder)
    share = state.counters.share
    if not by_time and share is not None and share < 1:
        what = f"{share:.0%} of its schedule are done, by time and not by steps"
        remedy = "--resume --seconds N does the rest in N seconds"
        raise TrainingError(what, where=run.folder, remedy=remedy)
    trainer.load(state)
    _log.info("%s: continues at step %d", run.job.name, state.counters.step)


@dataclass(eq=False)
class _JobAtWork:
    """Training loop of a job: its steps, with the checkpoints, validations and pages between them.

    `scans` returns the validation scans. `metrics` writes metrics.csv. `why_stop` returns the
    reason to stop the run now, or "". `clock` is None without a time limit. `opening_s` is the time
    that opening the job took, in seconds, and `saved_at` the step of its newest checkpoint.
    `identity` has the settings that must be unchanged when the job is resumed.

    A validation computes the mean Dice and IoU over structures of whole scans. They decide which
    checkpoint becomes the model. With `patience`, they also end a stage that no longer improves.
    """

    run: JobRun
    trainer: Trainer
    identity: dict[str, Any]
    scans: Scans
    metrics: Metrics
    why_stop: Callable[[], str]
    clock: TrainingClock | None
    opening_s: float
    saved_at: int

    def go(self) -> str:
        """Train until the schedule is complete or scores stop improving; return why the job ended.

        The reason is "its last step", "its patience", or the time limit, for the log. The job is
        marked as finished with the file done.json.
        """
        trainer = self.trainer
        if trainer.counters.validation_due:
            self._validate_if_due()
        if self.clock is not None:
            trainer.counters.share = trainer.progress
        # A run that was killed when its scores no longer improved does not train further, either.
        while trainer.progress < 1 and not self._patience_is_over:
            try:
                report = trainer.step()
            except (DatasetError, InputError):
                # The user can repair a file that cannot be read; the steps before are kept.
                if trainer.counters.step > self.saved_at:
                    self._save()
                raise
            if trainer.not_compiled:
                _log.warning("training without torch.compile: %s", trainer.not_compiled)
                trainer.not_compiled = ""
            self._report_step(report)
            at_rest = self._save_or_stop(report)
            if at_rest:
                began = time.monotonic()
                validated = trainer.counters.validation_due
                self._validate_if_due()
                if self.clock is not None and validated:
                    self.clock.note_validation(time.monotonic() - began)
        counters = json.dumps(asdict(trainer.counters))
        write_whole(self.run.folder / DONE, counters)
        if trainer.progress < 1:
            return "its patience"
        if self.clock is not None:
            return f"its {self.clock.seconds:g} seconds"
        return "its last step"

    def _report_step(self, report: StepReport) -> None:
        """Report a step to the clock, to the callbacks of the watcher, and to metrics.csv.

        After the first step, the first checkpoint and the first page are written, and the clock is
        started.
        """
        clock = self.clock
        if clock is not None and clock.has_started:
            self.trainer.counters.share = clock.tick(report.seconds)
        self.run.watcher.step(self.run.job, report, self.trainer.progress)
        self.metrics.add(report, last=self.trainer.progress >= 1)
        if clock is not None and not clock.has_started:
            # The first report page is not timed, because it loads the drawing library.
            self.run.write_page()
            began = time.monotonic()
            self._save()
            self.run.write_page()
            writing_s = time.monotonic() - began
            if not clock.has_validated:
                # Not timed either, but estimated now, because the time that is left for steps
                # depends on it.
                clock.validation_s = self._estimate_validation_s()
            clock.start(writing_s, self.opening_s)

    def _save_or_stop(self, report: StepReport) -> bool:
        """Save a checkpoint if one is due; return True if an epoch or the job ends with this step.

        Raises InterruptedRunError if the run is to stop.
        """
        trainer = self.trainer
        why = self.why_stop()
        is_at_end = trainer.progress >= 1
        at_rest = is_at_end or report.step % trainer.epoch_steps == 0
        validation = self.run.job.stage.validation
        if validation is None:
            scores_are_due = False
        else:
            # Every n-th epoch, and always at the end.
            epoch = trainer.counters.step // trainer.epoch_steps
            scores_are_due = is_at_end or epoch % validation.every_epochs == 0
        trainer.counters.validation_due = at_rest and scores_are_due
        steps_unsaved = report.step - self.saved_at
        due = steps_unsaved >= self.run.job.stage.checkpoint_every_steps
        if due or at_rest or why:
            # Before validation, which takes minutes: a run killed in it loses no step.
            self._save()
            self.saved_at = report.step
        if why and (trainer.progress < 1 or trainer.counters.validation_due):
            raise self._interruption(why)
        return at_rest

    @timing.stage("save")
    def _save(self, name: str | None = None) -> None:
        """Write a checkpoint to the job's folder: as the newest one, or in a file called `name`."""
        state = self.trainer.state(self.identity)
        states.write_state(self.run.folder, state, name=name)

    def _interruption(self, why: str) -> InterruptedRunError:
        """Return the error to raise when the run stops before the job is complete."""
        step = self.trainer.counters.step
        what = f"stopped at step {step}: {why}; its state is saved"
        remedy = "run the same command with --resume to continue"
        return InterruptedRunError(what, where=self.run.folder, remedy=remedy)

    @property
    def _patience_is_over(self) -> bool:
        """True if the scores have not improved in the last `patience` validations."""
        validation = self.run.job.stage.validation
        if validation is None or validation.patience is None:
            return False
        return self.trainer.counters.validations_since_best >= validation.patience

    @timing.stage("validation")
    def _validate_if_due(self) -> None:
        """Score the validation scans if that is due, and write the report page.

        Raises InterruptedRunError if a signal stops the validation.
        """
        if self.trainer.counters.validation_due:
            # The checkpoint on disk still says that a validation is due; the one that is saved
            # after the validation replaces it.
            self.trainer.counters.validation_due = False
            self._validate_and_save()
        self.run.write_page()

    def _validate_and_save(self) -> None:
        """Score the validation scans; save a checkpoint, also as the best if it is.

        Raises InterruptedRunError if the run is to stop.
        """
        run = self.run
        counters = self.trainer.counters
        scores = self._validate()
        append_scores(run.folder, counters.step, run.job.view, scores, run.scheme)
        self.metrics.add_scores(run.job.view, scores, counters.step)
        mean = float(scores.mean_dice)
        _log.info("%s: step %d, Dice %.3f", run.job.name, counters.step, mean)

        # The mean of no values is NaN: it is never the best.
        is_better = counters.best is None or mean > counters.best
        if is_better and np.isfinite(mean):
            counters.best = mean
            counters.best_step = counters.step
            counters.validations_since_best = 0
            self._save(BEST)
        else:
            counters.validations_since_best += 1
        self._save()
        run.watcher.score(run.job, counters.step, mean)

    def _validate(self) -> Scores:
        """Return the Dice and IoU on the validation scans.

        The weights are the moving average over steps if the stage has one. Raises
        InterruptedRunError if the run is to stop.
        """
        network = copy_network(self.trainer.best_weights).to(self.trainer.device)

        def check_for_stop(*_: object) -> None:
            if why := self.why_stop():
                raise self._interruption(why)

        # Stops are checked for each batch: a whole scan may take longer than a cluster waits.
        network.register_forward_pre_hook(check_for_stop)
        trainer = self.trainer
        return validate(network, self.scans(), trainer.device, trainer.precision)

    def _estimate_validation_s(self) -> float:
        """Return an estimate of how long a validation takes, in seconds.

        0 if the stage does not validate.
        """
        if self.run.job.stage.validation is None:
            return 0.0
        trainer = self.trainer
        network = copy_network(trainer.best_weights).to(trainer.device)
        return foresee(network, self.scans(), trainer.device, trainer.precision)
