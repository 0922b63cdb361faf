"""Whose scans these are: persons, their scans and the times at which these were taken.

Imports no torch and no volumes: the command line has them at once.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from trinat.pipelines.common.cases import Case
from trinat.segmentation.data.sources.base import Facts, read_participants
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.files import read_rows

# OAS1_0001_MR2, or a BIDS name outside of a BIDS dataset; more of a name may follow.
_VISIT = re.compile(r"(?P<person>.+?)_(?:MR\d+|ses-[A-Za-z0-9+]+)(?:_.*)?")
_NEEDED_COLUMNS = ("scan", "person")
_DAYS_OF_YEAR = 365.25


@dataclass(frozen=True)
class Person(Case):
    """Several scans of one person, which are segmented together: one case to an engine.

    `years` is when each of `scans` was taken, in years from any start; None where it is not known.
    `group` is what the person belongs to in a study; "" where nothing says it.
    """

    scans: tuple[Case, ...] = ()
    years: tuple[float | None, ...] = ()
    group: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        scans: Sequence[Case],
        years: Sequence[float | None],
        group: str = "",
    ) -> Person:
        """A person by name. The id is no scan's: these are paths, and end with no slash."""
        return cls(
            f"{name}/",
            scans[0].path,
            name,
            scans=tuple(scans),
            years=tuple(years),
            group=group,
        )

    @property
    def name(self) -> str:
        """What the person is called in tables."""
        return self.shown

    @property
    def work(self) -> int:
        """How many scans it takes as long as: the template is one more."""
        return len(self.scans) + 1

    def only(self, keep: Callable[[Case], bool]) -> Person | None:
        """The person with some of the scans alone; None without any."""
        kept = [number for number, scan in enumerate(self.scans) if keep(scan)]
        if not kept:
            return None
        scans = [self.scans[number] for number in kept]
        years = [self.years[number] for number in kept]
        return Person.of(self.name, scans, years, self.group)


@dataclass(frozen=True)
class _Visit:
    """What a table says of one scan: whose it is, when it was taken, the person's group."""

    person: str
    year: float | None = None
    group: str = ""


def persons_of(
    cases: Sequence[Case], bids_root: Path | None, table: Path | None
) -> list[Person]:
    """The persons of all cases, in the order of their first scans; each has at least one scan.

    A table (scan, person, date, group) says whose each scan is. Without one a BIDS dataset does, or
    the scan's name: OAS1_0001_MR1 and OAS1_0001_MR2 are two scans of OAS1_0001. Any other scan is
    of a person of its own.
    """
    known: dict[str, _Visit] = {}
    if table is not None:
        known = _from_table(cases, table)
    elif bids_root is not None:
        known = _from_bids(cases, bids_root)
    scans: dict[str, list[Case]] = defaultdict(list)
    visits: dict[str, list[_Visit]] = defaultdict(list)
    for case in cases:
        visit = known.get(case.id) or _Visit(_person_by_name(case))
        scans[visit.person].append(case)
        visits[visit.person].append(visit)
    persons = []
    for name, of_person in visits.items():
        years = [visit.year for visit in of_person]
        group = max(visit.group for visit in of_person)
        persons.append(Person.of(name, scans[name], years, group))
    return persons


def _person_by_name(case: Case) -> str:
    """The person that the name of a scan or of a folder above it says; else the scan's own id."""
    for part in reversed(case.id.split("/")):
        match = _VISIT.fullmatch(part)
        if match is not None:
            return match["person"]
    return case.id


