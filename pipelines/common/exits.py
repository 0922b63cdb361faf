"""Exit status of all commands.

A command that was ended by an error has the status of that kind of error. The status of a completed
batch depends on the number of failed inputs.
"""

from __future__ import annotations

from enum import IntEnum

from trinat.segmentation import errors


class Exit(IntEnum):
    """Exit statuses; docs/commands.md explains them to users."""

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
    """Return the exit status of a command that was ended by this error."""
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return Exit.ALL_FAILED


def batch_exit(*, done: int, failed: int) -> Exit:
    """Return the exit status of a command from the numbers of inputs done and failed.

    It is OK without failures, also if there are no inputs. Skipped inputs count as done.
    """
    if not failed:
        return Exit.OK
    if done:
        return Exit.SOME_FAILED
    return Exit.ALL_FAILED
