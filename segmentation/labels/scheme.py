"""Label schemes: the structures that a network distinguishes, and their FreeSurfer numbers.

The data are in `configs/labels/*.tsv`, one table per scheme. Networks use class indices 0..K-1;
files hold FreeSurfer numbers. Viewers get tables of names and colours in their own format.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.cells import NO_NAME
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.labels import SHIPPED_SCHEMES, Side
from trinat.segmentation.labels.class_map import ClassMap, outer_rim
from trinat.segmentation.labels.folding import (
    FoldingTable,
    freesurfer_targets,
)
from trinat.segmentation.labels.label import Label, find_problem
from trinat.segmentation.space.views import View

# Label of pixels that the losses leave out.
IGNORE = 255

# Groups of parcels of the cortex in label schemes.
LOBES = ("frontal", "parietal", "temporal", "occipital", "cingulate", "insula")

# Tissues with the numbers 1, 2 and 3 in a map of tissues, as in BIDS; 0 is everything else.
TISSUES = ("GM", "WM", "CSF")

# Kind of label maps that a scheme is for. Maps of lesions are masks: every number but 0 is lesion.
MapKind = Literal["structures", "parcels", "lesions"]

Viewer = Literal["freesurfer", "itksnap", "slicer", "fsleyes"]
# Header of a viewer's table, and the format of the line of a label; background is transparent.
# docs/prediction.md names the source of each format.
_FORMS: dict[Viewer, tuple[str, str]] = {
    "freesurfer": ("#No. Label Name: R G B A\n", "{number} {name} {r} {g} {b} 0"),
    "itksnap": (
        "# ITK-SnAP Label Description File\n# IDX -R- -G- -B- -A- VIS MSH LABEL\n",
        '{number} {r} {g} {b} {shown} {shown} {shown} "{name}"',
    ),
    "slicer": (
        "# Color table file {scheme}.ctbl\n# {count} values\n",
        "{number} {name} {r} {g} {b} {opacity}",
    ),
    "fsleyes": ("", "{number} {red:.5f} {green:.5f} {blue:.5f} {name}"),
}

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
_SIDES: dict[str, Side | None] = {
    "left": "left",
    "right": "right",
    "": None,
    "n/a": None,
}


@dataclass(frozen=True)
class LabelScheme:
    """The classes of a network in the order of its channels; class 0 is background."""

    name: str
    labels: tuple[Label, ...]

    def __post_init__(self) -> None:
        problem = find_problem(self.labels)
        if problem:
            raise LabelError(f"{self.name}: {problem}")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each class, K of them."""
        return tuple(label.name for label in self.labels)

    @cached_property
    def fs_ids(self) -> NDArray[np.int16]:
        """FreeSurfer number of each class, (K,)."""
        return _read_only(np.array([label.fs_id for label in self.labels], np.int16))

    @cached_property
    def partner_permutation(self) -> NDArray[np.int64]:
        """Index of each class's partner, or its own index if it has none, (K,)."""
        partners = [_partner_or_itself(label) for label in self.labels]
        return _read_only(np.array(partners, np.int64))

    @property
    def has_sides(self) -> bool:
        """True if a class is on the left or on the right."""
        return any(label.side is not None for label in self.labels)

    @property
    def has_unpartnered_sides(self) -> bool:
        """True if a class is on one side only: a mirrored scan cannot be labelled correctly."""
        return any(
            label.side is not None and label.partner is None for label in self.labels
        )

    @property
    def has_parcels(self) -> bool:
        """True if the scheme has parcels of the cortex in place of the whole cortex."""
        return any(label.group in LOBES for label in self.labels)

    @property
    def kind(self) -> MapKind:
        """Kind of the label maps that are read with this scheme."""
        if self.has_parcels:
            return "parcels"
        if all(label.group == "lesion" for label in self.labels[1:]):
            return "lesions"
        return "structures"

    def in_groups(self, groups: Collection[str]) -> NDArray[np.bool_]:
        """Return a mask of the classes whose group is one of `groups`, (K,)."""
        return np.array([label.group in groups for label in self.labels])

    def from_freesurfer(
        self,
        array: NDArray[Any],
        *,
        spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
        extra: Mapping[int, int] | None = None,
        ignore: Collection[int] = (),
        fold: FoldingTable | None = None,
        where: str | Path | None = None,
    ) -> NDArray[np.uint8]:
        """Convert a map of FreeSurfer numbers (X, Y, Z) to class indices.

        With `fold` the map has the numbers of that table instead. `extra` maps further numbers to
        FreeSurfer numbers, and numbers in `ignore` become background; both take precedence over the
        tables. `spacing_mm` is used to find the nearest side for numbers without one. `where` names
        the file in errors. Raises a LabelError for unknown numbers. In the scheme of lesions, every
        number but 0 and those in `ignore` is lesion.
        """
        array = np.asarray(array)
        if not np.issubdtype(array.dtype, np.integer):
            raise LabelError(
                f"label numbers are integers, not {array.dtype}",
                where=where,
                remedy="read the file as labels",
            )
        if self.kind == "lesions":
            return (~np.isin(array, [0, *ignore])).astype(np.uint8)
        class_map = ClassMap.build(self.name, self._classes, extra or {}, ignore, fold)
        indices = class_map.apply(array, spacing_mm, where)
        for label in self.labels:
            if label.rim_of is not None and not (indices == label.index).any():
                rim = outer_rim(indices == label.rim_of)
                indices[rim & (array == 0)] = label.index
        return indices

    def classes_of_number(self, number: int) -> set[int]:
        """Return the class indices that voxels with a FreeSurfer number may get.

        There are two for a number without a side, and none for an unknown number.
        """
        targets = self._targets.get(number, ())
        return {self._classes[target] for target in targets if target in self._classes}

    def to_freesurfer(self, indices: NDArray[Any]) -> NDArray[np.int16]:
        """Convert class indices to FreeSurfer numbers; raise a LabelError for an invalid index.

        `indices` have any shape and an integer type; the numbers have the same shape. An empty
        array is allowed.
        """
        indices = np.asarray(indices)
        if not np.issubdtype(indices.dtype, np.integer):
            raise LabelError(f"class indices are integers, not {indices.dtype}")
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise LabelError(
                f"indices {indices.min()} to {indices.max()} are no classes of {self.name}",
                remedy=f"it has 0 to {len(self) - 1}",
            )
        numbers: NDArray[np.int16] = self.fs_ids[indices]
        return numbers

    @cached_property
    def merged(self) -> MergedScheme:
        """Scheme with one class for each pair of left and right.

        It is for networks that cannot distinguish sides. Classes keep their order; a pair has the
        position of its first class. Raises a LabelError if a class has a side and no partner. The
        result also maps the classes of this scheme to those of the merged scheme.
        """
        if self.has_unpartnered_sides:
            raise LabelError(
                f"{self.name} has classes on one side only, which a sagittal slice cannot show",
                remedy="use the coronal and axial views",
            )
        # Keep the first class of each pair.
        kept = [
            label
            for label in self.labels
            if label.partner is None or label.index < label.partner
        ]
        to_merged = np.zeros(len(self), np.int64)
        for merged_index, label in enumerate(kept):
            to_merged[label.index] = merged_index
            to_merged[_partner_or_itself(label)] = merged_index
        labels = tuple(self._merged_label(label, to_merged) for label in kept)
        scheme = LabelScheme(f"{self.name}-merged", labels)
        return MergedScheme(scheme, _read_only(to_merged))

    def _merged_label(self, label: Label, to_merged: NDArray[np.int64]) -> Label:
        """Return a class, without a side, for a label and its partner on the other side.

        `to_merged` (K,) is the index of the merged class of each class.
        """
        index = int(to_merged[label.index])
        members: list[int] = []
        for side in np.flatnonzero(to_merged == index):
            members += self.labels[side].numbers
        rim_of = None
        if label.rim_of is not None:
            rim_of = int(to_merged[label.rim_of])
        return replace(
            label,
            index=index,
            name=without_side(label.name),
            abbreviation=without_side(label.abbreviation),
            members=tuple(members),
            partner=None,
            side=None,
            rim_of=rim_of,
        )

    def seen_in(self, view: View) -> LabelScheme:
        """Return the scheme of the labels in slices of a view.

        Sagittal slices do not show sides, so theirs has one class for left and right. All other
        views have this scheme.
        """
        return self.merged.scheme if view is View.SAGITTAL else self

    def find(self, structure: str | int) -> Label:
        """Return the label with this name, abbreviation or FreeSurfer number.

        Case is ignored, and spaces, underscores and dashes are equal. The name may leave out the
        side if the structure has only one. Raises a LabelError if no label matches, or several.
        """
        # Names of the structures that each accepted spelling may mean.
        names_of: dict[str, list[str]] = {}
        for label in self.labels:
            full = {label.name, label.abbreviation, str(label.fs_id)}
            short = {without_side(word) for word in full}
            for word in {_normalised(word) for word in full | short}:
                names_of.setdefault(word, []).append(label.name)
        wanted = _normalised(str(structure))
        names = names_of.get(wanted, [])
        if len(names) == 1:
            return self.labels[self.names.index(names[0])]
        if names:
            raise LabelError(
                f"{structure} has two sides", remedy=f"name {' or '.join(names)}"
            )
        words = [word for word in names_of if not word.isdecimal()]
        near: list[str] = []
        for word in difflib.get_close_matches(wanted, words):
            near += names_of[word]
        remedy = f"give a name, an abbreviation or a FreeSurfer number, such as {self.names[1]}"
        if near:
            remedy = f"did you mean {' or '.join(dict.fromkeys(near))}?"
        raise LabelError(f"{structure!r} is no structure of {self.name}", remedy=remedy)

    @cached_property
    def _targets(self) -> dict[int, tuple[int, ...]]:
        """Numbers of this scheme for each FreeSurfer number: one number, or left and right."""
        return freesurfer_targets(self._classes)

    @cached_property
    def _classes(self) -> dict[int, int]:
        """Class index of each FreeSurfer number that belongs to a class."""
        classes = {}
        for label in self.labels:
            for number in label.numbers:
                classes[number] = label.index
        return classes


