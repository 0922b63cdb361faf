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
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

# How many of some names a sentence has.
_NAMED = 3
# Of the disk itself, and of a user's share of it.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_OUT_OF_MEMORY = re.compile(
    # torch on a GPU and on a processor, and Python for a lock.
    "^OutOfMemoryError|can't allocate "
    # Python: no room for a thread's stack, or for the error itself.
    "|can't start new thread"
    "|^SystemError .* returned NULL without setting an exception"
    "|^SystemError error return without exception set"
    # oneDNN, where it gets no memory for its kernels.
    "|could not create a primitive"
    # Libraries in C++.
    "|std::bad_alloc"
    # HDF5.
    "|unable to allocate memory|memory allocation failed"
    # The system's loader, where a library finds no room.
    "|failed to map segment from shared object"
)


class TrinatError(Exception):
    """`where: what: remedy`, each part one line; `where` is mostly a file."""

    def __init__(
        self,
        what: str,
        *,
        where: str | Path | None = None,
        remedy: str = "",
    ) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        return reason_of(self)


class ConfigError(TrinatError):
    """A setting is unknown, of the wrong type or out of range."""


class InputError(TrinatError):
    """A file cannot be used."""


class IntegrityError(InputError):
    """A file is damaged: empty, truncated, checksum failed, torn."""


class FormatError(InputError):
    """A file is sound, but not a kind of image that we take."""


class GeometryError(InputError):
    """A file's place in space is missing, impossible or contradictory."""


class OutputError(TrinatError):
    """A file could not be written."""


class DiskFullError(OutputError):
    """A file could not be written, for want of room or of a quota."""


class LabelError(TrinatError):
    """A label map and a label scheme do not meet."""


class DatasetError(TrinatError):
    """A source, a slice store or a split is not what it must be."""


class DownloadError(TrinatError):
    """A file could not be fetched whole."""


class ModelError(TrinatError):
    """A model folder or its weights cannot be used."""


class TrainingError(TrinatError):
    """A training run cannot go on."""


class EvaluationError(TrinatError):
    """Predictions and truths cannot be compared."""


class DeviceError(TrinatError):
    """The device asked for is not there or too small."""


class LockedError(TrinatError):
    """Another run is at work in the same place."""


class InterruptedRunError(TrinatError):
    """A run was stopped by a signal; the same command resumes it."""


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not be written for want of room, whoever raised the error."""
    if isinstance(error, DiskFullError):
        return True
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory, whoever raised the error."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        # Its text has the name of a file, which may say anything.
        return error.errno == errno.ENOMEM
    return bool(_OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"))


def one_line(text: str) -> str:
    """The text with line breaks and control characters escaped, as file names may hold them."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """The first bad key, empty where it is the whole, and what is wrong there."""
    first = error.errors()[0]
    known = {"extra_forbidden": "there is no such setting", "missing": "is missing"}
    message = first["msg"].removeprefix("Value error, ")
    key = ".".join(str(part) for part in first["loc"])
    return key, known.get(first["type"], message)


def reason_of(error: BaseException, *, where: bool = True) -> str:
    """What is wrong and what to do, in one line; without `where`, no folder is named.

    Tables are shared: the full path of an input is nobody else's business.
    """
    parts = _parts_of(error, where)
    return ": ".join(one_line(part) for part in parts if part)


def _parts_of(error: BaseException, where: bool) -> list[str | None]:
    """Where, what and what to do, as far as each is known."""
    if isinstance(error, TrinatError):
        return [error.where if where else None, error.what, error.remedy]
    if _is_out_of_memory(error):
        return ["out of memory", "close other programs, or use a larger machine"]
    first_line = str(error).strip().partition("\n")[0]
    if isinstance(error, OSError):
        name = os.fsdecode(error.filename) if error.filename else None
        if name is not None and not where:
            name = Path(name).name
        remedy = "check path and permissions"
        if is_disk_full(error):
            remedy = "free some space there"
        return [name, error.strerror or first_line, remedy]
    if isinstance(error, ImportError):
        return [first_line, "trinat doctor shows what is missing"]
    return [type(error).__name__, first_line, "a fault of trinat"]


def some(names: Collection[str]) -> str:
    """The first of some names, and how many more there are."""
    text = ", ".join(list(names)[:_NAMED])
    more = len(names) - _NAMED
    if more > 0:
        text += f" and {more} more"
    return text
