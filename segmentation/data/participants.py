"""participants.tsv: age, sex and family of persons, as BIDS writes it, with a `family` column."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from segmentation.errors import DatasetError
from segmentation.io.files import open_regular

__all__ = ["Facts", "read_participants", "read_rows"]

_UNKNOWN = frozenset({"", "n/a", "nan", "na", "unknown"})


@dataclass(frozen=True)
class Facts:
    age: float | None = None
    sex: str | None = None
    family: str | None = None


def read_participants(path: Path) -> dict[str, Facts]:
    """Person -> what is known; a missing file knows nothing."""
    if not path.exists():
        return {}
    people = {}
    for row in read_rows(path, required=("participant_id",)):
        age = row.get("age", "")
        try:
            years = float(age) if age else None
        except ValueError:
            # BIDS censors great ages as 89+.
            years = float(age.rstrip("+")) if age.rstrip("+").isdigit() else None
        sex = row.get("sex", "")[:1].upper()
        people[row["participant_id"]] = Facts(
            years, sex if sex in {"M", "F"} else None, row.get("family") or None
        )
    return people


def read_rows(path: Path, *, required: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows of a .csv or .tsv with a header; what is not known becomes an empty string."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    try:
        with TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter=delimiter, restval="")
            missing = [name for name in required if name not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(f"has no column {missing[0]!r}", where=path)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"not a table in UTF-8 ({error})", where=path) from None
    return [
        {
            key: "" if value.strip().lower() in _UNKNOWN else value.strip()
            for key, value in row.items()
            if isinstance(value, str)
        }
        for row in rows
    ]