@dataclass(frozen=True, eq=False)
class MergedScheme:
    """Scheme in which the left and the right class of another scheme are one class.

    `to_merged` (K,) is the index of the merged class of each class. `values[to_merged]` expands
    values by merged class to values by class.
    """

    scheme: LabelScheme
    to_merged: NDArray[np.int64]


def load_scheme(name_or_path: str | Path) -> LabelScheme:
    """Load a shipped scheme by its name, or a user's scheme from a TSV file.

    Raises a LabelError if the file is missing or no scheme.
    """
    # A shipped name takes precedence over a file, so that a command has the same meaning in every
    # folder.
    name = str(name_or_path)
    if name in SHIPPED_SCHEMES:
        return _load_shipped(name)
    path = Path(name_or_path)
    if not path.is_file():
        raise LabelError(
            "no such label scheme",
            where=path,
            remedy=f"give a TSV file or one of {', '.join(SHIPPED_SCHEMES)}",
        )
    return parse_scheme(path.stem, read_bytes(path), path)


@cache
def _load_shipped(name: str) -> LabelScheme:
    """Load a scheme of configs/labels, once per process."""
    file = resources.files("trinat.configs") / "labels" / f"{name}.tsv"
    return parse_scheme(name, file.read_bytes(), Path(file.name))


