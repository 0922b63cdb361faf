"""Attacks on participants tables: one table written in many ways, with the damage of spreadsheets.

The reader must return what the correct table says, or name the row and column that it cannot
read.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from attacks.verdicts import wrong
from attacks.workshop import READ_S, Try, happens, time_limit
from trinat.pipelines.study.participants import Facts, Participants
from trinat.pipelines.study.participants_table import read_participants

_GROUPS = ("control", "patient", "NA", "None", "unknown", "é 1")
_REMARKS = ("", "ok", '6" plate', "a, b", "a; b", '"quoted"', "née", "x\ty")
_SEX_WORDS = {
    "M": ("M", "m", "male", "Man", "hombre"),
    "F": ("F", "f", "Female", "woman", "mujer"),
}
# Spellings of a person's number: in the scans, and in the table.
_IDS: tuple[Callable[[int], str], ...] = (
    lambda n: f"sub-{n:02d}",
    lambda n: f"{n:02d}",
    lambda n: f"{n}",
    lambda n: f"SUB-{n:02d}",
    lambda n: f"sub-{n}",
    lambda n: f"sub_{n:03d}",
)
_PER_YEAR = {"age": 1, "Age (years)": 1, "age (months)": 12, "age_days": 365.25}
_MM3_PER = {"eTIV": (1, 1e3, 1e6), "eTIV (mm3)": (1,), "etiv_cm3": (1e3,)}
_NO_VALUE = ("", "n/a", "NaN", "NA")


@dataclass
class _Style:
    """Layout and number format of a table."""

    separator: str
    newline: str
    encoding: str
    person: Callable[[int], str]
    age_title: str
    volume_title: str
    volume_unit: float
    has_decimal_comma: bool
    has_thousands: bool


def tables(attempt: Try) -> None:
    """Read a table in a random spelling: the same facts, or a warning for each unknown one."""
    chance = attempt.chance
    people = {n: _person(chance) for n in chance.sample(range(1, 30), 6)}
    style = _style(chance)
    titles = ["participant_id", style.age_title, "sex", "group", "remark"]
    titles.append(style.volume_title)
    # Rows as cells; `hidden` collects the cells that leave a fact unknown.
    hidden: set[tuple[int, str]] = set()
    rows = [_row(n, facts, style, chance, hidden) for n, facts in people.items()]
    contradicts = _add_rows(rows, chance)
    if happens(chance, 0.2):
        # An additional column whose title only begins like one of ours.
        titles.append("age at onset")
        rows = [[*row, str(chance.randint(5, 20))] for row in rows]
    # An Excel sheet cannot have rows of different lengths.
    if style.separator != "xlsx" and happens(chance, 0.1):
        place = chance.randrange(1, len(titles))
        chance.choice(rows).pop(place)
    path = _write(attempt.folder, titles, rows, style, chance)
    with time_limit(READ_S):
        read = read_participants(path)
    if contradicts:
        # One of the two rows is not used, and a warning must say so.
        if not read.doubts:
            raise wrong("two rows of one person say other things, without a word")
        return
    _compare(people, read, hidden)


def _person(chance: random.Random) -> Facts:
    """Return a person without unknown facts."""
    return Facts(
        age=chance.randint(11, 95) + chance.choice((0, 0, 0.5)),
        sex=chance.choice("MF"),
        group=chance.choice(_GROUPS),
        intracranial_mm3=1000.0 * chance.randint(900, 1900),
    )


def _style(chance: random.Random) -> _Style:
    """Return a random layout of a table."""
    volume_title = chance.choice(tuple(_MM3_PER))
    return _Style(
        separator=chance.choice(("\t", "\t", ",", ";", "xlsx")),
        newline=chance.choice(("\n", "\n", "\r\n", "\r")),
        encoding=chance.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1")),
        person=chance.choice(_IDS),
        age_title=chance.choice(tuple(_PER_YEAR)),
        volume_title=volume_title,
        volume_unit=chance.choice(_MM3_PER[volume_title]),
        has_decimal_comma=happens(chance, 0.3),
        has_thousands=happens(chance, 0.2),
    )


def _row(
    n: int,
    facts: Facts,
    style: _Style,
    chance: random.Random,
    hidden: set[tuple[int, str]],
) -> list[str]:
    """Return the cells of a person; a fact that is left out is noted in `hidden`."""
    assert facts.age is not None
    assert facts.sex is not None
    assert facts.intracranial_mm3 is not None
    age = facts.age * _PER_YEAR[style.age_title]
    cells = {
        "age": _number(age, style, chance),
        "sex": chance.choice(_SEX_WORDS[facts.sex]),
        "group": facts.group,
        "intracranial_mm3": _number(
            facts.intracranial_mm3 / style.volume_unit, style, chance
        ),
    }
    for kind in cells:
        if happens(chance, 0.05):
            hidden.add((n, kind))
            cells[kind] = chance.choice(_NO_VALUE[:2] if kind == "group" else _NO_VALUE)
    remark = chance.choice(_REMARKS)
    if style.separator == "\t":
        remark = remark.replace("\t", " ")
    ordered = [cells["age"], cells["sex"], cells["group"], remark]
    return [style.person(n), *ordered, cells["intracranial_mm3"]]


def _number(value: float, style: _Style, chance: random.Random) -> str:
    """Return a number as a spreadsheet of some country writes it."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    if style.has_thousands and value >= 1000:
        text = f"{value:,.6f}".rstrip("0").rstrip(".")
    if style.has_decimal_comma:
        text = text.translate(str.maketrans(",.", ".,"))
    if happens(chance, 0.1):
        text = f" {text} "
    return text


