"""What a run came to, as counts: for its last line, and for the exit status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.segmentation.timing import Spent, together


@dataclass(frozen=True)
class Outcome:
    """N in = done + skipped + failed, apart from those not begun when the run was stopped.

    - `kept` counts those of the skipped whose result was changed since it was written.
    - `is_part`: the run was a part of the work, and `trinat merge` joins it with the others.
    - `grades` counts the done by grade.
    - `spent` is the time of the workers by stage, where the request has `timings`.
    """

    done: int
    skipped: int
    failed: int
    interrupted: bool
    kept: int = 0
    is_part: bool = False
    grades: Mapping[str, int] = field(default_factory=dict)
    spent: Spent = field(default_factory=dict)

    @property
    def exit(self) -> Exit:
        """The exit status of a command that ends with this outcome."""
        if self.interrupted:
            return Exit.INTERRUPTED
        return batch_exit(done=self.done + self.skipped, failed=self.failed)


def sum_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of several runs that were done one after another, until one was interrupted.

    Counts and times are added. No outcomes give one of zeros.
    """
    grades: Counter[str] = Counter()
    for outcome in outcomes:
        grades.update(outcome.grades)
    return Outcome(
        sum(outcome.done for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        interrupted=any(outcome.interrupted for outcome in outcomes),
        kept=sum(outcome.kept for outcome in outcomes),
        is_part=any(outcome.is_part for outcome in outcomes),
        grades=grades,
        spent=together(outcome.spent for outcome in outcomes),
    )
