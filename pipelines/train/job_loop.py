"""One training job from its start to its end: steps, and between them states, scores, reports.

A job can be killed at any moment: what is due next is in the state that was saved before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from trinat.pipelines.train.clock import JobClock, TimeLimit
from trinat.pipelines.train.data import open_data
from trinat.pipelines.train.job import JobRun
from trinat.pipelines.train.log import Metrics
from trinat.pipelines.train.result import DONE
from trinat.pipelines.train.scores import TrainScores
from trinat.pipelines.train.start import first_network, resume
from trinat.segmentation.errors import DatasetError, InputError
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.training import state as states
from trinat.segmentation.training.loop import StepReport, Trainer
from trinat.segmentation.training.workers import Workers


def train_job(
    run: JobRun,
    why_stop: Callable[[], str],
    limit: TimeLimit | None = None,
    others: int = 0,
) -> str:
    """Train a job to its end, from its newest state on; returns what ended it.

    A limit of time is shared with `others`, the number of jobs that follow. Once `why_stop` has a
    reason the state is saved, and InterruptedRunError is raised.
    """
    stage = run.job.stage
    views = run.job.views
    workers = run.workers
    began = time.monotonic()
    if workers.leads:
        run.folder.mkdir(parents=True, exist_ok=True)
    data = open_data(run.recipe, stage, views, run.scheme, run.device, workers.count)
    with data as (source, scans):
        _refuse_other_data(workers, source.fingerprint)
        network = first_network(run)
        trainer = Trainer(
            run.recipe, stage, views, network, source, run.device, workers
        )
        identity = run.identity(source.fingerprint)
        metrics = None
        if workers.leads:
            resume(run, trainer, identity, by_time=limit is not None)
            step = trainer.counters.step
            metrics = Metrics(run.folder, step, events=run.recipe.events)
        _share_state(workers, trainer)
        scores = TrainScores(run, trainer, identity, scans, metrics, why_stop)
        opening_s = time.monotonic() - began
        return _JobLoop(run, scores, limit, others, opening_s).go()


def _refuse_other_data(workers: Workers, fingerprint: str) -> None:
    """Refuse machines that train together and do not have the same data."""
    if workers.share(lambda: fingerprint) != fingerprint:
        what = f"process {workers.rank} does not have the data that process 0 has"
        raise DatasetError(what, remedy="give all machines the same files")


def _share_state(workers: Workers, trainer: Trainer) -> None:
    """Start all processes from the leader's state: their disks may show each another file."""
    if workers.count == 1:
        return
    of_leader = workers.share(lambda: states.to_bytes(trainer.state({})))
    if not workers.leads:
        trainer.load(states.from_bytes(of_leader))


class _JobLoop:
    """The loop of a job, which took `opening_s` to open.

    `saved_at` is the step of the newest state. Without a limit of time there is no clock. All
    processes of a job go through the loop in the same way; what one alone knows, as that a signal
    came, is shared before it changes the way.
    """

    def __init__(
        self,
        run: JobRun,
        scores: TrainScores,
        limit: TimeLimit | None,
        others: int,
        opening_s: float,
    ) -> None:
        self.run = run
        self.scores = scores
        self.trainer = scores.trainer
        self.limit = limit
        self.opening_s = opening_s
        self.saved_at = self.trainer.counters.step
        self.clock: JobClock | None = None
        if limit is not None:
            validates = run.job.stage.validation is not None
            self.clock = JobClock(
                limit, self.trainer.progress, others, validates=validates
            )

    def go(self) -> str:
        """Train until the schedule or patience is at its end, and write that it is done.

        Returns what ended it.
        """
        trainer = self.trainer
        # A run that was killed after its patience had ended does not train further.
        over = self.scores.patience_is_over
        if trainer.counters.validation_due:
            over = self.scores.take()
        if self.clock is not None:
            trainer.counters.share = trainer.progress
        reported_not_compiled = False
        while trainer.progress < 1 and not over:
            report = self._step()
            if trainer.not_compiled and not reported_not_compiled:
                reported_not_compiled = True
                self.run.watcher.say(
                    f"trains without being compiled: {trainer.not_compiled}"
                )
            self._note(report)
            at_rest = self._save_or_stop(report)
            if at_rest:
                over = self._take_scores()
        if self.run.workers.leads:
            counters = json.dumps(asdict(trainer.counters))
            write_whole(self.run.folder / DONE, counters)
        if over and trainer.progress < 1:
            return "its patience"
        if self.limit is not None:
            return f"its {self.limit.seconds:g} seconds"
        return "its last step"

    def _step(self) -> StepReport:
        """One step; where its data cannot be read, the steps before are saved first."""
        try:
            return self.trainer.step()
        except (DatasetError, InputError):
            # The user can repair a file that cannot be read; the steps before are kept.
            has_unsaved = self.trainer.counters.step > self.saved_at
            if self.run.workers.leads and has_unsaved:
                self.scores.save()
            raise

    def _note(self, report: StepReport) -> None:
        """Bring the clock, the watcher and the metrics up to date with a step."""
        clock = self.clock
        workers = self.run.workers
        if clock is not None and clock.has_started:
            own_share = clock.tick(report.seconds)
            self.trainer.counters.share = workers.largest(own_share)
        self.run.watcher.step(self.run.job, report, self.trainer.progress)
        if self.scores.metrics is not None:
            self.scores.metrics.add(report, last=self.trainer.progress >= 1)
        if clock is not None and not clock.has_started:
            # The first page loads the library that draws, which no later one does: not timed.
            workers.share(self.run.write_page)
            began = time.monotonic()
            workers.share(self._save_with_page)
            writing_s = time.monotonic() - began
            if not clock.limit.has_validated:
                # Not timed either: how much is left for steps must be known from now on.
                clock.limit.validation_s = workers.share(self.scores.foresee)
            clock.start(writing_s, self.opening_s)

    def _save_with_page(self) -> None:
        """What is written between steps, to be timed."""
        self.scores.save()
        self.run.write_page()

    def _save_or_stop(self, report: StepReport) -> bool:
        """Save the state where it is due; returns whether an epoch or the job ends here.

        Raises InterruptedRunError where the run is to stop.
        """
        trainer = self.trainer
        workers = self.run.workers
        # All processes stop at the same step, or the others would wait for ever.
        stopped = workers.largest(float(bool(self.scores.why_stop()))) > 0
        at_rest = trainer.progress >= 1 or report.step % trainer.epoch_steps == 0
        trainer.counters.validation_due = at_rest and self.scores.are_due
        steps_unsaved = report.step - self.saved_at
        due = steps_unsaved >= self.run.job.stage.checkpoint_every_steps
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
            self.limit.note_validation(time.monotonic() - began)
        return over
