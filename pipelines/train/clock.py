"""Training within a wall time: the time of a call, and each job's part of it.

A stage that is trained by time has no fixed number of steps. What is done of its schedule, from 0
to 1, is the share of its time that is spent; learning rate and progress follow that share.
"""

from __future__ import annotations

import math
import time


class TimeLimit:
    """The seconds that one call may take, from the end of its first step and its page on.

    `end` is by time.monotonic, and infinite before the first step. `validation_s` is what a
    validation takes, with what is written then: foreseen before the first one, then the longest of
    those that were timed, once it `has_validated`. `too_few` says what the seconds do not suffice
    for, if that was found.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = math.inf
        self.validation_s = 0.0
        self.too_few = ""
        self.has_validated = False

    @property
    def why_over(self) -> str:
        """Why the call is to stop now; empty where it is not."""
        if time.monotonic() < self.end:
            return ""
        if self.too_few:
            return f"its {self.seconds:g} seconds are too few: {self.too_few}"
        return f"its {self.seconds:g} seconds are over"

    def note_validation(self, seconds: float) -> None:
        """Remember how long a validation took, if none took longer."""
        if self.has_validated:
            seconds = max(self.validation_s, seconds)
        self.validation_s = seconds
        self.has_validated = True


class JobClock:
    """What is done of a job's schedule, by the wall clock.

    The time left is divided among the jobs left by what each has still to do, without what those
    that follow need to start. A job's first step is no progress: a compiler may take minutes in it.

    `done` is the share of the schedule that earlier calls did, 0 to 1; `others` is the number of
    jobs that follow in this call; `validates` says whether scans are validated in this one.
    """

    def __init__(
        self,
        limit: TimeLimit,
        done: float,
        others: int,
        *,
        validates: bool,
    ) -> None:
        self.limit = limit
        self.done = done
        self.others = others
        self.validates = validates
        self.part = 0.0  # of the time that is left
        if done < 1:
            self.part = (1 - done) / (1 - done + others)
        self.share = done
        self.has_started = False
        self.longest_s = 0.0

    def start(self, writing_s: float, opening_s: float = 0.0) -> None:
        """Begin to count, after the first step and the `writing_s` that its state then took.

        `opening_s` is what the job took before its first step. Each that follows will take as long.
        The first job's clock also sets the end of the call. Where writing alone takes longer than
        the call may, the end is now.
        """
        self.has_started = True
        self.began = time.monotonic()
        limit = self.limit
        limit.end = min(limit.end, self.began - writing_s + limit.seconds)
        starting_s = self.others * (opening_s + writing_s)
        left_s = max(0.0, limit.end - self.began - starting_s)
        self.seconds = left_s * self.part
        # The state, the page, and the model that is made of all.
        self.writing_s = 2 * writing_s
        if self._for_steps() <= 0:
            limit.end = self.began
            limit.too_few = (
                f"{self.seconds:.1f} of them are left for this job, and what it writes and "
                f"validates takes {self.seconds - self._for_steps():.1f}"
            )

    def tick(self, step_s: float) -> float:
        """Count a step that took `step_s`; returns the share of the schedule that is done.

        The share never falls. It is 1 once another step as long as the longest of late would pass
        the end.
        """
        self.longest_s = max(step_s, 0.9 * self.longest_s)
        whole = self._for_steps() - self.longest_s
        spent = time.monotonic() - self.began
        now = 1.0
        if whole > 0:
            now = min(1.0, spent / whole)
        share = self.done + (1 - self.done) * now
        self.share = max(self.share, share)
        return self.share

    def _for_steps(self) -> float:
        """Seconds of this job without those at its end."""
        for_steps = self.seconds - self.writing_s
        if self.validates:
            for_steps -= self.limit.validation_s
        return for_steps
