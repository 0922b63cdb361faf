"""Expected volumes of structures, read from a user's table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.cohort import Range

_COLUMNS = ("structure", "low_mm3", "high_mm3")
# The first row of a table is on this line of its file.
_FIRST_LINE = 2


def read_ranges(path: Path, scheme: LabelScheme) -> list[Range]:
    """A table with columns structure, low_mm3 and high_mm3, and maybe sex, age_from and age_to.

    A structure is the name or the FreeSurfer number of one of the scheme's. An unknown one, and
    limits that are no numbers or the wrong way round, are a ConfigError with their line.
    """
    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    ranges = []
    rows = read_rows(path, required=_COLUMNS)
    for line, row in enumerate(rows, start=_FIRST_LINE):
        name = by_number.get(row["structure"], row["structure"])
        if name not in scheme.names:
            raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
        try:
            limits = Range(
                structure=name,
                low_mm3=float(row["low_mm3"]),
                high_mm3=float(row["high_mm3"]),
                sex=row.get("sex", "")[:1].upper(),
                age_from=_age(row.get("age_from", ""), default=-np.inf),
                age_to=_age(row.get("age_to", ""), default=np.inf),
            )
        except ValueError:
            raise ConfigError(
                f"line {line}: not a number among the limits", where=path
            ) from None
        # Not `low > high`: a limit may be NaN, which is refused, too.
        if not limits.low_mm3 <= limits.high_mm3:
            raise ConfigError(f"line {line}: low_mm3 is above high_mm3", where=path)
        ranges.append(limits)
    return ranges


def _age(cell: str, *, default: float) -> float:
    """The age in a cell; an empty one sets no limit."""
    if not cell:
        return default
    return float(cell)
