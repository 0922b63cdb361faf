"""Training within a time limit: the time of a call, and the part of it that each job gets.

A stage that is trained by time has no fixed number of steps. The completed part of its schedule,
from 0 to 1, is the part of its time that has passed. Learning rate and progress follow this part.
"""

from __future__ import annotations

import math
import time


class TrainingClock:
    """Time limit of one call of `trinat train`, in seconds of wall-clock time.

    The time counts from the end of the call's first step and its first report page (run.html). The
    time that the following jobs need to start is set aside. The rest is divided among the jobs that
    are not finished, in proportion to the part of its schedule that each still has to do. The first
    step of a job does not count, because a compiler may take minutes in it.

    `validation_s` is the expected duration of a validation, including what is written after it: an
    estimate before the first one, then the longest so far. `has_validated` is True after the first
    validation. `share` is the completed part of the present job's schedule, from 0 to 1.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.validation_s = 0.0
        self.has_validated = False
        # On the clock of time.monotonic; unknown before the first step.
        self._end = math.inf
        self._too_few = ""

    @property
    def why_over(self) -> str:
        """Reason to stop the training now, such as the time limit; "" to continue."""
        if time.monotonic() < self._end:
            return ""
        if self._too_few:
            return f"{self.seconds:g} seconds are too few: {self._too_few}"
        return f"the time limit of {self.seconds:g} seconds is over"

    def note_validation(self, seconds: float) -> None:
        """Record how long a validation took, in seconds; the longest duration is kept."""
        if self.has_validated:
            seconds = max(self.validation_s, seconds)
        self.validation_s = seconds
        self.has_validated = True

    def begin_job(self, done: float, others: int, *, validates: bool) -> None:
        """Prepare the clock for a job; its time starts with `start`, after the first step.

        `done` is the part of its schedule that earlier calls completed, from 0 to 1. `others` is
        the number of jobs that follow. `validates` is True if the job validates.
        """
        self.share = done
        self.has_started = False
        self._done = done
        self._others = others
        self._validates = validates
        self._longest_s = 0.0

    def start(self, writing_s: float, opening_s: float = 0.0) -> None:
        """Start the time of a job, after its first step and after its first checkpoint was saved.

        `writing_s` is the time that saving took, and `opening_s` the time before the first step;
        each following job is expected to take as long. The first job also sets the end of the whole
        time limit. If less time is left than the job needs after its last step, the limit counts as
        reached.
        """
        self.has_started = True
        self._began = time.monotonic()
        self._end = min(self._end, self._began - writing_s + self.seconds)
        starting_s = self._others * (opening_s + writing_s)
        left_s = max(0.0, self._end - self._began - starting_s)
        left = 1 - self._done
        self._job_s = left_s * left / (left + self._others) if left else 0.0
        # Time to write the last checkpoint and page of the job, and the model of the run.
        self._writing_s = 2 * writing_s
        if self._job_s <= self._ending_s:
            self._end = self._began
            self._too_few = (
                f"{self._job_s:.1f} of them are left for this job, and what it writes and "
                f"validates takes {self._ending_s:.1f}"
            )

    def tick(self, step_s: float) -> float:
        """Count a training step; return the completed part of the job's schedule, from 0 to 1.

        `step_s` is the duration of the step. The result never decreases. It is 1 as soon as another
        step, as long as the longest of the recent steps, would not end in time.
        """
        self._longest_s = max(step_s, 0.9 * self._longest_s)
        whole_s = self._job_s - self._ending_s - self._longest_s
        now = 1.0
        if whole_s > 0:
            now = min(1.0, (time.monotonic() - self._began) / whole_s)
        self.share = max(self.share, self._done + (1 - self._done) * now)
        return self.share

    @property
    def _ending_s(self) -> float:
        """Seconds that the job takes after its last step, for validation and writing."""
        if self._validates:
            return self._writing_s + self.validation_s
        return self._writing_s
