"""The table of a label scheme: a TSV file with a row for each class."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from trinat.segmentation.errors import LabelError
from trinat.segmentation.labels.label import Label, Side, find_problem

_REQUIRED = (
    "index",
    "name",
    "freesurfer",
    "side",
    "partner",
    "color",
    "abbreviation",
    "group",
)
_OPTIONAL = ("members", "rim_of")
_ABSENT = ("", "n/a")
_SIDES: dict[str, Side | None] = {
    "left": "left",
    "right": "right",
    "": None,
    "n/a": None,
}


def parse_labels(table: bytes, path: Path) -> tuple[Label, ...]:
    """The classes of a scheme from the content of its file; `path` names the file in errors.

    Raises LabelError, with the line, for what is no scheme.
    """
    try:
        text = table.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabelError("is not a text file in UTF-8", where=path) from error
    reader = csv.DictReader(text.splitlines(), delimiter="\t", strict=True)
    try:
        columns = reader.fieldnames or []
        rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except csv.Error as error:
        raise LabelError(f"is no table: {error}", where=path) from error
    _check_columns(columns, path)
    labels = tuple(_parse_row(row, where) for where, row in rows)
    problem = find_problem(labels)
    if problem:
        raise LabelError(problem, where=path)
    return labels


def _check_columns(columns: Any, path: Path) -> None:
    """Refuse a table without a column that is required, or with one that is not known."""
    problem = ""
    missing = [column for column in _REQUIRED if column not in columns]
    unknown = [column for column in columns if column not in _REQUIRED + _OPTIONAL]
    if missing:
        problem = f"has no column {missing[0]!r}"
    elif unknown:
        problem = f"has an unknown column {unknown[0]!r}"
    if problem:
        raise LabelError(
            problem,
            where=path,
            remedy=f"tab-separated columns: {' '.join(_REQUIRED)}, optional {' '.join(_OPTIONAL)}",
        )


def _parse_row(row: dict[str | Any, str | Any], where: str) -> Label:
    """The class of a row, cells by column; `where` names file and line in errors."""
    if None in row or None in row.values():
        raise LabelError("has more or fewer cells than the header", where=where)
    cell = {column: value.strip() for column, value in row.items()}
    if cell["side"] not in _SIDES:
        raise LabelError(
            f"{cell['side']!r} is no side", where=where, remedy="left, right or n/a"
        )
    color = _color(cell["color"], where)
    for column in ("name", "abbreviation", "group"):
        if cell[column] in _ABSENT:
            raise LabelError(f"{column} is empty", where=where)
    return Label(
        index=_whole(cell["index"], "index", where),
        name=cell["name"],
        fs_id=_whole(cell["freesurfer"], "freesurfer", where),
        partner=_optional(cell, "partner", where),
        color=color,
        abbreviation=cell["abbreviation"],
        group=cell["group"],
        side=_SIDES[cell["side"]],
        members=_members(cell.get("members", ""), where),
        rim_of=_optional(cell, "rim_of", where),
    )


def _color(text: str, where: str) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, of "#CD3E4E"."""
    if not re.fullmatch(r"#[0-9A-Fa-f]{6}", text):
        raise LabelError(
            f"{text!r} is no colour", where=where, remedy="write it as #CD3E4E"
        )
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


def _members(text: str, where: str) -> tuple[int, ...]:
    """The numbers in a cell, between spaces."""
    if text in _ABSENT:
        return ()
    return tuple(_whole(word, "members", where) for word in text.split())


def _optional(cell: dict[str, str], column: str, where: str) -> int | None:
    """The number in a cell, or None where there is none."""
    text = cell.get(column, "")
    if text in _ABSENT:
        return None
    return _whole(text, column, where)


def _whole(text: str, column: str, where: str) -> int:
    """A whole number from 0; LabelError for anything else."""
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise LabelError(f"{column} {text!r} is no whole number", where=where)
    return int(text)
