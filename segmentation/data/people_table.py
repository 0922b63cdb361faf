"""The one reader of tables of persons: ages, sexes, groups, families and head sizes.

A table is BIDS' participants.tsv, one of those that IXI and OASIS come with, or a lab's own with
the same titles. What is not understood is not guessed: it is named by row and column, in `doubts`.
What could be read in two ways, with other facts for somebody, is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trinat.segmentation.data.people import Facts, People
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.files import Table, read_table, read_text

# What stands in a cell of a number or a code where nothing is known.
_MISSING = frozenset(
    {"", "n/a", "na", "#n/a", "nan", "none", "null", "unknown", "-", "?", "."}
)
# A name may be any of these words; BIDS writes n/a for a name that is not known.
_NO_NAME = frozenset({"", "n/a"})

_WORDS_OF_SEX = {
    "M": ("m", "male", "man", "boy", "männlich", "mann", "homme", "hombre"),
    "F": ("f", "female", "woman", "girl", "w", "weiblich", "frau", "femme", "mujer"),
}
_SEXES = {word: sex for sex, words in _WORDS_OF_SEX.items() for word in words}
# What IXI's table has in its column SEX_ID.
_IXI_CODES = {"1": "m", "2": "f"}

# How many of each are a year.
_PER_YEAR = {
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 1.0),
    **dict.fromkeys(("m", "mo", "month", "months"), 12.0),
    **dict.fromkeys(("w", "wk", "week", "weeks"), 365.25 / 7),
    **dict.fromkeys(("d", "day", "days"), 365.25),
}
_MM3_OF = {
    **dict.fromkeys(("mm3", "mm³", "mm^3"), 1.0),
    **dict.fromkeys(("cm3", "cm³", "cm^3", "cc", "ccm", "ml"), 1e3),
    **dict.fromkeys(("l", "dm3", "dm³", "liter", "litre", "liters", "litres"), 1e6),
}
# How a unit of volume is called in what is said of a table.
_UNIT_NAMES = {1.0: "mm³", 1e3: "cm³", 1e6: "l"}
_AGES = (0.0, 120.0)
_INTRACRANIAL_MM3 = (0.7e6, 2.3e6)

# A number with a decimal point, or with a decimal comma that no one can take for another thing.
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DECIMAL_COMMA = re.compile(
    r"[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)", re.ASCII
)
# 1,400,000 and 1,400,000.5; 1.400.000 and 1.400.000,5; 1 400 000.
_GROUPED = re.compile(
    r"[+-]?\d{1,3}(?:(?:,\d{3}){2,}(?:\.\d+)?|,\d{3}\.\d+|(?:\.\d{3}){2,}(?:,\d+)?|\.\d{3},\d+"
    r"|(?:[ \u00a0\u202f']\d{3})+(?:[.,]\d+)?)",
    re.ASCII,
)


@dataclass(frozen=True)
class _Column:
    """A column of a table that is understood: its place and title, and how its cells are read.

    `unit` is how many of its ages are a year, or how many mm³ its volumes are counted in; None
    where nothing says it. `codes` are what its cells stand for, as far as anything says so.
    """

    place: int
    title: str
    unit: float | None = None
    codes: Mapping[str, str] | None = None


class _ValueIn(Protocol):
    """Reads a cell of a column; ValueError with what is wrong with it."""

    def __call__(self, cell: str, column: _Column) -> float: ...


def read_people(path: Path) -> People:
    """What a table knows of each person; a missing file knows nothing.

    DatasetError for what is no table, for one that names no persons, and for what contradicts
    itself: two columns of one thing, two rows of one person, volumes in several units.
    """
    if not path.exists():
        return People({}, {})
    table = read_table(path)
    sidecar = _sidecar(path)
    return _Reader(path, table, sidecar).people()


def _sidecar(table: Path) -> Mapping[str, Any]:
    """What participants.json says of columns, as BIDS has it: their Units and Levels."""
    path = table.with_suffix(".json")
    if table.suffix.lower() != ".tsv" or not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path, "utf-8-sig"))
    except ValueError:
        raise DatasetError(
            "is no JSON", where=path, remedy="mend it, or move it away"
        ) from None
    return content if isinstance(content, dict) else {}


class _Reader:
    """A table on its way to facts: collects what is to be said of it."""

    def __init__(self, path: Path, table: Table, sidecar: Mapping[str, Any]) -> None:
        self._path = path
        self._table = table
        self._sidecar = sidecar
        self._notes: list[str] = []
        self._doubts: list[str] = []
        self._columns = self._find_columns()

    def people(self) -> People:
        """The facts of all rows, and what is to be said of them."""
        names = self._persons()
        numbers_of = [row.number for row in self._table.rows]
        columns: dict[str, list[Any]] = {
            "age": self._values(
                "age", lambda cell, column: age_in(cell, column.unit or 1)
            ),
            "sex": self._sexes(),
            "family": [name or None for name in self._names("family")],
            "site": self._names("site"),
            "group": self._names("group"),
            "intracranial_mm3": self._intracranial_mm3(),
        }
        facts: dict[str, Facts] = {}
        first_row: dict[str, int] = {}
        for place, name in enumerate(names):
            if not name:
                continue
            found = Facts(**{kind: values[place] for kind, values in columns.items()})
            number = numbers_of[place]
            if name in facts:
                found = self._joined(name, facts[name], found, first_row[name], number)
            facts[name] = found
            first_row.setdefault(name, number)
        titles = {kind: columns[0].title for kind, columns in self._columns.items()}
        return People(facts, titles, tuple(self._notes), tuple(self._doubts))

    def _find_columns(self) -> dict[str, list[_Column]]:
        """The columns of each kind of fact; of names and groups the first title that is there."""
        found: dict[str, list[_Column]] = {}
        titles = [_Title.of(title) for title in self._table.titles]
        for kind, words in _NAMES.items():
            for word in words:
                places = [n for n, title in enumerate(titles) if title.name == word]
                columns = [_Column(n, titles[n].text) for n in places]
                if columns and kind in found:
                    self._name_second(kind, found[kind][0], columns[0])
                elif columns:
                    found[kind] = columns
        if "person" not in found:
            raise DatasetError(
                "has no column 'participant_id'",
                where=self._path,
                remedy="call the column of the persons' names so, as BIDS does (IXI has IXI_ID, "
                "OASIS has ID)",
            )
        for kind, read in _VALUES.items():
            columns = []
            for place, title in enumerate(titles):
                column = read(place, title, self._described(title))
                if column is not None:
                    columns.append(column)
            if columns:
                found[kind] = columns
        self._name_unread(titles, found)
        return found

    def _name_second(self, kind: str, first: _Column, second: _Column) -> None:
        """Say which column of a study's facts is not read where another one differs from it."""
        differ = any(
            row.cells[first.place] != row.cells[second.place]
            for row in self._table.rows
        )
        if kind in _OF_STUDIES and differ:
            self._notes.append(f"{second.title!r} is not read, as {first.title!r} is")

    def _name_unread(
        self, titles: Sequence[_Title], found: Mapping[str, Sequence[_Column]]
    ) -> None:
        """Say which columns are not read, where users may think that they are."""
        is_read = {column.place for columns in found.values() for column in columns}
        for kind, words in _LIKE.items():
            if kind in found:
                continue
            for place, title in enumerate(titles):
                if place in is_read or not words.search(title.name):
                    continue
                what = f"{title.text!r} is not read as {_KINDS[kind]}"
                unit = _unit_said(self._described(title))
                is_age = kind == "age" and _AGE.fullmatch(title.name)
                if is_age and unit and unit not in _PER_YEAR:
                    why = f"its unit {unit!r} is not known"
                else:
                    why = "give the column a plain title if it is"
                self._doubts.append(f"{what}: {why}")

    def _described(self, title: _Title) -> Mapping[str, Any]:
        """What participants.json says of a column."""
        described = self._sidecar.get(title.text)
        return described if isinstance(described, dict) else {}

    def _persons(self) -> list[str]:
        """The name of each row's person, empty where it has none."""
        names = self._names("person")
        is_ixi = _Title.of(self._columns["person"][0].title).name == "ixi id"
        for place, row in enumerate(self._table.rows):
            name = names[place]
            if not name:
                self._doubts.append(f"row {row.number}: names no person")
            elif is_ixi:
                if not re.fullmatch(r"\d+", name, re.ASCII):
                    raise DatasetError(
                        f"row {row.number}: IXI_ID is a whole number", where=self._path
                    )
                names[place] = f"IXI{int(name):03d}"
        return names

    def _names(self, kind: str) -> list[str]:
        """The names in the column of a kind, as they stand; empty where there is none."""
        names = []
        for row in self._table.rows:
            found = ""
            for column in self._columns.get(kind, ()):
                cell = row.cells[column.place]
                if cell.lower() in _NO_NAME:
                    continue
                if found and cell != found:
                    raise self._two_columns(row.number, kind)
                found = cell
            names.append(found)
        return names

    def _sexes(self) -> list[str | None]:
        """The sex of each row's person is M or F; None where it is not known."""
        rows_of: dict[str, list[int]] = defaultdict(list)
        cells = {
            row.cells[column.place].casefold()
            for row in self._table.rows
            for column in self._columns.get("sex", ())
        }
        # Hombre and mujer: an M that is a woman.
        if "h" in cells and "m" in cells:
            raise DatasetError(
                "H and M for sex: M could be a man or a woman",
                where=self._path,
                remedy="write M and F",
            )
        sexes = []
        for row in self._table.rows:
            found = None
            for column in self._columns.get("sex", ()):
                cell = row.cells[column.place]
                if cell.casefold() in _MISSING:
                    continue
                word = cell.casefold()
                if column.codes:
                    word = column.codes.get(word, word)
                try:
                    sex = sex_in(word)
                except ValueError:
                    rows_of[cell].append(row.number)
                    continue
                if found and sex != found:
                    raise self._two_columns(row.number, "sex")
                found = sex
            sexes.append(found)
        for cell, numbers in rows_of.items():
            rows = f"row {numbers[0]}"
            if len(numbers) > 1:
                rows = f"{rows} and {len(numbers) - 1} more"
            self._doubts.append(f"{rows}, sex: {cell!r} is not understood")
        return sexes

    def _intracranial_mm3(self) -> list[float | None]:
        """Intracranial volumes in mm³; where no title says the unit, by their size."""
        low, high = _INTRACRANIAL_MM3
        kind = "intracranial_mm3"
        units = {}
        for column in self._columns.get(kind, ()):
            units[column.place] = column.unit or self._unit_by_size(column)

        def volume_in(cell: str, column: _Column) -> float:
            unit = units[column.place]
            volume_mm3 = number_in(cell) * unit
            if not low <= volume_mm3 <= high:
                limits = (
                    f"from {low / unit:,.7g} to {high / unit:,.7g} {_UNIT_NAMES[unit]}"
                )
                raise ValueError(f"is no intracranial volume {limits}")
            return volume_mm3

        return self._values(kind, volume_in)

    def _unit_by_size(self, column: _Column) -> float:
        """The unit in which a column's volumes are those of heads; several are refused."""
        low, high = _INTRACRANIAL_MM3
        first_row: dict[float, int] = {}
        for row in self._table.rows:
            with suppress(ValueError):
                number = number_in(row.cells[column.place])
                for unit in _UNIT_NAMES:
                    if low <= number * unit <= high:
                        first_row.setdefault(unit, row.number)
        if len(first_row) > 1:
            both = " and ".join(
                f"{_UNIT_NAMES[unit]} (row {row})" for unit, row in first_row.items()
            )
            raise DatasetError(
                f"{column.title} is in {both}",
                where=self._path,
                remedy="write all rows in one unit",
            )
        unit = next(iter(first_row), 1.0)
        if unit != 1.0:
            self._notes.append(
                f"{column.title} is read as {_UNIT_NAMES[unit]}, by its size"
            )
        return unit

    def _values(self, kind: str, value_in: _ValueIn) -> list[float | None]:
        """The numbers in the columns of a kind; what is none is a doubt, by row and column."""
        values = []
        for row in self._table.rows:
            found: float | None = None
            for column in self._columns.get(kind, ()):
                cell = row.cells[column.place]
                if cell.casefold() in _MISSING:
                    continue
                try:
                    value = value_in(cell, column)
                    if may_be_thousands(cell, partial(value_in, column=column)):
                        raise ValueError("could be thousands or decimals")
                except ValueError as error:
                    what = f"row {row.number}, {column.title}: {cell!r} {error}"
                    self._doubts.append(what)
                    continue
                if found is not None and not math.isclose(found, value):
                    raise self._two_columns(row.number, kind)
                found = value
            values.append(found)
        return values

    def _two_columns(self, number: int, kind: str) -> DatasetError:
        """What to raise where two columns say different things of one person."""
        titles = " and ".join(repr(column.title) for column in self._columns[kind])
        return DatasetError(
            f"row {number}: the columns {titles} are both read as {_KINDS[kind]}, and differ",
            where=self._path,
            remedy="rename the one that is not meant",
        )

    def _joined(
        self, name: str, first: Facts, second: Facts, first_row: int, number: int
    ) -> Facts:
        """The facts of two rows of one person, as IXI has them, once without an age."""
        joined = first
        for field in fields(Facts):
            known = getattr(first, field.name)
            further = getattr(second, field.name)
            if further in (None, ""):
                continue
            if known not in (None, "", further):
                raise DatasetError(
                    f"rows {first_row} and {number}: {name} has {_KINDS[field.name]} {known} and "
                    f"{further}",
                    where=self._path,
                    remedy="keep one row of each person, or name scans: sub-01_ses-1",
                )
            joined = replace(joined, **{field.name: further})
        return joined


