"""Label schemes: which structures a network tells apart, and their FreeSurfer numbers.

The facts stand in `configs/labels/*.tsv`, one table per scheme. Networks see class indices
0..K-1; files hold FreeSurfer numbers.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.labels.folding import (
    MAX_CLASSES,
    Folding,
    FoldingTable,
    folding_table,
    outer_rim,
)
from trinat.segmentation.space.views import View

# A target that no loss looks at: neither rewarded nor punished, whatever is predicted there.
IGNORE = 255

Side = Literal["left", "right"]
Viewer = Literal["freesurfer", "itksnap", "slicer", "fsleyes"]

SHIPPED = ("quicknat33", "tissue4", "left4")
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
# Lines before a viewer's table, and the line of a label; background is clear. docs/prediction.md
# says where each form is from.
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


@dataclass(frozen=True)
class Label:
    """One class; `partner` is the index of the same structure on the other side."""

    index: int
    name: str
    fs_id: int
    partner: int | None
    color: tuple[int, int, int]
    abbreviation: str
    group: str
    side: Side | None = None
    members: tuple[
        int, ...
    ] = ()  # FreeSurfer numbers that belong here; empty: `fs_id` alone
    rim_of: int | None = (
        None  # if a map lacks it, it is the one-voxel rim around that class
    )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The FreeSurfer numbers that are this class."""
        return self.members or (self.fs_id,)


@dataclass(frozen=True)
class LabelScheme:
    """The classes of a network in the order of its channels; class 0 is background."""

    name: str
    labels: tuple[Label, ...]

    def __post_init__(self) -> None:
        if problem := _find_problem(self.labels):
            raise LabelError(f"{self.name}: {problem}")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @cached_property
    def fs_ids(self) -> NDArray[np.int16]:
        """FreeSurfer number of each class, (K,)."""
        return _frozen(np.array([label.fs_id for label in self.labels], np.int16))

    @cached_property
    def partner_permutation(self) -> NDArray[np.int64]:
        """Index of each class after left and right have changed places, (K,)."""
        partners = [x.index if x.partner is None else x.partner for x in self.labels]
        return _frozen(np.array(partners, np.int64))

    @property
    def has_unpartnered_sides(self) -> bool:
        """Whether a class lies on one side only, so that a mirrored scan has another truth."""
        return any(
            label.side is not None and label.partner is None for label in self.labels
        )

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
        """Class index of each voxel of a map of FreeSurfer numbers, (X, Y, Z) to (X, Y, Z).

        With `fold` the map has the numbers of that table instead. `extra` maps numbers to
        FreeSurfer numbers and `ignore` lists numbers that become background, both before any
        table. `spacing_mm` decides which side is nearest; `where` names the file in errors.
        """
        array = np.asarray(array)
        if not np.issubdtype(array.dtype, np.integer):
            raise LabelError(
                f"label numbers are integers, not {array.dtype}",
                where=where,
                remedy="read the file as labels",
            )
        folding = Folding.build(self.name, self._classes, extra or {}, ignore, fold)
        indices = folding.apply(array, spacing_mm, where)
        for label in self.labels:
            if label.rim_of is not None and not (indices == label.index).any():
                indices[outer_rim(indices == label.rim_of) & (array == 0)] = label.index
        return indices

    def classes_of_number(self, number: int) -> set[int]:
        """Classes that voxels of a FreeSurfer number may become; none where it is not known.

        Two for a number that joins the nearest side.
        """
        if number in self._classes:
            return {self._classes[number]}
        folded = folding_table().get(number, ())
        return {self._classes[target] for target in folded if target in self._classes}

    def to_freesurfer(self, indices: NDArray[Any]) -> NDArray[np.int16]:
        """FreeSurfer numbers of a map of class indices."""
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
        """The scheme of a network that cannot tell left from right: one class per pair."""
        if self.has_unpartnered_sides:
            raise LabelError(
                f"{self.name} has classes on one side only, which a sagittal slice cannot show",
                remedy="use the coronal and axial views",
            )
        kept = [x for x in self.labels if x.partner is None or x.index < x.partner]
        to_merged = np.zeros(len(self), np.int64)
        for index, label in enumerate(kept):
            to_merged[
                [label.index, label.index if label.partner is None else label.partner]
            ] = index
        labels = []
        for index, label in enumerate(kept):
            sides = np.flatnonzero(to_merged == index)
            members = tuple(
                number for side in sides for number in self.labels[side].numbers
            )
            rim_of = None if label.rim_of is None else int(to_merged[label.rim_of])
            name, short = _without_side(label.name), _without_side(label.abbreviation)
            one = replace(
                label, index=index, name=name, abbreviation=short, members=members
            )
            labels.append(replace(one, partner=None, side=None, rim_of=rim_of))
        return MergedScheme(
            LabelScheme(f"{self.name}-merged", tuple(labels)), _frozen(to_merged)
        )

    def seen_in(self, view: View) -> LabelScheme:
        """The classes that slices of a view tell apart: sagittal ones show no left and right."""
        return self.merged.scheme if view is View.SAGITTAL else self

    def find(self, structure: str | int) -> Label:
        """The label with this name, abbreviation or FreeSurfer number.

        Upper and lower case are the same, and so are spaces, underscores and dashes.
        """
        spoken: dict[str, list[str]] = {}
        for label in self.labels:
            full = {label.name, label.abbreviation, str(label.fs_id)}
            for word in {
                _spoken(word) for word in full | set(map(_without_side, full))
            }:
                spoken.setdefault(word, []).append(label.name)
        wanted = _spoken(str(structure))
        match spoken.get(wanted, []):
            case [name]:
                return self.labels[self.names.index(name)]
            case [_, *_] as names:
                raise LabelError(
                    f"{structure} has two sides", remedy=f"name {' or '.join(names)}"
                )
        words = [word for word in spoken if not word.isdecimal()]
        near = [
            name
            for word in difflib.get_close_matches(wanted, words)
            for name in spoken[word]
        ]
        raise LabelError(
            f"{structure!r} is no structure of {self.name}",
            remedy=f"did you mean {' or '.join(dict.fromkeys(near))}?"
            if near
            else f"give a name, an abbreviation or a FreeSurfer number, such as {self.names[1]}",
        )

    @cached_property
    def _classes(self) -> dict[int, int]:
        return {
            number: label.index for label in self.labels for number in label.numbers
        }


