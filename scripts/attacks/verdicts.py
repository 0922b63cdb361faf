"""What may become of one try, and how an attack says it.

An attack that returns was answered right; a `TrinatError` or `Refused` is a refusal in one line;
all else is a failure, in one of five columns.
"""

from __future__ import annotations

import re
from enum import StrEnum

from trinat.segmentation.errors import TrinatError


class Verdict(StrEnum):
    REFUSED = "refused"
    RIGHT = "right"
    WRONG = "silent wrong"
    TRACEBACK = "raw traceback"
    HANG = "hang"
    LOST = "lost"
    EXECUTED = "executed"


GOOD = (Verdict.REFUSED, Verdict.RIGHT)


class Refused(Exception):  # noqa: N818
    """A command ended with one line and a status that is not 0."""


class Bad(BaseException):
    """A failure. No Exception: what is under attack must not catch it."""

    def __init__(self, verdict: Verdict, what: str) -> None:
        super().__init__(what)
        self.verdict = verdict


def wrong(what: str) -> Bad:
    return Bad(Verdict.WRONG, what)


def lost(what: str) -> Bad:
    return Bad(Verdict.LOST, what)


def executed(what: str) -> Bad:
    return Bad(Verdict.EXECUTED, what)


def raw(what: str) -> Bad:
    return Bad(Verdict.TRACEBACK, what)


# What only a fault of ours, or of a library that we did not guard, prints.
_RAW = re.compile(
    r"Traceback \(most recent call last\)|^.*a fault of trinat|^\S+\.py:\d+: \w*Warning|"
    r"Exception ignored in|terminate called|Fatal Python error",
    re.MULTILINE,
)


def raw_in(text: str) -> str:
    """The first line that no user should see."""
    found = _RAW.search(text)
    return text[found.start() :].strip().replace("\n", " | ")[-400:] if found else ""


def judged(error: BaseException) -> tuple[Verdict, str]:
    """The column of an exception that came out of an attack, and what to print of it."""
    if isinstance(error, Bad):
        return error.verdict, str(error)
    if isinstance(error, Refused):
        return Verdict.REFUSED, ""
    if isinstance(error, TrinatError) and len(str(error).splitlines()) == 1:
        return Verdict.REFUSED, ""
    if isinstance(error, OSError) and error.filename:
        return Verdict.REFUSED, ""  # commands say which file, and why
    return Verdict.TRACEBACK, f"{type(error).__name__}: {error}"