def may_be_thousands(cell: str, value_in: Callable[[str], float]) -> bool:
    """Whether a number with three decimals is as good a one without its point: 33.238 days."""
    if not re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", cell, re.ASCII):
        return False
    try:
        value_in(cell.replace(".", ""))
    except ValueError:
        return False
    return True


def age_in(cell: str, per_year: float = 1) -> float:
    """The age in a cell in years; ValueError with what is wrong, as the end of a sentence.

    The cell is in units of which `per_year` are a year.
    """
    age = (
        number_in(cell.removesuffix("+")) / per_year
    )  # BIDS censors great ages as 89+.
    low, high = _AGES
    if not low <= age <= high:
        raise ValueError(f"is no age from {low:g} to {high:g} years")
    return age


def sex_in(cell: str) -> str:
    """M or F, by the words of a list; ValueError for any other word."""
    sex = _SEXES.get(cell.casefold())
    if sex is None:
        raise ValueError("is not understood as a sex: write M or F")
    return sex


def number_in(cell: str) -> float:
    """The number in a cell; ValueError with what is wrong with it, as the end of a sentence.

    Decimal commas and thousands are read where they can be nothing else: 61,5 and 1,400,000. 1,400
    could be both.
    """
    if _PLAIN.fullmatch(cell):
        return float(cell)
    if _DECIMAL_COMMA.fullmatch(cell):
        return float(cell.replace(",", "."))
    if _GROUPED.fullmatch(cell):
        # A mark that stands last, and once, is that of decimals.
        decimals = re.search(r"[.,](\d+)$", cell)
        if decimals is None or cell.count(cell[decimals.start()]) > 1:
            return float(re.sub(r"[^\d+-]", "", cell))
        whole = re.sub(r"[^\d+-]", "", cell[: decimals.start()])
        return float(f"{whole}.{decimals[1]}")
    if re.fullmatch(r"[+-]?\d{1,3},\d{3}", cell, re.ASCII):
        raise ValueError("could be thousands or decimals")
    raise ValueError("is no number")


