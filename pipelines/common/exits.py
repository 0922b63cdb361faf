"""What the exit status of every command means.

A command that was ended by an error has the status of that kind of error. A batch that came to its
end has one by how many of its inputs failed.
"""

from __future__ import annotations

from enum import IntEnum

from trinat.segmentation import errors


class Exit(IntEnum):
    """The statuses; docs/commands.md explains them to users."""

    OK = 0
    USAGE = 2
    SOME_FAILED = 3
    ALL_FAILED = 4
    LOCKED = 5
    INTEGRITY = 6
    INTERRUPTED = 75


_BY_ERROR: tuple[tuple[type[errors.TrinatError], Exit], ...] = (
    (errors.ConfigError, Exit.USAGE),
    (errors.LockedError, Exit.LOCKED),
    (errors.IntegrityError, Exit.INTEGRITY),
    (errors.InterruptedRunError, Exit.INTERRUPTED),
)


def exit_code(error: errors.TrinatError) -> Exit:
    """The status for a command that this error ended."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return Exit.ALL_FAILED


def batch_exit(*, done: int, failed: int) -> Exit:
    """The status for a batch: a skipped input counts as done.

    OK also for a batch of nothing.
    """
    if not failed:
        return Exit.OK
    if done:
        return Exit.SOME_FAILED
    return Exit.ALL_FAILED
