"""Readers of user tables: label numbers, expected volumes of structures, and norms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trinat.pipelines.study.record import unit_of
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.cells import (
    age_in,
    may_be_thousands,
    number_in,
    sex_in,
)
from trinat.segmentation.io.files import read_rows, read_table
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import COLUMNS, SEXES, Norms

# Importing the report takes half a second, and measuring label maps does not need it.
if TYPE_CHECKING:
    from trinat.pipelines.report.cohort import Range

# Line number, in its file, of the first row of a table.
_FIRST_LINE = 2
# Limits of the numbers in a table of norms; within these limits no z-score overflows.
_LIMITS_OF_NORMS = {
    "age": (0, 120),
    "participants": (1, 1e9),
    "participants_near": (0, 1e9),
    "l": (-10, 10),
    "m": (1e-3, 1e8),
    "s": (1e-6, 10),
    "intracranial_mm3": (1e5, 1e7),
    "intracranial_power": (-5, 5),
}
_WHOLE = ("participants", "participants_near")
# Columns of participants in a table of ranges.
_COLUMNS_OF_PARTICIPANTS = ("sex", "age_from", "age_to")
_ABOUT_PARTICIPANTS = re.compile(r"(^|[^a-z])(age|sex|gender)")
# Matches numbers that may have a thousands separator (2.800) or be below a thousand. Any other
# number in the table shows whether points are decimal points or separators.
_UP_TO_THOUSANDS = re.compile(r"\d{1,3}(\.\d{3})?", re.ASCII)
_BOTH_SEXES = frozenset({"", "all", "any", "both", "b", "mf", "m/f", "m+f"})


@dataclass(frozen=True)
class Mappings:
    """Meaning of the label numbers of the ground truth and of the predictions.

    `truth` and `prediction` map a dataset's own numbers to FreeSurfer numbers. `truth_numbering`
    and `prediction_numbering` are tables that replace FreeSurfer's numbering altogether; None means
    that the other numbers are FreeSurfer's.
    """

    truth: Mapping[int, int] = field(default_factory=dict)
    prediction: Mapping[int, int] = field(default_factory=dict)
    truth_numbering: FoldingTable | None = None
    prediction_numbering: FoldingTable | None = None


def read_mapping(path: Path) -> Mappings:
    """Read a table with columns `number` and `freesurfer`, and optionally `of`.

    `of` is truth (the default), prediction or both. Raises ConfigError, with the line, for any
    other word and for a number that is not whole.
    """
    truth: dict[int, int] = {}
    prediction: dict[int, int] = {}
    rows = read_rows(path, required=("number", "freesurfer"))
    for line, row in enumerate(rows, start=_FIRST_LINE):
        side = row.get("of") or "truth"
        if side not in ("truth", "prediction", "both"):
            raise ConfigError(
                f"line {line}: `of` is truth, prediction or both, not {side!r}",
                where=path,
            )
        try:
            number = int(row["number"])
            freesurfer = int(row["freesurfer"])
        except ValueError:
            raise ConfigError(
                f"line {line}: label numbers are whole numbers", where=path
            ) from None
        sides = {
            "truth": (truth,),
            "prediction": (prediction,),
            "both": (truth, prediction),
        }
        for mapping in sides[side]:
            if mapping.get(number, freesurfer) != freesurfer:
                raise ConfigError(
                    f"line {line}: {number} stands above, too", where=path
                )
            mapping[number] = freesurfer
    return Mappings(truth, prediction)


def read_ranges(path: Path, scheme: LabelScheme) -> list[Range]:
    """Read a table with columns structure, low_mm3, high_mm3, and optionally sex, age_from, age_to.

    A structure is the name or the FreeSurfer number of a structure of the scheme. A range up to a
    whole year includes that year's last day, unless another range begins with that year. Raises
    ConfigError, with the line, for an unknown structure or sex, for limits that are not numbers or
    in the wrong order, and for two ranges of a structure for the same participants.
    """
    from trinat.pipelines.report.cohort import Range

    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    rows = read_rows(path, required=("structure", "low_mm3", "high_mm3"))
    _refuse_unread(rows[0] if rows else (), path)
    volumes = [row[column] for row in rows for column in ("low_mm3", "high_mm3")]
    _refuse_thousands(volumes, path)
    ranges = []
    lines = []
    for line, row in enumerate(rows, start=_FIRST_LINE):
        if not any(row.values()):
            continue
        name = by_number.get(row["structure"], row["structure"])
        if name not in scheme.names:
            raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
        values = {}
        for column in ("low_mm3", "high_mm3", "sex", "age_from", "age_to"):
            cell = row.get(column, "")
            try:
                values[column] = _limit_in(column, cell)
            except ValueError as error:
                what = f"line {line}, {column}: {cell!r} {error}"
                raise ConfigError(what, where=path) from None
        limits = Range(name, **values)
        if limits.low_mm3 > limits.high_mm3:
            raise ConfigError(f"line {line}: low_mm3 is above high_mm3", where=path)
        if limits.age_from > limits.age_to:
            raise ConfigError(f"line {line}: age_from is above age_to", where=path)
        ranges.append(limits)
        lines.append(line)
    ranges = [_to_the_last_day(limits, ranges) for limits in ranges]
    _refuse_overlaps(ranges, lines, path)
    return ranges


def _refuse_overlaps(ranges: Sequence[Range], lines: Sequence[int], path: Path) -> None:
    """Raise ConfigError if two ranges of a structure are for the same participants.

    `lines` has the line of each range. One range may end at the age at which the other begins.
    """
    for (line, one), (other_line, other) in combinations(
        zip(lines, ranges, strict=True), 2
    ):
        if one.structure != other.structure:
            continue
        if one.sex and other.sex and one.sex != other.sex:
            continue
        if max(one.age_from, other.age_from) < min(one.age_to, other.age_to):
            raise ConfigError(
                f"lines {line} and {other_line}: two ranges of {one.structure} for the same "
                "participants",
                where=path,
                remedy="keep one of them, or give each its own sex or ages",
            )


def _refuse_thousands(volumes: Sequence[str], path: Path) -> None:
    """Raise ConfigError for volumes such as 2.800, unless others show whether that is 2800."""
    is_clear = any(not _UP_TO_THOUSANDS.fullmatch(cell) for cell in volumes if cell)
    ambiguous = [cell for cell in volumes if may_be_thousands(cell, number_in)]
    if ambiguous and not is_clear:
        raise ConfigError(
            f"its volumes could be thousands or decimals: {ambiguous[0]}",
            where=path,
            remedy="write thousands without a point: 2800",
        )


def _refuse_unread(titles: Iterable[str], path: Path) -> None:
    """Raise ConfigError for a column about age or sex whose title is not one of the known ones."""
    for title in titles:
        if (
            _ABOUT_PARTICIPANTS.search(title.lower())
            and title not in _COLUMNS_OF_PARTICIPANTS
        ):
            raise ConfigError(
                f"the column {title!r} is not understood",
                where=path,
                remedy="its columns for participants are sex, age_from and age_to",
            )


def ranges_for_all(
    path: Path, scheme: LabelScheme
) -> tuple[tuple[str, float, float], ...]:
    """Return the ranges of a table that hold for any participant.

    Each is (structure, lowest, highest) with limits in mm³. Raises ConfigError if every range is
    limited to a sex or to ages.
    """
    found = tuple(
        (limits.structure, limits.low_mm3, limits.high_mm3)
        for limits in read_ranges(path, scheme)
        if not limits.is_for_some
    )
    if not found:
        raise ConfigError(
            "every range is for one sex or some ages, which are not known of a scan",
            where=path,
            remedy="give ranges without sex and age, or norms, or use trinat report",
        )
    return found


def is_of_norms(path: Path) -> bool:
    """Return True if the column names are those of a table of `trinat norms`."""
    return {"l", "m", "s", "unit"} <= set(read_table(path).titles)


def read_norms(path: Path, scheme: LabelScheme) -> Norms:
    """Read a table as `trinat norms` writes it; a structure may also be a FreeSurfer number.

    Raises ConfigError, with the line, for an unknown structure or sex, for a cell that is not a
    number, for ages that do not rise, and for several models or several head sizes in one curve.
    """
    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    rows = read_rows(path, required=COLUMNS)
    if not rows:
        raise ConfigError("has no rows", where=path)
    volumes = [row["m"] for row in rows if row["unit"] == "mm3"]
    _refuse_thousands(volumes, path)
    last: dict[tuple[str, str], float] = {}
    heads: dict[tuple[str, str], tuple[str, str]] = {}
    for line, row in enumerate(rows, start=_FIRST_LINE):
        row["structure"] = by_number.get(row["structure"], row["structure"])
        _refuse_structure(row["structure"], row["unit"], scheme, line, path)
        if row["sex"] not in SEXES:
            what = f"line {line}: sex is F or M, not {row['sex']!r}"
            raise ConfigError(what, where=path)
        needs_head = bool(row["intracranial_power"])
        for column, (low, high) in _LIMITS_OF_NORMS.items():
            if column.startswith("intracranial") and not needs_head:
                continue
            try:
                number = number_in(row[column])
                if not low <= number <= high:
                    raise ValueError(f"is not from {low:g} to {high:g}")
                if column in _WHOLE and not number.is_integer():
                    raise ValueError("is no whole number")
            except ValueError as error:
                what = f"line {line}, {column}: {row[column]!r} {error}"
                raise ConfigError(what, where=path) from None
            row[column] = f"{number:.12g}"
        curve = row["structure"], row["sex"]
        age = float(row["age"])
        if age <= last.get(curve, -np.inf):
            what = f"line {line}: the ages of {curve[0]}, {curve[1]} do not rise"
            raise ConfigError(what, where=path)
        last[curve] = age
        head = ("", "")
        if needs_head:
            head = row["intracranial_mm3"], row["intracranial_power"]
        if head != heads.setdefault(curve, head):
            what = f"line {line}: the head size or its power of {curve[0]}, {curve[1]} changes"
            raise ConfigError(what, where=path)
        if row["model"] != rows[0]["model"]:
            raise ConfigError(
                f"line {line}: norms of the model {row['model']}, after those of "
                f"{rows[0]['model']}",
                where=path,
                remedy="keep the rows of one model",
            )
    return Norms.of(rows)


def _refuse_structure(
    name: str, unit: str, scheme: LabelScheme, line: int, path: Path
) -> None:
    """Raise ConfigError for an unknown structure or measure, or for an unexpected unit."""
    expected = "mm3" if name in scheme.names else unit_of(name)
    if not expected:
        raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
    if unit != expected:
        what = f"line {line}: the unit of {name} is {expected}, not {unit!r}"
        raise ConfigError(what, where=path)


def refuse_other_model(norms: Norms, table: Path, models: Iterable[str]) -> None:
    """Raise ConfigError if norms and volumes are of different models.

    `table` is the path of the norms, and `models` are the SHA-256 of the models that made the
    volumes.
    """
    others = {model for model in models if model}
    if norms.model and others - {norms.model}:
        raise ConfigError(
            f"these norms were made from volumes of another model, {norms.model}",
            where=table,
            remedy="segment the controls with the model of the scans, and make norms from them",
        )


def _limit_in(column: str, cell: str) -> Any:
    """Read a cell of a table of ranges; raise ValueError if it cannot be read.

    An empty age sets no limit (infinity), and an empty sex stands for both ("").
    """
    if column == "sex":
        return "" if cell.casefold() in _BOTH_SEXES else sex_in(cell)
    if column == "age_from":
        return age_in(cell) if cell else -np.inf
    if column == "age_to":
        return age_in(cell) if cell else np.inf
    return number_in(cell)


def _to_the_last_day(limits: Range, ranges: Iterable[Range]) -> Range:
    """Extend a range to the end of its last year: 20 to 29 includes all ages below 30."""
    # A range ends where another range begins that is for the same sex, or if either is for both
    # sexes.
    begins_another = any(
        other.age_from == limits.age_to
        for other in ranges
        if other.structure == limits.structure
        and (other.sex == limits.sex or not other.sex or not limits.sex)
    )
    if begins_another or not float(limits.age_to).is_integer():
        return limits
    return replace(limits, age_to=np.nextafter(limits.age_to + 1, 0))
