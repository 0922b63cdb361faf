"""Training within a wall time: the time of a call, and each job's part of it.

A stage that is trained by time has no fixed number of steps. What is done of its schedule, from 0
to 1, is the share of its time that is spent; learning rate and progress follow that share.
"""

from __future__ import annotations

import math
import time


class TrainingClock:
    """Wall time of one call, counted from the end of its first step and its page.

    The time left is divided among the jobs left by what each has still to do, without what those
    that follow need to start. A job's first step is no progress: a compiler may take minutes in it.

    `validation_s` is what a validation takes, with what is written then: foreseen before the first
    one, then the longest of those that were timed, once the clock `has_validated`. `share` is what
    is done of the present job's schedule, from 0 to 1.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.validation_s = 0.0
        self.has_validated = False
        # By time.monotonic; unknown before the first step.
        self._end = math.inf
        self._too_few = ""

    @property
    def why_over(self) -> str:
        """Return the reason to stop the call now, or ""."""
        if time.monotonic() < self._end:
            return ""
        if self._too_few:
            return f"{self.seconds:g} seconds are too few: {self._too_few}"
        return f"the time limit of {self.seconds:g} seconds is over"

    def note_validation(self, seconds: float) -> None:
        """Remember how long a validation took, if none took longer."""
        if self.has_validated:
            seconds = max(self.validation_s, seconds)
        self.validation_s = seconds
        self.has_validated = True

    def begin_job(self, done: float, others: int, *, validates: bool) -> None:
        """Begin a job of which earlier calls did the share `done`; `others` follow it.

        `validates` says whether scans are validated in it.
        """
        self.share = done
        self.has_started = False
        self._done = done
        self._others = others
        self._validates = validates
        self._longest_s = 0.0

    def start(self, writing_s: float, opening_s: float = 0.0) -> None:
        """Begin to count, after the job's first step and the `writing_s` that its state then took.

        `opening_s` is what the job took before its first step. Each that follows will take as long.
        The first job also sets the end of the call. Where writing alone takes longer than the call
        may, the end is now.
        """
        self.has_started = True
        self._began = time.monotonic()
        self._end = min(self._end, self._began - writing_s + self.seconds)
        starting_s = self._others * (opening_s + writing_s)
        left_s = max(0.0, self._end - self._began - starting_s)
        left = 1 - self._done
        self._job_s = left_s * left / (left + self._others) if left else 0.0
        # The state, the page, and the model that is made of all.
        self._writing_s = 2 * writing_s
        if self._job_s <= self._ending_s:
            self._end = self._began
            self._too_few = (
                f"{self._job_s:.1f} of them are left for this job, and what it writes and "
                f"validates takes {self._ending_s:.1f}"
            )

    def tick(self, step_s: float) -> float:
        """Count a step that took `step_s`; return the share of the schedule that is done.

        The share never falls. It is 1 once another step as long as the longest of late would pass
        the end.
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
        """Return the seconds that the job takes after its last step."""
        if self._validates:
            return self._writing_s + self.validation_s
        return self._writing_s
