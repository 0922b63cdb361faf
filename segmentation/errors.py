"""Exception hierarchy of trinat.

TrinatError              one line: where, what is wrong, what to do
├── ConfigError          a setting is unknown, of the wrong type or out of range
├── InputError           a file cannot be used
│   ├── IntegrityError   it is damaged: empty, truncated, bad checksum
│   ├── FormatError      it is sound, but not a supported kind of image
│   └── GeometryError    its orientation is missing, impossible or contradictory
├── OutputError          a file could not be written
│   └── DiskFullError    because the disk or a quota is full
├── LabelError           a label map does not match a label scheme
├── DatasetError         a source, a slice store or a split is invalid
├── DownloadError        a file could not be downloaded completely
├── ModelError           a model folder or its weights cannot be used
├── TrainingError        a training run cannot continue
├── EvaluationError      predictions and reference label maps cannot be compared
├── DeviceError          the requested device is missing or too small
├── LockedError          another run is using the same folder
└── InterruptedRunError  stopped by a signal; the same command resumes it
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Sequence
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

# Number of names that a message lists; the others are only counted.
_NAMED = 3
# Number of problems of one file that a message lists; the others are only counted.
_MOST_PROBLEMS = 5
# Error numbers of a full disk and of an exceeded quota.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_OUT_OF_MEMORY = re.compile(
    # torch on a GPU and on a processor, and Python for a lock.
    "^OutOfMemoryError|can't allocate "
    "|can't start new thread"
    "|^SystemError .* returned NULL without setting an exception"
    "|^SystemError error return without exception set"
    # oneDNN, when it gets no memory for its kernels.
    "|could not create a primitive"
    # Libraries in C++.
    "|std::bad_alloc"
    # HDF5.
    "|unable to allocate memory|memory allocation failed"
    # The dynamic loader, when it gets no memory for a library.
    "|failed to map segment from shared object"
)


class TrinatError(Exception):
    """Base class of all errors of trinat; printed as `where: what: remedy` in one line.

    Attributes
    ----------
    what : str
        What is wrong.
    where : str or None
        File, folder or option that the error is about, if any.
    remedy : str
        What to do about it, or "".
    """

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
    """A file is sound, but not a supported kind of image."""


class GeometryError(InputError):
    """The orientation of a file is missing, impossible or contradictory."""


class OutputError(TrinatError):
    """A file could not be written."""


class DiskFullError(OutputError):
    """A file could not be written because the disk or a quota is full."""


class LabelError(TrinatError):
    """A label map does not match a label scheme."""


class DatasetError(TrinatError):
    """A source, a slice store or a split is invalid."""


class DownloadError(TrinatError):
    """A file could not be downloaded completely."""


class ModelError(TrinatError):
    """A model folder or its weights cannot be used."""


class TrainingError(TrinatError):
    """A training run cannot continue."""


class EvaluationError(TrinatError):
    """Predictions and reference label maps cannot be compared."""


class DeviceError(TrinatError):
    """The requested device is missing or too small."""


class LockedError(TrinatError):
    """Another run is using the same folder."""


class InterruptedRunError(TrinatError):
    """A run was stopped by a signal; the same command resumes it."""


def extra_remedy(extra: str) -> str:
    """Return the command that installs the packages of an optional dependency group of trinat.

    `extra` is the name of the group, such as "fast-cpu". The command never asks pip for trinat
    itself, because pip would install whatever package has this name on an index.
    """
    script = Path(__file__).resolve().parents[1] / "scripts" / "install"
    if script.is_file():
        return f"scripts/install {extra}"
    wanted = f'extra == "{extra}"'
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in requires("trinat") or ()
        if wanted in requirement
    ]
    quoted = " ".join(f"'{package}'" for package in packages)
    return f"pip install {quoted}"


def is_disk_full(error: BaseException) -> bool:
    """Return True if an error was caused by a full disk, whichever library raised it."""
    if isinstance(error, DiskFullError):
        return True
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error was caused by too little memory, whichever library raised it."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        # Its text contains a file name, which could match anything.
        return error.errno == errno.ENOMEM
    return bool(_OUT_OF_MEMORY.search(f"{type(error).__name__} {error}"))


def one_line(text: str) -> str:
    """Escape line breaks and control characters in a text; file names may contain them."""
    return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)


def first_mistake(error: ValidationError) -> str:
    """Return the first invalid setting and what is wrong with it: "network.filters: is missing".

    Without a name if the whole is invalid; names of nested settings are joined by dots.
    """
    first = error.errors()[0]
    known = {"extra_forbidden": "there is no such setting", "missing": "is missing"}
    message = first["msg"].removeprefix("Value error, ")
    message = known.get(first["type"], message)
    if not first["loc"]:
        return message
    key = ".".join(str(part) for part in first["loc"])
    return f"{key}: {message}"


def reason_of(error: BaseException, *, where: bool = True) -> str:
    """Return where an error occurred, what is wrong and what to do about it, in one line.

    Without `where` no folder is named. This is for tables, which are shared and must not contain
    the full path of an input.
    """
    parts = _parts_of(error, where)
    return ": ".join(one_line(part) for part in parts if part)


def _parts_of(error: BaseException, where: bool) -> list[str | None]:
    """Return three parts of an error: the file or option, what is wrong, and what to do.

    Parts that are unknown are None or left out. Without `where`, the first is left out.
    """
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


def some(
    names: Collection[str],
    *,
    most: int = _NAMED,
    between: str = ", ",
    last: str = " and ",
) -> str:
    """Join the first `most` names, and add the number of the remaining ones: "a, b, c and 2 more".

    `between` stands between two names, and `last` before the number.
    """
    text = between.join(list(names)[:most])
    more = len(names) - most
    if more > 0:
        text += f"{last}{more} more"
    return text


def summarise(problems: Sequence[str]) -> str:
    """Join the first few problems of a file by semicolons, and add the number of remaining ones."""
    return some(problems, most=_MOST_PROBLEMS, between="; ", last="; and ")
