"""Reader of participants tables: BIDS' participants.tsv, tables of IXI and OASIS, and custom ones.

A cell that is not understood is reported by row and column and left out (`doubts`). Anything that
could assign wrong facts to a participant makes the table invalid (`problems`); all problems are
reported together.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from trinat.pipelines.study.participants import Facts, ParticipantsTable
from trinat.segmentation.errors import DatasetError, some, summarise
from trinat.segmentation.io.cells import (
    MISSING,
    NO_NAME,
    age_in,
    may_be_thousands,
    number_in,
    one_spelling,
    sex_in,
)
from trinat.segmentation.io.files import Table, read_table, read_text

# Titles of the column that names participants: `_Title.key`, in lower case without spaces.
# participant_id takes precedence, as in BIDS.
_BIDS_KEY = "participantid"
_IXI_KEY = "ixiid"
_KEYS = (_BIDS_KEY, "subjectid", "ptid", _IXI_KEY, "id")
# Titles of columns of names, by kind of fact. If a table has several, only the first is read.
_NAMES = {
    "family": ("family",),
    "site": ("site", "scanner"),
    "group": ("group", "diagnosis", "dx"),
}
_AGE = re.compile(
    r"(?:age|alter|edad)(?: at (?:scan|mri|visit|session))?(?: in)?(?: (?P<unit>\w+))?"
)
# Words in brackets after "age" that are accepted, unlike "at onset" or "at death".
_AT_THE_SCAN = ("at scan", "at mri", "at visit", "at session")
_INTRACRANIAL = re.compile(
    r"(?:estimated ?total ?intra ?cranial ?vol|etiv|icv(?= ))(?: (?P<unit>\S+))?"
)
_SEX = (
    *("sex", "m/f", "gender", "sex id", "sex at birth"),
    *("geschlecht", "sexe", "sesso", "sexo"),
)
# Words in titles of columns that users may expect to be read as a kind of fact.
_LIKE = {
    "age": re.compile(r"\b(?:age|âge|alter|edad|età|dob|birth\w*|geburt\w*)\b"),
    "sex": re.compile(r"\b(?:sexe?|sexo|sesso|\w*gender|\w*geschlecht)\b"),
    "intracranial_mm3": re.compile(r"\b(?:e?tiv|icv|estimatedtotalintracranialvol)\b"),
}
_IXI_SEXES = {"1": "m", "2": "f"}
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
_VOLUME_UNITS = {1.0: "mm³", 1e3: "cm³", 1e6: "l"}
_INTRACRANIAL_MM3 = (0.7e6, 2.3e6)

Value = str | float
ValueIn = Callable[[str], Value]
_FACTS = TypeAdapter(Facts)


@dataclass(frozen=True)
class _Title:
    """Column title, normalised for comparison with known titles.

    `name` is the title in lower case, with single spaces between words and without brackets;
    `inside` is the content of the brackets. "SEX_ID (1=m, 2=f)" has the name "sex id" and inside
    "1=m, 2=f"; AgeMonths has the name "age months".
    """

    text: str
    name: str
    inside: str

    @classmethod
    def of(cls, text: str) -> _Title:
        """Split the text of a column title into its name and the content of its brackets."""
        match = re.fullmatch(r"(.*?)\s*[(\[](.*)[)\]]\s*", text, re.DOTALL)
        name, inside = (text, "") if match is None else (match[1], match[2])
        words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", " ", name)
        plain = re.sub(r"[\s_-]+", " ", words).strip().lower()
        return cls(text, plain, inside.strip().lower())

    @property
    def key(self) -> str:
        """The name without spaces: Subject ID, subject_id and SubjectID are one key."""
        return self.name.replace(" ", "")


@dataclass(frozen=True)
class _Column:
    """A column that is read: its position, its title and its parser.

    `place` is the position, from 0. `value_in` is the parser of a cell; it raises ValueError with
    the reason if the cell is invalid. Cells in `missing` (lower case) are unknown values.
    """

    place: int
    title: str
    value_in: ValueIn = str
    missing: frozenset[str] = NO_NAME


def read_participants(path: Path) -> ParticipantsTable:
    """Read a participants table; a missing file gives a table without participants.

    DatasetError is raised for a table that contradicts itself, and lists all contradictions: two
    columns for the same fact (such as age) with different values, two different rows of one
    participant, or volumes in different units.
    """
    participants = inspect_participants(path)
    refuse_problems(path, participants)
    return participants


def refuse_problems(path: Path, participants: ParticipantsTable) -> None:
    """Raise DatasetError if a participants table is invalid, with all of its `problems`."""
    if participants.problems:
        raise DatasetError(
            summarise(participants.problems),
            where=path,
            remedy=f"correct the table; `trinat participants {path.name}` shows all of it",
        )


def inspect_participants(path: Path) -> ParticipantsTable:
    """Read a participants table without raising for its `problems`; a missing file has no rows.

    DatasetError is raised if the file is not a table, or has no column that names participants.
    """
    if not path.exists():
        return ParticipantsTable({}, {})
    return _Reader(path, read_table(path), _sidecar(path)).participants()


def _sidecar(table: Path) -> dict[str, dict[str, object]]:
    """Read BIDS' descriptions of a table's columns from the .json file beside the .tsv file.

    Returns the description of each column by title, with titles and keys in lower case. Empty if
    there is no such file.
    """
    path = table.with_suffix(".json")
    if table.suffix.lower() != ".tsv" or not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path, "utf-8-sig"))
    except ValueError:
        raise DatasetError(
            "is no JSON", where=path, remedy="mend it, or move it away"
        ) from None
    found: dict[str, dict[str, object]] = {}
    if isinstance(content, dict):
        for title, described in content.items():
            if isinstance(described, dict):
                found[title.lower()] = {
                    key.lower(): described[key] for key in described
                }
    return found


class _Reader:
    """Reader of one participants table; it also collects messages about the table.

    `notes` say how values were read, `doubts` which cells were not understood, and `problems` why
    the table is invalid. `sidecar` has BIDS' description of each column, by title in lower case.
    """

    def __init__(
        self, path: Path, table: Table, sidecar: Mapping[str, Mapping[str, object]]
    ) -> None:
        self._path = path
        self._rows = table.rows
        self._titles = [_Title.of(title) for title in table.titles]
        self._sidecar = sidecar
        self._notes: list[str] = []
        self._doubts: list[str] = []
        self._problems: list[str] = []

    def participants(self) -> ParticipantsTable:
        """Read all rows; return the facts about each participant, and the messages about the table.

        Rows of the same participant are merged, as IXI has some without an age.
        """
        columns = self._find_columns()
        values: dict[str, Mapping[int, Value]] = {
            kind: self._values(kind, columns[kind]) for kind in columns
        }
        for kind in _NAMES:
            if kind in values:
                values[kind] = self._with_one_spelling(kind, values[kind])
        participants = values.pop("participant")
        facts: dict[str, dict[str, Value]] = {}
        first_row: dict[str, int] = {}
        for row in self._rows:
            if row.number not in participants:
                self._doubts.append(f"row {row.number}: names no participant")
                continue
            name = str(participants[row.number])
            known = facts.setdefault(name, {})
            first = first_row.setdefault(name, row.number)
            for kind, of_rows in values.items():
                value = of_rows.get(row.number)
                if value is not None and not _agree(
                    known.setdefault(kind, value), value
                ):
                    self._problems.append(
                        f"rows {first} and {row.number}: {name} has {_words_for(kind)} "
                        f"{known[kind]} and {value} (keep one row of each participant, or name "
                        "scans: sub-01_ses-1)"
                    )
        return ParticipantsTable(
            {name: _FACTS.validate_python(known) for name, known in facts.items()},
            {kind: of_kind[0].title for kind, of_kind in columns.items()},
            tuple(self._notes),
            tuple(self._doubts),
            tuple(self._problems),
        )

    def _find_columns(self) -> dict[str, list[_Column]]:
        """Find the columns with participants, ages, sexes and so on.

        Returns the columns that are read for each kind of fact, such as "age". A column that looks
        like one of these but is not read is reported as a warning (`doubts`).
        """
        found = {"participant": self._key_columns()}
        for kind, words in _NAMES.items():
            # A word such as NA, read as a family, would make strangers relatives.
            missing = MISSING if kind == "family" else NO_NAME
            named = [
                _Column(place, title.text, missing=missing)
                for word in words
                for place, title in enumerate(self._titles)
                if title.name == word
            ]
            if named:
                found[kind] = self._first_title(named)
        is_ixi = self._titles[found["participant"][0].place].key == _IXI_KEY
        why_unread: dict[int, str] = {}
        for place, title in enumerate(self._titles):
            described = self._sidecar.get(title.text.lower(), {})
            readers: dict[str, Callable[[], ValueIn | None]] = {
                "age": partial(_age_reader, title, described),
                "sex": partial(_sex_reader, title, described, is_ixi),
                "intracranial_mm3": partial(
                    self._intracranial_reader, place, title, described
                ),
            }
            for kind, reader in readers.items():
                try:
                    value_in = reader()
                except ValueError as error:
                    why_unread[place] = str(error)
                    continue
                if value_in is not None:
                    column = _Column(place, title.text, value_in, MISSING)
                    found.setdefault(kind, []).append(column)
        self._report_unread(found, why_unread)
        self._refuse_two_languages(found.get("sex", ()))
        return found

    def _key_columns(self) -> list[_Column]:
        """Return the columns that name the participants; several only if their titles are equal.

        DatasetError is raised if there is none, or if columns with different titles could name
        them.
        """
        places = {
            key: [place for place, title in enumerate(self._titles) if title.key == key]
            for key in _KEYS
        }
        keys = [key for key in _KEYS if places[key]]
        if _BIDS_KEY in keys:
            keys = [_BIDS_KEY]
        if not keys:
            titles = [repr(title.text) for title in self._titles if title.text]
            raise DatasetError(
                f"has no column 'participant_id'; its first row has {some(titles)}",
                where=self._path,
                remedy="put the titles in the first row (in Excel, of the first sheet), and "
                "rename the column with the names (Subject ID, PTID, ID and IXI_ID are read, too)",
            )
        if len(keys) > 1:
            named = [self._titles[places[key][0]].text for key in keys]
            raise DatasetError(
                f"the columns {_quoted_names(named)} could each name the participants",
                where=self._path,
                remedy="call one of them participant_id",
            )
        value_in = _ixi_name if keys[0] == _IXI_KEY else str
        return [
            _Column(place, self._titles[place].text, value_in)
            for place in places[keys[0]]
        ]

    def _first_title(self, columns: Sequence[_Column]) -> list[_Column]:
        """Return those of some columns that have the same title as the first.

        All `columns` could be read as the same kind of fact. For each other column whose cells
        differ from the first, a note says that it is not read.
        """
        first = columns[0]
        name = self._titles[first.place].name
        kept = [column for column in columns if self._titles[column.place].name == name]
        for column in columns:
            differs = any(
                row.cells[column.place] != row.cells[first.place] for row in self._rows
            )
            if column not in kept and differs:
                self._notes.append(
                    f"{column.title!r} is not read, as {first.title!r} is"
                )
        return kept

    def _report_unread(
        self, found: Mapping[str, Sequence[_Column]], why: Mapping[int, str]
    ) -> None:
        """Warn of each column that looks as if it had ages, sexes or head volumes, but is not read.

        `found` has the columns that are read, by kind of fact, such as "age". Warnings (`doubts`)
        are only about kinds without such a column. `why` maps the position of a column to the
        reason why it is not read.
        """
        read = {column.place for columns in found.values() for column in columns}
        for kind, words in _LIKE.items():
            for place, title in enumerate(self._titles):
                if kind in found or place in read or not words.search(title.name):
                    continue
                reason = why.get(place, "give the column a plain title if it is")
                self._doubts.append(
                    f"{title.text!r} is not read as {_words_for(kind)}: {reason}"
                )

    def _refuse_two_languages(self, columns: Sequence[_Column]) -> None:
        """Report a table as invalid (`problems`) if its sexes are H and M.

        In Spanish (hombre, mujer) M would be a woman, and not a man.
        """
        cells = {
            row.cells[column.place].casefold()
            for row in self._rows
            for column in columns
        }
        if {"h", "m"} <= cells:
            self._problems.append(
                "H and M for sex: M could be a man or a woman (write M and F)"
            )

    def _values(self, kind: str, columns: Sequence[_Column]) -> dict[int, Value]:
        """Parse the cells of columns of one kind, such as ages; return the values by row number.

        `kind` says what the columns hold: "age", "sex", "participant" and so on. Rows without a
        value are omitted. A cell that cannot be parsed makes the table invalid (`problems`) in
        columns that name participants, and gives a warning (`doubts`) in others. The table is
        invalid, too, if two columns have different values in one row.
        """
        values: dict[int, Value] = {}
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row in self._rows:
            for column in columns:
                cell = row.cells[column.place]
                if cell.casefold() in column.missing:
                    continue
                try:
                    value = column.value_in(cell)
                except ValueError as error:
                    rows_of[f"{column.title}: {cell!r} {error}"].append(row.number)
                    continue
                if not _agree(values.setdefault(row.number, value), value):
                    titles = _quoted_names([column.title for column in columns])
                    self._problems.append(
                        f"row {row.number}: the columns {titles} are both read as "
                        f"{_words_for(kind)}, and differ (rename the other one)"
                    )
        for what, numbers in rows_of.items():
            rows = f"row {numbers[0]}"
            if len(numbers) > 1:
                rows = f"{rows} and {len(numbers) - 1} more"
            messages = self._problems if kind == "participant" else self._doubts
            messages.append(f"{rows}, {what}")
        return values

    def _with_one_spelling(
        self, kind: str, values: Mapping[int, Value]
    ) -> dict[int, str]:
        """Return the values by row number, with one spelling of each (`one_spelling`).

        `kind` says what the values are, such as "site", for notes on spellings that were joined,
        and on names that may mean that the value is missing.
        """
        words = {number: str(value) for number, value in values.items()}
        chosen = one_spelling(words.values())
        spellings: dict[str, list[str]] = defaultdict(list)
        for word, spelling in chosen.items():
            spellings[spelling].append(word)
        for spelling, joined in spellings.items():
            if len(joined) > 1:
                self._notes.append(
                    f"{kind}: {_quoted_names(joined)} are read as one, {spelling!r}"
                )
            if kind != "participant" and spelling.casefold() in MISSING:
                self._notes.append(
                    f"{kind}: {spelling!r} is read as a name (empty the cells if it is not known)"
                )
        return {number: chosen[word] for number, word in words.items()}

    def _intracranial_reader(
        self, place: int, title: _Title, described: Mapping[str, object]
    ) -> ValueIn | None:
        """Return the function that parses intracranial volumes of a column to mm³.

        None for any other column, by its title. `place` is the position of the column, `described`
        its description in the JSON sidecar.
        """
        match = _INTRACRANIAL.fullmatch(title.name)
        if match is None:
            return None
        unit = _unit(match["unit"] or title.inside, described, _MM3_OF)
        if unit is None:
            unit = self._unit_by_size(place, title)
        low, high = _INTRACRANIAL_MM3
        limits = f"from {low / unit:,.7g} to {high / unit:,.7g} {_VOLUME_UNITS[unit]}"

        def volume_in(cell: str) -> float:
            volume_mm3 = number_in(cell) * unit
            if not low <= volume_mm3 <= high:
                raise ValueError(f"is no intracranial volume {limits}")
            return volume_mm3

        return _unless_ambiguous(volume_in)

    def _unit_by_size(self, place: int, title: _Title) -> float:
        """Return the unit of a column of head volumes, in mm³, that makes its numbers plausible.

        For example 1000 for numbers in ml. `place` is the position of the column. Rows that fit
        different units make the table invalid (`problems`). Without any plausible number the unit
        is 1, mm³.
        """
        low, high = _INTRACRANIAL_MM3
        first_row: dict[float, int] = {}
        for row in self._rows:
            with suppress(ValueError):
                number = number_in(row.cells[place])
                for unit in _VOLUME_UNITS:
                    if low <= number * unit <= high:
                        first_row.setdefault(unit, row.number)
        if len(first_row) > 1:
            both = " and ".join(
                f"{_VOLUME_UNITS[unit]} (row {row})" for unit, row in first_row.items()
            )
            self._problems.append(
                f"{title.text} is in {both} (write all rows in one unit)"
            )
        unit = next(iter(first_row), 1.0)
        if unit != 1.0:
            self._notes.append(
                f"{title.text} is read as {_VOLUME_UNITS[unit]}, by its size"
            )
        return unit


def _age_reader(title: _Title, described: Mapping[str, object]) -> ValueIn | None:
    """Return the function that parses ages of a column to years; None for any other column.

    What the column has is known from its `title`; `described` is its description in the JSON
    sidecar, which may have the unit.
    """
    match = _AGE.fullmatch(title.name)
    if match is None:
        return None
    unit = match["unit"] or title.inside
    if unit in _AT_THE_SCAN:
        unit = ""
    per_year = _unit(unit, described, _PER_YEAR) or 1.0
    return _unless_ambiguous(partial(age_in, per_year=per_year))


def _sex_reader(
    title: _Title, described: Mapping[str, object], is_ixi: bool
) -> ValueIn | None:
    """Return the function that parses sexes of a column to M or F; None for any other column.

    Codes such as 1 and 2 are explained by the title ("1=m") or by `described`, the description of
    the column in the JSON sidecar. `is_ixi` is True for the table of IXI, whose codes are known.
    """
    if title.name not in _SEX:
        return None
    codes: dict[str, str] = {}
    for one, other in re.findall(r"([^\s,;=]+)\s*[=:]\s*([^\s,;]+)", title.inside):
        # Either side may be the code: 1=m, or F: 0.
        for code, word in ((one, other), (other, one)):
            with suppress(ValueError):
                codes[code] = sex_in(word)
                break
    levels = described.get("levels")
    if isinstance(levels, dict):
        for code, meaning in levels.items():
            # In BIDS this is a text, or an object with a description.
            if isinstance(meaning, dict):
                texts = {str(key).casefold(): text for key, text in meaning.items()}
                meaning = texts.get("description", "")
            codes.setdefault(str(code).casefold(), str(meaning).strip())
    if not codes and is_ixi and title.name == "sex id":
        codes = _IXI_SEXES

    def sex_of(cell: str) -> str:
        # A meaning such as "male participant" explains a cell that is clear by itself.
        with suppress(ValueError):
            return sex_in(codes.get(cell.casefold(), cell))
        return sex_in(cell)

    return sex_of


def _unit(
    of_title: str, described: Mapping[str, object], units: Mapping[str, float]
) -> float | None:
    """Return the factor of the unit that is stated for a column; None if none is stated.

    `units` maps names of units to factors. `of_title` is the unit in the column's title, "" without
    one. Then the unit is read from `described`, the description of the column in the JSON sidecar.
    ValueError is raised for an unknown unit.
    """
    if of_title:
        said = of_title
    else:
        text = str(described.get("units", described.get("unit", ""))).strip().lower()
        # Remove what follows the unit: "years old", "month(s)", "yr.".
        said = re.split(r"[\s(.]", text, maxsplit=1)[0]
        if said in MISSING:
            description = str(described.get("description", "")).lower()
            in_units = re.findall(r"\bin ([^\s,.;()]+)", description)
            said = next((word for word in in_units if word in units), "")
    if not said:
        return None
    if said not in units:
        raise ValueError(f"its unit {said!r} is not known")
    return units[said]


def _unless_ambiguous(value_in: Callable[[str], float]) -> ValueIn:
    """Return a parser that raises ValueError if a number could have a thousands separator.

    33.238 is ambiguous if `value_in` accepts 33238 as well.
    """

    def read(cell: str) -> float:
        value = value_in(cell)
        if may_be_thousands(cell, value_in):
            raise ValueError("could be thousands or decimals")
        return value

    return read


def _ixi_name(cell: str) -> str:
    """Return the participant's name in the file names of IXI: IXI002 for the cell "2"."""
    if not re.fullmatch(r"\d+", cell, re.ASCII):
        raise ValueError("is no whole number")
    return f"IXI{int(cell):03d}"


def _agree(first: Value, second: Value) -> bool:
    """Return True for equal values; numbers may differ by rounding."""
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second)
    return first == second


def _words_for(kind: str) -> str:
    """Return the name of a kind of fact for messages, such as "the age"."""
    return "the " + kind.removesuffix("_mm3").replace(
        "intracranial", "intracranial volume"
    )


def _quoted_names(names: Sequence[str]) -> str:
    """Quote names and join them with "and"."""
    return " and ".join(repr(name) for name in names)