@dataclass(frozen=True)
class _Title:
    """A column's title: `name` in small letters with single spaces, and what is in brackets."""

    text: str
    name: str
    inside: str = ""

    @classmethod
    def of(cls, text: str) -> _Title:
        """Of "SEX_ID (1=m, 2=f)" the name is "sex id", and "1=m, 2=f" is inside."""
        match = re.fullmatch(r"(.*?)\s*[(\[](.*)[)\]]\s*", text, re.DOTALL)
        name, inside = (text, "") if match is None else (match[1], match[2])
        plain = re.sub(r"[\s_-]+", " ", name).strip().lower()
        return cls(text, plain, inside.strip().lower())


# Titles of names, in small letters and with spaces: the first that is there is read.
_NAMES = {
    "person": ("participant id", "ixi id", "id"),
    "family": ("family",),
    "site": ("site", "scanner"),
    "group": ("group", "diagnosis", "dx"),
}
# What a table may have two columns for, of which one is meant.
_OF_STUDIES = ("site", "group")
_AGE = re.compile(r"age(?: at (?:scan|mri|visit|session))?(?: in)?(?: (?P<unit>\w+))?")
# The same in brackets. The age at onset, or at death, is another.
_AT_THE_SCAN = ("at scan", "at mri", "at visit", "at session")
_INTRACRANIAL = re.compile(
    r"(?:estimatedtotalintracranialvol|etiv|icv(?= ))(?: (?P<unit>\S+))?"
)
_SEX = ("sex", "m/f", "gender", "sex id", "sex at birth")


