"""The structures of a folder of results: what the numbers in its label maps mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.common.naming import FOLD
from trinat.pipelines.predict.outputs import LABEL_TABLE, PLAIN_LABEL_TABLE
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.scheme import load_scheme

_COLOR = re.compile(r"#[0-9A-Fa-f]{6}")


@dataclass(frozen=True)
class Structure:
    """A row of a label table."""

    number: int  # in label maps
    name: str
    abbreviation: str
    color: str  # as #RRGGBB


def structures_in(folder: Path) -> list[Structure]:
    """The structures of a folder's own label table; none where it has no table.

    Rows whose number or colour cannot be used are left out, and so is background.
    """
    table = _label_table(folder)
    if table is None:
        return []
    structures = []
    for row in read_rows(table, required=("index", "name", "color")):
        number = row["index"]
        color = row["color"]
        if not number.isdecimal() or number == "0":
            continue
        if not _COLOR.fullmatch(color):
            continue
        abbreviation = row.get("abbreviation", "")
        structures.append(Structure(int(number), row["name"], abbreviation, color))
    return structures


def _label_table(folder: Path) -> Path | None:
    """The label table of a folder, or of the first of its folds that has one."""
    of_folds = sorted(folder.glob(FOLD.format(f"*/{PLAIN_LABEL_TABLE}")))
    for path in [folder / PLAIN_LABEL_TABLE, folder / LABEL_TABLE, *of_folds]:
        if path.is_file():
            return path
    return None


def structures_of_scheme(name: str) -> list[Structure]:
    """The structures of a label scheme, by the FreeSurfer numbers that are on disk."""
    structures = []
    for label in load_scheme(name).labels[1:]:
        red, green, blue = label.color
        color = f"#{red:02x}{green:02x}{blue:02x}"
        structures.append(Structure(label.fs_id, label.name, label.abbreviation, color))
    return structures