def tissue_numbers(scheme: LabelScheme) -> NDArray[np.int64]:
    """Return the tissue number of each class, (K,); 0 for classes that are no tissue.

    Numbers are as in TISSUES: 1 grey matter, 2 white matter, 3 CSF. The scheme `tissue4` assigns
    FreeSurfer's structures to these tissues. Raises a LabelError for a class that consists of
    several tissues.
    """
    table = load_scheme("tissue4")
    numbers = np.zeros(len(scheme), np.int64)
    for label in scheme.labels[1:]:
        found: set[int] = set()
        for number in label.numbers:
            found |= table.classes_of_number(number)
        found.discard(0)
        tissues = [table.labels[index].abbreviation for index in sorted(found)]
        if len(tissues) > 1:
            raise LabelError(
                f"{label.name} of {scheme.name} is both {' and '.join(tissues)}",
                remedy="do without tissue maps",
            )
        if tissues:
            numbers[label.index] = 1 + TISSUES.index(tissues[0])
    return numbers


def viewer_table(scheme: LabelScheme, viewer: Viewer, *, by_index: bool = False) -> str:
    """Return the text of a viewer's table of labels, in ascending order of label numbers.

    The label numbers are FreeSurfer's or, with `by_index`, the class indices.
    """
    header, line = _FORMS[viewer]
    numbered = [
        (label.index if by_index else label.fs_id, label) for label in scheme.labels
    ]
    numbered.sort(key=lambda pair: pair[0])
    rows = []
    for number, label in numbered:
        if viewer == "fsleyes" and label.index == 0:
            continue  # otherwise the background would hide the scan
        # Background is not shown.
        is_shown = label.index > 0
        r, g, b = label.color
        row = line.format(
            number=number,
            name=label.name.replace(" ", "_"),
            shown=int(is_shown),
            opacity=255 if is_shown else 0,
            r=r,
            g=g,
            b=b,
            red=r / 255,
            green=g / 255,
            blue=b / 255,
        )
        rows.append(row + "\n")
    beginning = header.format(scheme=scheme.name, count=len(rows))
    return beginning + "".join(rows)


