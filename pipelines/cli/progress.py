"""What the commands say of subjects, downloads and trainings as they go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pipelines.common.progress import LINE_SECONDS, progress

if TYPE_CHECKING:
    from pipelines.train.job import Job, Watcher
    from segmentation.training.loop import StepReport

_MINUTE = 60.0


class OfSubject(Protocol):
    """The outcome of one subject, whatever was done with it."""

    @property
    def subject(self) -> str: ...

    @property
    def failure(self) -> str: ...


@contextmanager
def batch_progress(quiet: bool) -> Iterator[Callable[[OfSubject, int, int], None]]:
    """Subjects done, of how many, and how many of them failed."""
    failed = 0
    with progress(quiet) as shown:

        def finished(outcome: OfSubject, done: int, total: int) -> None:
            nonlocal failed
            failed += bool(outcome.failure)
            shown.show(f"{done}/{total} {outcome.subject}", done, total, failed=failed)

        yield finished


@contextmanager
def byte_progress(name: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Bytes of a download."""
    with progress(quiet) as shown:

        def fetched(done: int, total: int | None) -> None:
            if done != total:  # The command itself says that it has all.
                shown.show(f"{name} {done / 1e9:.2f} GB", done, total, every_s=_MINUTE)

        yield fetched


@contextmanager
def training_progress(
    quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """A watcher that shows epoch, loss, rate and slices a second: every epoch, every minute."""
    from pipelines.train.job import Watcher

    current: Job | None = None
    epoch = skipped = 0
    with progress(quiet, clock=clock) as shown:

        def step(job: Job, report: StepReport, done: float) -> None:
            nonlocal current, epoch, skipped
            if current is not job:
                current, epoch, skipped = job, report.epoch, 0
                shown.begin(done)
            skipped += not math.isfinite(report.loss)
            bad = f", steps skipped: {skipped}" if skipped else ""
            told = shown.show(
                f"{job.name} epoch {report.epoch} step {report.step} loss {report.loss:.3f} "
                f"rate {report.rate:.2g} {report.slices / report.seconds:.1f} slices/s "
                f"{done:.0%}{bad}",
                done,
                1.0,
                every_s=LINE_SECONDS if report.epoch > epoch else _MINUTE,
            )
            epoch = report.epoch if told else epoch

        yield Watcher(say=shown.say, step=step)
