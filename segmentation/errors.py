"""Everything that trinat raises on purpose.

TrinatError              says where, what is wrong and what to do, in one line
├── ConfigError          a setting is unknown, of the wrong type or out of range
├── InputError           a file cannot be used
│   ├── IntegrityError   it is damaged: empty, truncated, checksum failed, torn
│   ├── FormatError      it is sound, but not a kind of image that we take
│   └── GeometryError    its place in space is missing, impossible or contradictory
├── OutputError          a file could not be written
│   └── DiskFullError    for want of room, or of a quota
├── LabelError           a label map and a label scheme do not meet
├── DatasetError         a source, a slice store or a split is not what it must be
├── DownloadError        a file could not be fetched whole
├── ModelError           a model folder or its weights cannot be used
├── TrainingError        a training run cannot go on
├── EvaluationError      predictions and truths cannot be compared
├── DeviceError          the device asked for is not there or too small
├── LockedError          another run is at work in the same place
└── InterruptedRunError  stopped by a signal; the same command resumes it
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

# Of the disk itself, and of a user's share of it.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# torch on a GPU and on a processor, and Python, where a thread's stack has no room.
_OUT_OF_MEMORY = re.compile(
    "^OutOfMemoryError|can't allocate memory|can't start new thread"
    # oneDNN, where it gets no memory for its kernels.
    "|could not create a primitive"
)


class TrinatError(Exception):
    """`where: what: remedy`, each part one line; `where` is mostly a file."""

    def __init__(
        self, what: str, *, where: str | Path | None = None, remedy: str = ""
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        return reason_of(self)


class ConfigError(TrinatError):
    pass


class InputError(TrinatError):
    pass


class IntegrityError(InputError):
    pass


class FormatError(InputError):
    pass


class GeometryError(InputError):
    pass


class OutputError(TrinatError):
    pass


class DiskFullError(OutputError):
    pass


class LabelError(TrinatError):
    pass


class DatasetError(TrinatError):
    pass


class DownloadError(TrinatError):
    pass


class ModelError(TrinatError):
    pass


class TrainingError(TrinatError):
    pass


class EvaluationError(TrinatError):
    pass


class DeviceError(TrinatError):
    pass


class LockedError(TrinatError):
    pass


class InterruptedRunError(TrinatError):
    pass


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not be written for want of room, whoever raised the error."""
    if isinstance(error, DiskFullError):
        return True
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def one_line(text: str) -> str:
    """The text with line breaks and control characters escaped, as file names may hold them."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """The first bad key, empty where it is the whole, and what is wrong there."""
    first = error.errors()[0]
    known = {"extra_forbidden": "there is no such setting", "missing": "is missing"}
    message = known.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ".".join(str(part) for part in first["loc"]), message


def reason_of(error: BaseException, *, where: bool = True) -> str:
    """What is wrong and what to do, in one line; without `where`, no folder is named.

    Tables are shared: the full path of an input is nobody else's business.
    """
    first = (
        "" if isinstance(error, TrinatError) else str(error).strip().partition("\n")[0]
    )
    if isinstance(error, TrinatError):
        parts = [error.where if where else None, error.what, error.remedy]
    elif isinstance(error, OSError):
        name = os.fsdecode(error.filename) if error.filename else None
        parts = [
            name if where or name is None else Path(name).name,
            error.strerror or first,
            "free some space there"
            if is_disk_full(error)
            else "check path and permissions",
        ]
    elif isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(
        f"{type(error).__name__} {first}"
    ):
        parts = ["out of memory", "close other programs, or use a larger machine"]
    elif isinstance(error, ImportError):
        parts = [first, "trinat doctor shows what is missing"]
    else:
        parts = [type(error).__name__, first, "a fault of trinat"]
    return ": ".join(one_line(part) for part in parts if part)
