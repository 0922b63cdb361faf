"""A job's weights scored on the scans that validate it; the best are kept, and patience may end.

Scores are mean Dice and IoU over structures, of whole scans, a view at a time. They decide which
state becomes the model; with `patience` they also end a stage that no longer gains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trinat.pipelines.train.data import ScansOf
from trinat.pipelines.train.job import JobRun
from trinat.pipelines.train.log import Metrics, append_scores
from trinat.pipelines.train.pages import write_examples
from trinat.pipelines.train.result import BEST
from trinat.segmentation import timing
from trinat.segmentation.errors import InterruptedRunError
from trinat.segmentation.space.views import View
from trinat.segmentation.training import state as states
from trinat.segmentation.training.config import ValidationConfig
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.validation import Scores, foresee, validate

# Why a run stops where this process knows no reason.
IN_ANOTHER_PROCESS = "another process of it has to"


@dataclass(frozen=True, eq=False)
class TrainScores:
    """Scores of a job's weights, and the states that are written with them.

    `metrics` is the leader's; the other processes have none. `why_stop` says why the run is to
    stop now, and nothing where it is not.
    """

    run: JobRun
    trainer: Trainer
    identity: dict[str, Any]
    scans: ScansOf
    metrics: Metrics | None
    why_stop: Callable[[], str]

    @property
    def config(self) -> ValidationConfig | None:
        """How the stage validates; None where it does not."""
        return self.run.job.stage.validation

    @timing.stage("save")
    def save(self, name: str | None = None) -> None:
        """Write the state to the job's folder: as the newest one, or under a name."""
        state = self.trainer.state(self.identity)
        states.write_state(self.run.folder, state, name=name)

    def interruption(self) -> InterruptedRunError:
        """The error that ends a run which was stopped and can be resumed."""
        why = self.why_stop() or IN_ANOTHER_PROCESS
        step = self.trainer.counters.step
        what = f"stopped at step {step}: {why}; its state is saved"
        remedy = "the same command with --resume goes on"
        return InterruptedRunError(what, where=self.run.folder, remedy=remedy)

    @property
    def are_due(self) -> bool:
        """Whether the recipe has the weights scored at the end of this epoch, or of the job.

        Every n-th epoch, as it says, and always at the end; never where it does not validate.
        """
        if self.config is None:
            return False
        trainer = self.trainer
        if trainer.progress >= 1:
            return True
        epoch = trainer.counters.step // trainer.epoch_steps
        return epoch % self.config.every_epochs == 0

    @property
    def patience_is_over(self) -> bool:
        """Whether too many scores have been taken since the best."""
        if self.config is None or self.config.patience is None:
            return False
        return self.trainer.counters.validations_since_best >= self.config.patience

    @timing.stage("validation")
    def take(self) -> bool:
        """Between epochs: score the weights if that is due, and write the page.

        Returns whether patience is at its end. Raises InterruptedRunError where a signal has
        stopped the scoring.
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

    def foresee(self) -> float:
        """Seconds that scoring all views will take, about; 0 where the stage does not validate."""
        if self.config is None:
            return 0.0
        trainer = self.trainer
        of_views = []
        for view in self.run.job.views:
            seconds = foresee(
                trainer.best_weights.extract(view).to(trainer.device),
                self.scans(view),
                self.run.recipe.network.channels,
                trainer.device,
                bf16=trainer.bf16,
            )
            of_views.append(seconds)
        return sum(of_views)

    def _take(self) -> tuple[bool, bool]:
        """Score and save; whether a signal stopped it, and whether patience is at its end."""
        try:
            scores = {view: self._score(view) for view in self.run.job.views}
        except InterruptedRunError:
            return True, False
        self._write(scores)
        counters = self.trainer.counters
        means = [score.mean_dice for score in scores.values()]
        mean = float(np.mean(means))
        self.run.watcher.say(
            f"{self.run.job.name}: step {counters.step}, Dice {mean:.3f}"
        )
        # The mean of no values is NaN: it is never the best.
        is_better = counters.best is None or mean > counters.best
        if is_better and np.isfinite(mean):
            counters.best = mean
            counters.best_step = counters.step
            counters.validations_since_best = 0
            self.save(BEST)
        else:
            counters.validations_since_best += 1
        self.save()
        return False, self.patience_is_over

    def _write(self, scores: Mapping[View, Scores]) -> None:
        """The pictures of examples, validations.csv, and the curves of events."""
        folder = self.run.folder
        step = self.trainer.counters.step
        for view, score in scores.items():
            scheme = self.run.scheme.seen_in(view)
            write_examples(folder, step, view.value, score.examples, scheme)
        append_scores(folder, step, scores, self.run.scheme)
        if self.metrics is not None:
            self.metrics.add_scores(scores, step)

    def _score(self, view: View) -> Scores:
        """Scores of one view, by the averaged weights where there are such.

        InterruptedRunError where the run is to stop.
        """
        network = self.trainer.best_weights.extract(view)
        network = network.to(self.trainer.device)

        def check_for_stop(*_: object) -> None:
            if self.why_stop():
                raise self.interruption()

        # A whole scan may take longer than a cluster waits: a few slices do not.
        network.register_forward_pre_hook(check_for_stop)
        return validate(
            network,
            self.scans(view),
            len(self.run.scheme.seen_in(view)),
            self.run.recipe.network.channels,
            self.trainer.device,
            bf16=self.trainer.bf16,
        )
