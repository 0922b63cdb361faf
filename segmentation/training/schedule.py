"""The rate of learning as a pure function of where a stage stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from segmentation.training.config import ScheduleConfig

__all__ = ["Position", "learning_rate", "progress"]


# Of a stage trained by time: its warm-up ends here, if its steps have not ended it before.
_WARM_SHARE = 0.05


@dataclass(frozen=True)
class Position:
    """Where a stage stands: steps made, steps to an epoch; trained by time, the share done."""

    step: int
    epoch_steps: int
    share: float | None = None

    @property
    def epoch(self) -> int:
        return self.step // self.epoch_steps


def progress(schedule: ScheduleConfig, at: Position) -> float:
    """0 at the start, 1 when the stage is over."""
    if at.share is not None:
        return at.share
    if schedule.steps is not None:
        return min(1.0, at.step / schedule.steps)
    assert schedule.epochs is not None
    return min(1.0, at.step / (schedule.epochs * at.epoch_steps))


def learning_rate(schedule: ScheduleConfig, rate: float, at: Position) -> float:
    """The rate of the step to come, `rate` being the highest."""
    warm = min(1.0, (at.step + 1) / (schedule.warmup_steps + 1))
    if at.share is not None:
        # A slow device would spend its time on warming up.
        warm = max(warm, min(1.0, at.share / _WARM_SHARE))
    if schedule.kind == "cosine":
        return rate * warm * 0.5 * (1 + math.cos(math.pi * progress(schedule, at)))
    if schedule.kind == "steps":
        # Once per epoch, not per batch: a drop every ten batches would freeze the run at once.
        return rate * warm * schedule.factor ** (at.epoch // schedule.every_epochs)
    return rate * warm