def _age_column(
    place: int, title: _Title, described: Mapping[str, Any]
) -> _Column | None:
    """A column of ages; None of any other, and of one in a unit that is not known."""
    column = _measured_column(place, title, described, _AGE, _PER_YEAR)
    if column is not None and column.unit is None and _unit_said(described):
        return None
    return column


def _intracranial_column(
    place: int, title: _Title, described: Mapping[str, Any]
) -> _Column | None:
    """A column of intracranial volumes; None of any other."""
    return _measured_column(place, title, described, _INTRACRANIAL, _MM3_OF)


def _measured_column(
    place: int,
    title: _Title,
    described: Mapping[str, Any],
    names: re.Pattern[str],
    units: Mapping[str, float],
) -> _Column | None:
    """A column with one of these names, and its unit as the title or participants.json says it.

    None where what stands for a unit is none.
    """
    match = names.fullmatch(title.name)
    if match is None:
        return None
    unit = match["unit"] or title.inside
    if not unit or unit in _AT_THE_SCAN:
        return _Column(place, title.text, units.get(_unit_said(described)))
    if unit not in units:
        return None
    return _Column(place, title.text, units[unit])


def _unit_said(described: Mapping[str, Any]) -> str:
    """The unit that participants.json has, without what follows it: "years old", "month(s)"."""
    said = str(described.get("Units", "")).strip().lower()
    if said in _MISSING:
        return ""
    return re.split(r"[\s(.]", said, maxsplit=1)[0]