@dataclass(frozen=True, eq=False)
class MergedScheme:
    """`to_merged[k]` is the merged class of class k: `merged_values[to_merged]` expands."""

    scheme: LabelScheme
    to_merged: NDArray[np.int64]


def load_scheme(name_or_path: str | Path) -> LabelScheme:
    """A shipped scheme by its name (quicknat33, tissue4, left4), or one's own from a TSV file."""
    # A shipped name wins over a file of that name: the same command means the same everywhere.
    if str(name_or_path) in SHIPPED:
        return _load_shipped(str(name_or_path))
    path = Path(name_or_path)
    if not path.is_file():
        raise LabelError(
            "no such label scheme",
            where=path,
            remedy=f"give a TSV file or one of {', '.join(SHIPPED)}",
        )
    return parse_scheme(path.stem, read_bytes(path), path)


@cache
def _load_shipped(name: str) -> LabelScheme:
    file = resources.files("trinat.configs") / "labels" / f"{name}.tsv"
    return parse_scheme(name, file.read_bytes(), Path(file.name))


def parse_scheme(name: str, table: bytes, path: Path) -> LabelScheme:
    """A scheme from the content of its TSV file; `path` names the file in errors."""
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
    missing = [column for column in _REQUIRED if column not in columns]
    unknown = [column for column in columns if column not in _REQUIRED + _OPTIONAL]
    if missing or unknown:
        raise LabelError(
            f"has {'no column' if missing else 'an unknown column'} {(missing or unknown)[0]!r}",
            where=path,
            remedy=f"tab-separated columns: {' '.join(_REQUIRED)}, optional {' '.join(_OPTIONAL)}",
        )
    labels = tuple(_parse_row(row, where) for where, row in rows)
    if problem := _find_problem(labels):
        raise LabelError(problem, where=path)
    return LabelScheme(name, labels)