def _partner_or_itself(label: Label) -> int:
    """Return the index of the label's partner, or its own index if it has none."""
    return label.index if label.partner is None else label.partner


def without_side(name: str) -> str:
    """Return the name without its side.

    "Left-Thalamus" and "Right-Thalamus" become "Thalamus"; "ctx-lh-insula" and "ctx-rh-insula"
    become "insula".
    """
    return re.sub(r"^(ctx-)?(left|right|lh|rh|l|r)[-_ ]", "", name, flags=re.IGNORECASE)


def _normalised(name: str) -> str:
    """Normalise a name for comparison: lower case, one dash between words."""
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only, because it is cached, and return it."""
    array.setflags(write=False)
    return array


def parse_scheme(name: str, table: bytes, path: Path) -> LabelScheme:
    """Parse the bytes of a scheme's TSV file; `path` names the file in errors.

    Raises a LabelError, with the line number, for an invalid scheme.
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
    labels = tuple(_parse_row(row, where) for where, row in rows)
    problem = find_problem(labels)
    if problem:
        raise LabelError(problem, where=path)
    return LabelScheme(name, labels)


def _parse_row(row: dict[str | Any, str | Any], where: str) -> Label:
    """Parse a row of a scheme's table; `row` maps columns to cells.

    `where` names file and line in errors.
    """
    if None in row or None in row.values():
        raise LabelError("has more or fewer cells than the header", where=where)
    cell = {column: value.strip() for column, value in row.items()}
    if cell["side"] not in _SIDES:
        raise LabelError(
            f"{cell['side']!r} is no side", where=where, remedy="left, right or n/a"
        )
    color = _parse_color(cell["color"], where)
    for column in ("name", "abbreviation", "group"):
        if cell[column] in NO_NAME:
            raise LabelError(f"{column} is empty", where=where)
    return Label(
        index=_parse_whole_number(cell["index"], "index", where),
        name=cell["name"],
        fs_id=_parse_whole_number(cell["freesurfer"], "freesurfer", where),
        partner=_parse_optional_number(cell, "partner", where),
        color=color,
        abbreviation=cell["abbreviation"],
        group=cell["group"],
        side=_SIDES[cell["side"]],
        members=_parse_members(cell.get("members", ""), where),
        rim_of=_parse_optional_number(cell, "rim_of", where),
    )


def _parse_color(text: str, where: str) -> tuple[int, int, int]:
    """Parse a colour such as "#CD3E4E" to red, green and blue, each 0 to 255."""
    if not re.fullmatch(r"#[0-9A-Fa-f]{6}", text):
        raise LabelError(
            f"{text!r} is no colour", where=where, remedy="write it as #CD3E4E"
        )
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


def _parse_members(text: str, where: str) -> tuple[int, ...]:
    """Parse whole numbers separated by spaces; () for an empty cell."""
    if text in NO_NAME:
        return ()
    return tuple(_parse_whole_number(word, "members", where) for word in text.split())


def _parse_optional_number(cell: dict[str, str], column: str, where: str) -> int | None:
    """Return the whole number in a cell of a row; None if the cell is empty or missing."""
    text = cell.get(column, "")
    if text in NO_NAME:
        return None
    return _parse_whole_number(text, column, where)


def _parse_whole_number(text: str, column: str, where: str) -> int:
    """Parse a non-negative whole number; raise a LabelError for anything else."""
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise LabelError(f"{column} {text!r} is no whole number", where=where)
    return int(text)