def _sex_column(
    place: int, title: _Title, described: Mapping[str, Any]
) -> _Column | None:
    """A column of sexes with its codes; None of any other."""
    if title.name not in _SEX:
        return None
    codes: dict[str, str] = {}
    for one, other in re.findall(r"([^\s,;=]+)\s*[=:]\s*([^\s,;]+)", title.inside):
        if other in _SEXES:
            codes[one] = other
        elif one in _SEXES:
            codes[other] = one
    levels = described.get("Levels")
    if isinstance(levels, dict):
        for code, meaning in levels.items():
            # BIDS has a text, or an object with a description.
            text = (
                meaning.get("Description", "") if isinstance(meaning, dict) else meaning
            )
            codes.setdefault(str(code).casefold(), str(text).strip().casefold())
    if not codes and title.name == "sex id":
        codes = _IXI_CODES
    return _Column(place, title.text, codes=codes)


# How the columns of values are found.
_VALUES = {
    "age": _age_column,
    "sex": _sex_column,
    "intracranial_mm3": _intracranial_column,
}
# Of other titles with such words users may think that they are read.
_LIKE = {
    "age": re.compile(r"\b(?:age|dob|birth\w*)\b"),
    "sex": re.compile(r"\b(?:sex|\w*gender)\b"),
    "intracranial_mm3": re.compile(r"\b(?:e?tiv|icv|estimatedtotalintracranialvol)\b"),
}
_KINDS = {
    "person": "the person",
    "age": "the age",
    "sex": "the sex",
    "family": "the family",
    "site": "the site",
    "group": "the group",
    "intracranial_mm3": "the intracranial volume",
}