def _parse_row(row: dict[str | Any, str | Any], where: str) -> Label:
    if None in row or None in row.values():
        raise LabelError("has more or fewer cells than the header", where=where)
    cell = {column: value.strip() for column, value in row.items()}
    if cell["side"] not in ("left", "right", *_ABSENT):
        raise LabelError(
            f"{cell['side']!r} is no side", where=where, remedy="left, right or n/a"
        )
    if not re.fullmatch(r"#[0-9A-Fa-f]{6}", cell["color"]):
        raise LabelError(
            f"{cell['color']!r} is no colour", where=where, remedy="write it as #CD3E4E"
        )
    for column in ("name", "abbreviation", "group"):
        if cell[column] in _ABSENT:
            raise LabelError(f"{column} is empty", where=where)

    def whole(text: str, column: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text):
            raise LabelError(f"{column} {text!r} is no whole number", where=where)
        return int(text)

    def optional(column: str) -> int | None:
        text = cell.get(column, "")
        return None if text in _ABSENT else whole(text, column)

    members = cell.get("members", "")
    side: dict[str, Side] = {"left": "left", "right": "right"}
    red, green, blue = bytes.fromhex(cell["color"][1:])
    return Label(
        index=whole(cell["index"], "index"),
        name=cell["name"],
        fs_id=whole(cell["freesurfer"], "freesurfer"),
        partner=optional("partner"),
        color=(red, green, blue),
        abbreviation=cell["abbreviation"],
        group=cell["group"],
        side=side.get(cell["side"]),
        members=()
        if members in _ABSENT
        else tuple(whole(word, "members") for word in members.split()),
        rim_of=optional("rim_of"),
    )


def _find_problem(labels: tuple[Label, ...]) -> str:
    """What keeps `labels` from being a scheme, or nothing."""
    if not 2 <= len(labels) <= MAX_CLASSES:
        return f"has {len(labels)} classes, not 2 to {MAX_CLASSES}"
    if [label.index for label in labels] != list(range(len(labels))):
        return "indices do not count up from 0"
    if labels[0].fs_id != 0:
        return f"class 0 is background, FreeSurfer number 0, not {labels[0].fs_id}"
    largest = np.iinfo(np.int16).max
    for label in labels:
        if label.fs_id > largest or label.fs_id < 0:
            return f"FreeSurfer number {label.fs_id} of {label.name} is not in 0 to {largest}"
        if problem := _find_partner_problem(label, labels):
            return problem
        if label.rim_of is not None and not 0 < label.rim_of < len(labels):
            return f"{label.name} is the rim of {label.rim_of}, which is no class"
    stated: dict[str, Counter[Any]] = {
        "name": Counter(label.name for label in labels),
        "FreeSurfer number": Counter(label.fs_id for label in labels),
        "member": Counter(number for label in labels for number in label.numbers),
    }
    twice = [
        f"{what} {value}"
        for what, of in stated.items()
        for value in of
        if of[value] > 1
    ]
    return f"{twice[0]} occurs twice" if twice else ""


def _find_partner_problem(label: Label, labels: tuple[Label, ...]) -> str:
    if label.partner is None:
        return ""
    if not 0 <= label.partner < len(labels):
        return f"partner {label.partner} of {label.name} is no class"
    partner = labels[label.partner]
    if partner.partner != label.index:
        return f"{label.name} has partner {partner.name}, but not the other way round"
    if {label.side, partner.side} != {"left", "right"}:
        return (
            f"partners {label.name} and {partner.name} are not one left and one right"
        )
    return ""


def _without_side(name: str) -> str:
    return re.sub(r"^(left|right|l|r)[-_ ]", "", name, flags=re.IGNORECASE)


def _spoken(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def viewer_table(scheme: LabelScheme, viewer: Viewer, *, by_index: bool = False) -> str:
    """The scheme's labels for a viewer, in ascending order of their numbers in label maps."""
    header, line = _FORMS[viewer]
    rows = []
    for label in sorted(
        scheme.labels, key=lambda label: label.index if by_index else label.fs_id
    ):
        if viewer == "fsleyes" and not label.index:
            continue  # or the scan would be hidden behind background
        r, g, b = label.color
        row = line.format(
            number=label.index if by_index else label.fs_id,
            name=label.name.replace(" ", "_"),
            shown=int(label.index > 0),
            opacity=255 if label.index else 0,
            **{
                "r": r,
                "g": g,
                "b": b,
                "red": r / 255,
                "green": g / 255,
                "blue": b / 255,
            },
        )
        rows.append(row + "\n")
    return header.format(scheme=scheme.name, count=len(rows)) + "".join(rows)
