"""Possible outcomes of one try, and the exceptions by which an attack reports them.

An attack that returns was answered right; a `TrinatError` or `Refused` is a refusal in one
line; any other exception is a failure, in one of four columns.
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


GOOD = (Verdict.REFUSED, Verdict.RIGHT)


class Refused(Exception):  # noqa: N818
    """Raised when a command refuses with one line and a status that is not 0."""


class Bad(BaseException):
    """Raised for a failure. Not an Exception, so that the code under attack cannot catch it."""

    def __init__(self, verdict: Verdict, what: str) -> None:
        super().__init__(what)
        self.verdict = verdict


def wrong(what: str) -> Bad:
    return Bad(Verdict.WRONG, what)


def lost(what: str) -> Bad:
    return Bad(Verdict.LOST, what)


def raw(what: str) -> Bad:
    return Bad(Verdict.TRACEBACK, what)


# Text that only a fault of ours, or an unguarded fault of a library, prints.
_RAW = re.compile(
    r"Traceback \(most recent call last\)|^.*a fault of trinat|^\S+\.py:\d+: \w*Warning|"
    r"Exception ignored in|terminate called|Fatal Python error",
    re.MULTILINE,
)


def raw_in(text: str) -> str:
    """Return the text from the first line on that no user should see, or ""."""
    found = _RAW.search(text)
    return text[found.start() :].strip().replace("\n", " | ")[-400:] if found else ""


def judged(error: BaseException) -> tuple[Verdict, str]:
    """Return the verdict on an exception that came out of an attack, and what to print of it."""
    if isinstance(error, Bad):
        return error.verdict, str(error)
    if isinstance(error, Refused):
        return Verdict.REFUSED, ""
    if isinstance(error, TrinatError) and len(str(error).splitlines()) == 1:
        return Verdict.REFUSED, ""
    if isinstance(error, OSError) and error.filename:
        return Verdict.REFUSED, ""  # commands print the file and the reason
    return Verdict.TRACEBACK, f"{type(error).__name__}: {error}"
