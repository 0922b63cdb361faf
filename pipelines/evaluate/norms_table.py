"""Reader of tables of norms: normative values of structures by age and sex, from `trinat norms`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trinat.pipelines.study.record import unit_of
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.cells import may_be_thousands, number_in
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.norms import COLUMNS, LISTED, MEASURED, SEXES, Norms

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
# Matches numbers that may have a thousands separator (2.800) or be below a thousand. Any other
# number in the table shows whether points are decimal points or separators.
_UP_TO_THOUSANDS = re.compile(r"\d{1,3}(\.\d{3})?", re.ASCII)


def _refuse_thousands(volumes: Sequence[str], path: Path) -> None:
    """Raise ConfigError if a volume such as 2.800 may mean 2.8 or 2800.

    `volumes` are the cells of the column. Nothing is raised if another cell shows which is meant,
    such as 2800.5 or 12345. `path` is the table, for the message.
    """
    is_clear = any(not _UP_TO_THOUSANDS.fullmatch(cell) for cell in volumes if cell)
    ambiguous = [cell for cell in volumes if may_be_thousands(cell, number_in)]
    if ambiguous and not is_clear:
        raise ConfigError(
            f"its volumes could be thousands or decimals: {ambiguous[0]}",
            where=path,
            remedy="write thousands without a point: 2800",
        )


def read_norms(path: Path, scheme: LabelScheme) -> Norms:
    """Read a table of normative values, as `trinat norms` writes it.

    The column structure may also have FreeSurfer numbers. Raises ConfigError, with the line, for an
    unknown structure or sex, for a cell that is not a number or is out of range, for ages that do
    not rise, and for several models or several head sizes in one curve.
    """
    by_number = {str(label.fs_id): label.name for label in scheme.labels}
    # Tables of others, and older ones, have no column of sources.
    required = tuple(column for column in COLUMNS if column != "intracranial_from")
    rows = read_rows(path, required=required)
    if not rows:
        raise ConfigError("has no rows", where=path)
    volumes = [row["m"] for row in rows if row["unit"] == "mm3"]
    _refuse_thousands(volumes, path)
    last: dict[tuple[str, str], float] = {}
    heads: dict[tuple[str, str], tuple[str, ...]] = {}
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
        head: tuple[str, ...] = ()
        if needs_head:
            source = row.get("intracranial_from") or MEASURED
            row["intracranial_from"] = source
            if source not in (MEASURED, LISTED):
                what = f"line {line}: intracranial_from is {MEASURED} or {LISTED}, not {source!r}"
                raise ConfigError(what, where=path)
            head = row["intracranial_mm3"], row["intracranial_power"], source
        if head != heads.setdefault(curve, head):
            what = (
                f"line {line}: the head size, its power or its source of "
                f"{curve[0]}, {curve[1]} changes"
            )
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
    """Raise ConfigError if a row of norms has an unknown structure or measure, or a wrong unit.

    `name` and `unit` are the cells of the row, `line` is its number in the file `path`.
    """
    expected = "mm3" if name in scheme.names else unit_of(name)
    if not expected:
        raise ConfigError(f"line {line}: {scheme.name} has no {name!r}", where=path)
    if unit != expected:
        what = f"line {line}: the unit of {name} is {expected}, not {unit!r}"
        raise ConfigError(what, where=path)


def refuse_other_model(norms: Norms, table: Path, models: Iterable[str]) -> None:
    """Raise ConfigError if normative values and volumes come from different segmentation models.

    `table` is the path of the norms, and `models` are the SHA-256 of the models that made the
    volumes; "" for an unknown model.
    """
    others = {model for model in models if model}
    if norms.model and others - {norms.model}:
        raise ConfigError(
            f"these norms were made from volumes of another model, {norms.model}",
            where=table,
            remedy="segment the controls with the model of the scans, and make norms from them",
        )
