"""Folding tables: what becomes of label numbers that a scheme lacks, and of other atlases' numbers.

The target of a number is the FreeSurfer number that takes its place. A number that does not say on
which side a voxel is has two targets, left and right, and each voxel gets the nearer one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.files import read_rows

# Limit on label numbers and thus on the size of tables; FreeSurfer's own numbers end near 15,000.
MAX_NUMBER = 2**20

# Numbers in label maps for generation that FreeSurfer lacks, and the FreeSurfer numbers that they
# become: 136 and 163 are linings of the ventricles, 137 and 164 those of their inferior horns; 25
# and 57 are lesions in white matter.
GENERATION_FOLDED = {136: 4, 163: 43, 137: 5, 164: 44, 25: 2, 57: 41}
# In these maps 24 is all CSF around the brain and in the neck, not FreeSurfer's small region.
GENERATION_SURROUNDINGS = 24
GENERATION_FIRST_OUTSIDE = 500  # numbers from this one on: skull, scalp, eyes and so on
# Number that trinat assigns to the part of 24 in the neck, outside of the skull.
GENERATION_NECK_FLUID = 599
# Structures inside the skull that are neither brain nor ventricle: vessels, optic chiasm, fifth
# ventricle.
GENERATION_BETWEEN = (30, 62, 72, 85)

# Numberings that come with trinat: FreeSurfer's, and others. Each has the table
# configs/labels/<name>-folding.tsv.
FREESURFER = "freesurfer"
SHIPPED_FOLDINGS = (FREESURFER, "neuromorphometrics")
_COLUMNS = ("first", "last", "name", "target")
# Targets of parcels of the left and the right cortex: FreeSurfer's numbers of the whole cortex.
_CORTEX = ((3,), (42,))
# Numbers of unknown cortex and of the corpus callosum, which belong to no parcel of any atlas.
_CORTEX_WITHOUT_PARCEL = frozenset({1000, 1004, 2000, 2004})

# Targets of label numbers: number -> (target,), or (left, right) for a number without a side, whose
# voxels get the nearer side.
Targets = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class FoldingTable:
    """Table that maps the numbers of another atlas to FreeSurfer numbers.

    `targets` maps each number to a FreeSurfer number or, if it has no side, to a left and a right
    one. The atlas's numbers are not FreeSurfer's, even if FreeSurfer has the same numbers.
    """

    name: str
    targets: Targets


def freesurfer_targets(classes: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return what becomes of each FreeSurfer number in a scheme: number -> its target or targets.

    A target is a FreeSurfer number that belongs to a class of the scheme; a number without a side
    has two, left and right. `classes` maps the scheme's own numbers to class indices: these stay
    themselves. If the scheme divides the cortex into parcels and has no class for the whole cortex,
    the parcels of other atlases are left out, because they are not background.
    """
    table = shipped_targets(FREESURFER)
    divided = {table[number] for number in classes if number in table} & set(_CORTEX)
    targets: dict[int, tuple[int, ...]] = {}
    for number, target in table.items():
        is_background = classes.get(target[0]) == 0
        if target in divided and is_background and number not in _CORTEX_WITHOUT_PARCEL:
            continue
        targets[number] = target
    for number in classes:
        targets[number] = (number,)
    return targets


def load_folding(name_or_path: str | Path) -> FoldingTable | None:
    """Load a folding table: a shipped one by its name, or a user's file.

    Returns None for "freesurfer", whose numbers need no table. Raises a LabelError for a missing or
    unreadable file.
    """
    # A shipped name takes precedence over a file of the same name, as for schemes.
    name = str(name_or_path)
    if name == FREESURFER:
        return None
    if name in SHIPPED_FOLDINGS:
        return FoldingTable(name, shipped_targets(name))
    path = Path(name_or_path)
    if not path.is_file():
        raise LabelError(
            "no such folding table",
            where=path,
            remedy=f"give a TSV file or one of {', '.join(SHIPPED_FOLDINGS)}",
        )
    return FoldingTable(path.stem, _read_targets(path))


@cache
def shipped_targets(name: str) -> Targets:
    """Read the table of a shipped numbering from configs/labels: number -> FreeSurfer number(s)."""
    tables = resources.files("trinat.configs") / "labels"
    with resources.as_file(tables / f"{name}-folding.tsv") as path:
        return _read_targets(path)


def _read_targets(path: Path) -> Targets:
    """Read a table of label numbers and what they become: number -> FreeSurfer number(s).

    The columns are first, last, target and, optionally, name. A row is for the numbers `first` to
    `last`; each number is in one row only. Raises a LabelError for an invalid table.
    """
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
        first = _parse_number(row["first"], where)
        last = _parse_number(row["last"], where)
        if last < first:
            raise LabelError(f"numbers {first} to {last} run backwards", where=where)
        target = _parse_target(row["target"], where)
        for number in range(first, last + 1):
            if number in targets:
                raise LabelError(f"{number} is in two rows", where=where)
            targets[number] = target
    if not targets:
        raise LabelError("has no rows", where=path)
    return targets


def _parse_target(text: str, where: str) -> tuple[int, ...]:
    """Parse one or two numbers in a cell: "4" becomes (4,), "nearest 2 41" becomes (2, 41)."""
    match text.split():
        case [number]:
            return (_parse_number(number, where),)
        case ["nearest", left, right]:
            return (_parse_number(left, where), _parse_number(right, where))
    raise LabelError(
        f"target {text!r} is not readable",
        where=where,
        remedy="give a FreeSurfer number, or 'nearest LEFT RIGHT'",
    )


def _parse_number(text: str, where: str) -> int:
    """Parse a label number; raise a LabelError for anything else."""
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) >= MAX_NUMBER:
        raise LabelError(
            f"{text!r} is no label number", where=where, remedy="numbers start at 0"
        )
    return int(text)
