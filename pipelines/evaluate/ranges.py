"""Expected volumes of structures, read from a user's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trinat.segmentation.data.people import age_in, number_in, sex_in
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.cohort import Range

_COLUMNS = ("structure", "low_mm3", "high_mm3")
# The first row of a table is on this line of its file.
_FIRST_LINE = 2
_BOTH_SEXES = frozenset({"", "all", "any", "both", "b", "mf", "m/f", "m+f"})


def _sex(cell: str) -> str:
    """M or F; empty for a range that is for both sexes."""
    return "" if cell.casefold() in _BOTH_SEXES else sex_in(cell)


def _age_from(cell: str) -> float:
    """The age in a cell; an empty one sets no limit."""
    return age_in(cell) if cell else -np.inf


def _age_to(cell: str) -> float:
    """The age in a cell; an empty one sets no limit."""
    return age_in(cell) if cell else np.inf


# How the cells of each column are read.
_VALUES: dict[str, Callable[[str], Any]] = {
    "low_mm3": number_in,
    "high_mm3": number_in,
    "sex": _sex,
    "age_from": _age_from,
    "age_to": _age_to,
}


def read_ranges(path: Path, scheme: LabelScheme) -> list[Range]:
    """A table with columns structure, low_mm3 and high_mm3, and maybe sex, age_from and age_to.

    A structure is the name or the FreeSurfer number of one of the scheme's. A range to a whole year
    includes that year's last day, unless another range begins with that year. ConfigError with its
    row for an unknown structure or sex, and for limits that are no numbers or the wrong way round.
    """
    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    ranges = []
    for line, row in enumerate(read_rows(path, required=_COLUMNS), start=_FIRST_LINE):
        name = by_number.get(row["structure"], row["structure"])
        if name not in scheme.names:
            raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
        values = {}
        for column, value_in in _VALUES.items():
            cell = row.get(column, "")
            try:
                values[column] = value_in(cell)
            except ValueError as error:
                what = f"line {line}, {column}: {cell!r} {error}"
                raise ConfigError(what, where=path) from None
        limits = Range(name, **values)
        if limits.low_mm3 > limits.high_mm3:
            raise ConfigError(f"line {line}: low_mm3 is above high_mm3", where=path)
        if limits.age_from > limits.age_to:
            raise ConfigError(f"line {line}: age_from is above age_to", where=path)
        ranges.append(limits)
    return [_to_the_last_day(limits, ranges) for limits in ranges]


def _to_the_last_day(limits: Range, ranges: Iterable[Range]) -> Range:
    """A range with the end of its last year: 20 to 29 goes on to the 30th birthday."""
    begins_another = any(
        other.age_from == limits.age_to
        for other in ranges
        if (other.structure, other.sex) == (limits.structure, limits.sex)
    )
    if begins_another or not float(limits.age_to).is_integer():
        return limits
    return replace(limits, age_to=np.nextafter(limits.age_to + 1, 0))