def _from_bids(cases: Sequence[Case], root: Path) -> dict[str, _Visit]:
    """What a BIDS dataset says of each case, by id.

    Times are from sub-*_sessions.tsv and *_scans.tsv, groups from participants.tsv.
    """
    times: dict[Path, Mapping[str, float]] = {}
    known: dict[str, _Visit] = {}
    people = read_participants(root / "participants.tsv")
    for case in cases:
        person = f"sub-{case.entities['sub']}"
        folder = root / person
        sessions = folder / f"{person}_sessions.tsv"
        scans = folder / f"{person}_scans.tsv"
        year = None
        if "ses" in case.entities:
            session = f"ses-{case.entities['ses']}"
            scans = folder / session / f"{person}_{session}_scans.tsv"
            year = _times_in(sessions, "session_id", times).get(session)
        if year is None:
            filename = f"anat/{case.path.name}"
            year = _times_in(scans, "filename", times).get(filename)
        facts = people.get(person, Facts())
        known[case.id] = _Visit(person, year, facts.group)
    return known


def _times_in(
    path: Path,
    key: str,
    read: dict[Path, Mapping[str, float]],
) -> Mapping[str, float]:
    """The `acq_time` of each row of a BIDS table, in years, by its `key`; none without the file.

    `read` has the tables that were read before.
    """
    if path not in read:
        found = {}
        if path.is_file():
            for number, row in enumerate(read_rows(path, required=()), start=2):
                text = row.get("acq_time", "")
                # A time that is none is as good as no time: the scans do not need it.
                with suppress(ConfigError):
                    found[row.get(key, "")] = _years(text, path, number)
        read[path] = found
    return read[path]


def _from_table(cases: Sequence[Case], path: Path) -> dict[str, _Visit]:
    """What a table says of each case that it names, by id.

    ConfigError where a column is missing, or a row names no scan of the run, or one twice;
    DatasetError for what is no table.
    """
    rows = read_rows(path, required=())
    if not rows or any(column not in rows[0] for column in _NEEDED_COLUMNS):
        raise ConfigError(
            "needs the columns scan and person, and may have date and group",
            where=path,
            remedy="write a line with these names above the rows",
        )
    by_name = _names_of(cases, path.absolute().parent)
    known: dict[str, _Visit] = {}
    for number, row in enumerate(rows, start=2):
        case_id = by_name.get(row["scan"])
        if case_id is None:
            what = f"line {number}: {row['scan']!r} is no scan of this run"
            remedy = "write it as the path that is given, or as in summary.tsv"
            raise ConfigError(what, where=path, remedy=remedy)
        if case_id in known:
            what = f"line {number}: {row['scan']!r} is there twice"
            raise ConfigError(what, where=path, remedy="keep one of the two lines")
        if not row["person"]:
            what = f"line {number}: no person"
            raise ConfigError(what, where=path, remedy="write whose scan it is")
        text = row.get("date", "")
        year = _years(text, path, number) if text else None
        known[case_id] = _Visit(row["person"], year, row.get("group", ""))
    return known


def _names_of(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """What a table may call each scan, with its id; `folder` is that of the table.

    A name that several scans have is none.
    """
    names: dict[str, str | None] = {}
    for case in cases:
        own = {case.id, case.shown, str(case.path), case.path.name}
        if case.path.is_relative_to(folder):
            own.add(str(case.path.relative_to(folder)))
        for name in own:
            names[name] = None if name in names else case.id
    # A full name is one scan's even where it is another one's file name.
    for case in cases:
        names[case.id] = case.id
        names[case.shown] = case.id
    return {name: case_id for name, case_id in names.items() if case_id is not None}


def _years(text: str, path: Path, line: int) -> float:
    """A time in years: a date or time as ISO 8601 has it, or a number of years, such as an age."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"line {line}: {text!r} is no date",
            where=path,
            remedy="write 2024-05-31, or a number of years",
        ) from error
    whole_days = date.toordinal(moment.date())
    return (whole_days + moment.hour / 24) / _DAYS_OF_YEAR


def as_units(persons: Sequence[Person]) -> list[Case]:
    """What an engine is given: persons with several scans, and single scans as they are."""
    units: list[Case] = []
    for person in persons:
        if len(person.scans) > 1:
            units.append(person)
        else:
            units.append(person.scans[0])
    return units


def scans_of(case: Case) -> tuple[Case, ...]:
    """The scans of a person, or a scan itself."""
    if isinstance(case, Person):
        return case.scans
    return (case,)