def _add_rows(rows: list[list[str]], chance: random.Random) -> bool:
    """Add empty and repeated rows; return True if one contradicts the age of another."""
    if happens(chance, 0.2):
        rows.insert(chance.randrange(len(rows)), [""] * len(rows[0]))
    if happens(chance, 0.2):
        rows.append(list(rows[0]))
    if rows[0][1] not in _NO_VALUE and happens(chance, 0.1):
        rows.append([rows[0][0], "77.25", *rows[0][2:]])
        return True
    return False


def _write(
    folder: Path,
    titles: list[str],
    rows: list[list[str]],
    style: _Style,
    chance: random.Random,
) -> Path:
    """Write the table in its layout and return the path."""
    if style.separator == "xlsx":
        path = folder / "people.xlsx"
        pd.DataFrame(rows, columns=titles).to_excel(path, index=False)
        return path
    path = folder / ("people.tsv" if style.separator == "\t" else "people.csv")
    if style.separator == "\t":
        lines = [style.separator.join(row) for row in (titles, *rows)]
        text = style.newline.join(lines) + style.newline
    else:
        file = io.StringIO(newline="")
        quoting = chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        writer = csv.writer(
            file,
            delimiter=style.separator,
            lineterminator=style.newline,
            quoting=quoting,
        )
        writer.writerows((titles, *rows))
        text = file.getvalue()
    if style.separator != "\t" and happens(chance, 0.1):
        # An unclosed quote at the beginning of a cell; elsewhere a quote is an ordinary
        # character.
        begins = [n + 1 for n, letter in enumerate(text) if letter == style.separator]
        at = chance.choice(begins)
        text = f'{text[:at]}"{text[at:]}'
    path.write_bytes(text.encode(style.encoding))
    return path


def _compare(
    people: dict[int, Facts], read: Participants, hidden: set[tuple[int, str]]
) -> None:
    """Raise `Bad` if a scan has another fact than its person, or lacks one without a warning."""
    scans = {n: (f"sub-{n:02d}_T1w", f"sub-{n:02d}") for n in people}
    matched = read.match(scans.values())
    has_word = bool(read.doubts or matched.remarks)
    for n, facts in people.items():
        found = matched.of(*scans[n])
        for kind in ("age", "sex", "group", "intracranial_mm3"):
            value = getattr(found, kind)
            expected = getattr(facts, kind)
            is_known = value not in (None, "")
            if not is_known and not has_word and (n, kind) not in hidden:
                raise wrong(f"{kind} {expected} of {n} is lost without a word")
            if is_known and not _equal(value, expected):
                raise wrong(f"{kind} of {n} is {value}, not {expected}")


def _equal(value: object, expected: object) -> bool:
    """Return True if two facts are equal; numbers to the six digits of a cell."""
    if isinstance(value, float) and isinstance(expected, float | int):
        return math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-5)
    return value == expected


ATTACKS = {"tables of persons": tables}
