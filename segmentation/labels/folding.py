"""Folding tables: what label numbers outside a scheme become, and numberings of other atlases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.files import read_rows

# Bounds the table of classes; FreeSurfer's own numbers end near 15,000.
MAX_NUMBER = 2**20

# How label maps for generation number what FreeSurfer does not. 136 and 163 line the ventricles,
# 137 and 164 their inferior horns; 25 and 57 are lesions in white matter.
GENERATION_FOLDED = {136: 4, 163: 43, 137: 5, 164: 44, 25: 2, 57: 41}
# There, 24 is all CSF around the brain and in the neck, not FreeSurfer's small 24.
GENERATION_SURROUNDINGS = 24
GENERATION_FIRST_OUTSIDE = 500  # from here on: skull, scalp, eyes and so on
# Ours: the part of 24 in the neck, outside the skull.
GENERATION_NECK_FLUID = 599
# Inside the skull, and neither brain nor ventricle: vessels, optic chiasm, fifth ventricle.
GENERATION_BETWEEN = (30, 62, 72, 85)

# Numberings that ship beside FreeSurfer's, each as configs/labels/<name>-folding.tsv.
FREESURFER = "freesurfer"
SHIPPED_FOLDINGS = (FREESURFER, "neuromorphometrics")
_COLUMNS = ("first", "last", "name", "target")

# Number -> (target,), or (left, right) to join the nearest.
Targets = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class FoldingTable:
    """A numbering other than FreeSurfer's, and the FreeSurfer number that each number becomes.

    A number has the table's meaning alone, whatever it means to FreeSurfer.
    """

    name: str
    targets: Targets


@cache
def folding_table() -> Targets:
    """FreeSurfer's numbers outside the schemes, and what each becomes in one."""
    return _shipped_targets(FREESURFER)


def load_folding(name_or_path: str | Path) -> FoldingTable | None:
    """A shipped table by its name, or a table of the user's; None for FreeSurfer's own numbers.

    Raises LabelError for a table that is not there or not readable.
    """
    # A shipped name wins over a file of that name, as for schemes.
    name = str(name_or_path)
    if name == FREESURFER:
        return None
    if name in SHIPPED_FOLDINGS:
        return FoldingTable(name, _shipped_targets(name))
    path = Path(name_or_path)
    if not path.is_file():
        raise LabelError(
            "no such folding table",
            where=path,
            remedy=f"give a TSV file or one of {', '.join(SHIPPED_FOLDINGS)}",
        )
    return FoldingTable(path.stem, _read_targets(path))


def _shipped_targets(name: str) -> Targets:
    """The table of this name in configs/labels."""
    tables = resources.files("trinat.configs") / "labels"
    with resources.as_file(tables / f"{name}-folding.tsv") as path:
        return _read_targets(path)


def _read_targets(path: Path) -> Targets:
    """Columns first, last, target, and name for people; each number stands in one row."""
    targets: dict[int, tuple[int, ...]] = {}
    rows = read_rows(path, required=("first", "last", "target"))
    # The header is line 1.
    for line, row in enumerate(rows, start=2):
        where = f"{path}, line {line}"
        for column in row:
            if column not in _COLUMNS:
                raise LabelError(
                    f"has an unknown column {column!r}",
                    where=path,
                    remedy=f"columns: {', '.join(_COLUMNS)}",
                )
        first = _number(row["first"], where)
        last = _number(row["last"], where)
        if last < first:
            raise LabelError(f"numbers {first} to {last} run backwards", where=where)
        target = _target(row["target"], where)
        for number in range(first, last + 1):
            if number in targets:
                raise LabelError(f"{number} is in two rows", where=where)
            targets[number] = target
    if not targets:
        raise LabelError("has no rows", where=path)
    return targets


def _target(text: str, where: str) -> tuple[int, ...]:
    """(4,) of "4"; (2, 41) of "nearest 2 41"."""
    match text.split():
        case [number]:
            return (_number(number, where),)
        case ["nearest", left, right]:
            return (_number(left, where), _number(right, where))
    raise LabelError(
        f"target {text!r} is not readable",
        where=where,
        remedy="give a FreeSurfer number, or 'nearest LEFT RIGHT'",
    )


def _number(text: str, where: str) -> int:
    """A label number of a cell; LabelError for anything else."""
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) >= MAX_NUMBER:
        raise LabelError(
            f"{text!r} is no label number", where=where, remedy="numbers start at 0"
        )
    return int(text)
