"""What the names of two files have in common: beginnings, endings, and what is left of them.

Names are without folder and suffix, as `ScanFile.name` has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trinat.pipelines.common.scanfiles import ScanFile

_SEPARATORS = "_-. "
_SEPARATOR = re.compile(r"[_. -]")
# What files are called beside their scans; any other word may tell one scan from another.
_KINDS = frozenset(
    {
        "seg",
        "segmentation",
        "label",
        "labels",
        "labelmap",
        "pred",
        "prediction",
        "predicted",
        "dseg",
        "aseg",
        "mask",
        "manual",
        "truth",
        "true",
        "gt",
        "auto",
        "result",
        "brain",
        "t1",
        "t1w",
        "mri",
        "mprage",
        "anat",
        "anon",
        "orig",
        "image",
        "img",
        "scan",
    }
)


def says_kind_alone(ending: str) -> bool:
    """Whether an ending says what a file is (`_seg`), not whose (`_MR2`)."""
    words = [word for word in _SEPARATOR.split(ending) if word]
    return all(word.casefold() in _KINDS for word in words)


def common_ending(names: Sequence[str]) -> str:
    """What all names end with, from a separator on, as `_seg`; empty if there is no such ending.

    It has no digits: these tell scans apart. Of fewer than two names nothing is known.
    """
    if len(names) < 2:
        return ""
    backwards = [name[::-1] for name in names]
    shared = _shared_beginning(backwards)[::-1]
    after_digits = re.split(r"\d", shared)[-1]
    first_separator = _SEPARATOR.search(after_digits)
    if first_separator is None:
        return ""
    return after_digits[first_separator.start() :]


def common_beginning(names: Sequence[str]) -> str:
    """What all names begin with, up to a separator or a digit; empty for fewer than two names.

    A beginning ends where names begin to say whose they are: "sub-01", "sub-02" have "sub-" in
    common.
    """
    if len(names) < 2:
        return ""
    before_digits = re.split(r"\d", _shared_beginning(names))[0]
    length = len(before_digits)
    next_letters = [name[length : length + 1] for name in names]
    if all(letter.isdigit() for letter in next_letters):
        return before_digits
    # -1 where there is no separator: then nothing is left.
    last_separator = max(before_digits.rfind(mark) for mark in _SEPARATORS)
    return before_digits[: last_separator + 1]


def _shared_beginning(names: Sequence[str]) -> str:
    """The letters that all names begin with."""
    first = names[0]
    length = min(len(name) for name in names)
    for end in range(length):
        if any(name[end] != first[end] for name in names):
            return first[:end]
    return first[:length]


def distinct_parts(files: Sequence[ScanFile]) -> dict[Path, str]:
    """What is left of the files' names without the beginning and the ending that all share.

    Files of one name in two folders have the same part.
    """
    names = [file.name for file in files]
    beginning = common_beginning(names)
    ending = common_ending(names)
    parts = {}
    for file in files:
        part = file.name.removeprefix(beginning).removesuffix(ending)
        parts[file.path] = part.strip(_SEPARATORS)
    return parts


def longest_beginning(
    name: str, files_by_name: Mapping[str, list[ScanFile]]
) -> list[ScanFile]:
    """The files with the longest name that `name` begins with, up to a separator; or none.

    The whole name itself is not looked for.
    """
    for end in range(len(name) - 1, 0, -1):
        beginning = name[:end]
        if not name[end].isalnum() and beginning in files_by_name:
            return files_by_name[beginning]
    return []
