"""Weights scored between the epochs of a training, and what follows from their scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.train.log import Metrics, append_scores
from pipelines.train.page import write_examples
from pipelines.train.result import BEST
from segmentation.errors import InterruptedRunError
from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View
from segmentation.training.config import ValidationConfig
from segmentation.training.loop import Trainer
from segmentation.training.state import write_state
from segmentation.training.validation import Scan, Scores, validate
from segmentation.training.workers import Workers

__all__ = ["TrainScores", "interruption"]


@dataclass(frozen=True, eq=False)
class TrainScores:
    """Scores of one job's weights: the best are kept, and patience with them may end."""

    job: str
    config: ValidationConfig | None
    trainer: Trainer
    scans: Callable[[View], Iterator[Scan]]
    views: Sequence[View]
    scheme: LabelScheme
    channels: int  # slices that the networks look at
    folder: Path
    identity: dict[str, Any]
    metrics: Metrics | None  # the leader's
    say: Callable[[str], None]
    stop: Callable[[], bool]
    workers: Workers

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

    def take(self) -> bool:
        """Score the weights where that is due; True where patience is at its end."""
        if not self.trainer.counters.validation_due:
            return False
        # The state that was saved before says that this is due, until one after it is saved.
        self.trainer.counters.validation_due = False
        stopped, over = self.workers.share(self._take)
        if stopped:
            raise interruption(self.trainer, self.folder)
        return over

    def _take(self) -> tuple[bool, bool]:
        """Whether this was told to stop, and whether patience is at its end."""
        try:
            scores = {view: self._score(view) for view in self.views}
        except InterruptedRunError:
            return True, False
        counters = self.trainer.counters
        mean = float(np.mean([score.mean_dice for score in scores.values()]))
        for view, score in scores.items():
            scheme = self.scheme.seen_in(view)
            write_examples(self.folder, counters.step, view.value, score.examples, scheme)
        append_scores(self.folder, counters.step, scores, self.scheme)
        if self.metrics is not None:
            self.metrics.add_scores(scores, counters.step)
        self.say(f"{self.job}: step {counters.step}, Dice {mean:.3f}")
        # A mean of nothing is no number: it is neither the best nor to be beaten.
        if np.isfinite(mean) and (counters.best is None or mean > counters.best):
            counters.best, counters.best_step = mean, counters.step
            counters.validations_since_best = 0
            write_state(self.folder, self.trainer.state(self.identity), name=BEST)
        else:
            counters.validations_since_best += 1
        write_state(self.folder, self.trainer.state(self.identity))
        return False, self.tried_patience

    def _score(self, view: View) -> Scores:
        network = self.trainer.best_weights.extract(view).to(self.trainer.device)

        def heed(*_: object) -> None:
            if self.stop():
                raise interruption(self.trainer, self.folder)

        # A whole scan may take longer than a cluster waits: a few slices do not.
        network.register_forward_pre_hook(heed)
        return validate(
            network,
            self.scans(view),
            len(self.scheme.seen_in(view)),
            self.channels,
            self.trainer.device,
            bf16=self.trainer.bf16,
        )


def interruption(trainer: Trainer, folder: Path) -> InterruptedRunError:
    return InterruptedRunError(
        f"stopped at step {trainer.counters.step}; its state is saved",
        where=folder,
        remedy="the same command with --resume goes on",
    )
