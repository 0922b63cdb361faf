"""Scans grouped by participant and date of acquisition: from a table, BIDS, or names.

Imports no torch and no volumes, so that the command line starts quickly.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from trinat.pipelines.study.cases import Case, Participant, Refusal
from trinat.pipelines.study.participants_check import (
    match_participants,
    report_table,
    shared_ages,
)
from trinat.segmentation.data.identity import clash_among, identify
from trinat.segmentation.errors import ConfigError, some
from trinat.segmentation.io.cells import (
    MISSING,
    NO_NAME,
    composed,
    may_be_thousands,
    number_in,
    one_spelling,
)
from trinat.segmentation.io.files import read_table

_log = logging.getLogger(__name__)

_NEEDED_COLUMNS = ("scan", "participant")
_DAYS_OF_YEAR = 365.25
# Date from which `_year_of_date` counts.
_START = date(2000, 1, 1)
# Columns of times, with the unit of their numbers.
_UNIT_OF_COLUMN = {
    "date": "years",
    "years": "years",
    "date (years)": "years",
    "days": "days",
    "date (days)": "days",
}
# Words in titles of columns that users may expect to be read as times, but that are not.
_LIKE_TIMES = re.compile(r"date|time|age\b|year|month|week|day")
# Valid ranges: ages and years since a baseline, and calendar years.
_YEARS = ((-120, 120), (1900, 2200))
# Longest time between two scans of a participant.
_LONGEST_YEARS = 60


@dataclass(frozen=True)
class _ScanRow:
    """Row of a table for one scan: its participant, its time and the participant's group.

    `year` is the time of the scan in years from an arbitrary start, None if unknown. `group` is ""
    if unknown.
    """

    participant: str
    year: float | None = None
    group: str = ""


def participants_of(
    cases: Sequence[Case],
    bids_root: Path | None,
    table: Path | None,
    *,
    strict: bool = False,
    refusals: Collection[Refusal] = (),
) -> list[Participant]:
    """Group cases by participant; return the participants in the order of their first scans.

    A `table` assigns scans to participants by the columns scan and participant. It may also have
    the column group, and one column of times: date, years or days. Without a table they are
    assigned by the BIDS dataset in `bids_root`, or else by name: OAS1_0001_MR1 and OAS1_0001_MR2
    are two scans of OAS1_0001. Any other scan belongs to a participant of its own. Anything in a
    table that is not understood is logged; with `strict` it raises a DatasetError. Rows of scans
    that were refused (`refusals`) are skipped.
    """
    known: dict[str, _ScanRow] = {}
    if table is not None:
        known = _from_table(cases, table, refusals, strict=strict)
    elif bids_root is not None:
        known = _from_bids(cases, bids_root, strict=strict)
    scans: dict[str, list[Case]] = defaultdict(list)
    rows: dict[str, list[_ScanRow]] = defaultdict(list)
    identities = identify([case.named for case in cases])
    clash = clash_among(
        identity.participant
        for case, identity in zip(cases, identities, strict=True)
        if case.id not in known
    )
    if clash:
        _log.warning("%s", clash)
    for case, named in zip(cases, identities, strict=True):
        row = known.get(case.id) or _ScanRow(named.participant)
        scans[row.participant].append(case)
        rows[row.participant].append(row)
    participants = []
    for name, of_participant in rows.items():
        years = [row.year for row in of_participant]
        group = max(row.group for row in of_participant)
        participants.append(Participant(name, tuple(scans[name]), tuple(years), group))
    return participants


def with_facts(
    cases: Sequence[Case],
    table: Path,
    participants: Sequence[Participant] = (),
    *,
    strict: bool = False,
    is_given: bool = True,
) -> list[Case]:
    """Return the cases, each with age, sex and other facts about its participant from a table.

    `table` is a participants table, and `participants` are those of `participants_of`; without
    them, the names of the scans say of which participants they are. Cells that are not understood
    are logged; with `strict` they raise a DatasetError. ConfigError is raised if the table does not
    exist. DatasetError is raised if the user has named the table (`is_given`), and no scan has a
    row in it.
    """
    if not table.is_file():
        raise ConfigError(
            "no such table, and norms need age and sex of each participant",
            where=table,
            remedy="give --participants",
        )
    named = [case.named for case in cases]
    grouped = {
        scan.id: participant.name
        for participant in participants
        for scan in participant.scans
    }
    names = [
        (scan.name, grouped.get(case.id, identity.participant))
        for case, scan, identity in zip(cases, named, identify(named), strict=True)
    ]
    folders = {name: scan.folders for name, scan in zip(names, named, strict=True)}
    matched = match_participants(
        table,
        folders,
        strict=strict,
        is_given=is_given,
        together=set(grouped.values()),
    )
    times = {
        scan.id: year
        for participant in participants
        for scan, year in zip(participant.scans, participant.years, strict=True)
        if year is not None
    }
    years = {
        name: times[case.id]
        for case, name in zip(cases, names, strict=True)
        if case.id in times
    }
    shared = shared_ages(matched, years)
    if shared:
        _log.warning("%s: %s", table.name, shared)
    return [
        replace(case, facts=matched.of(*name))
        for case, name in zip(cases, names, strict=True)
    ]


def _from_bids(
    cases: Sequence[Case],
    root: Path,
    *,
    strict: bool,
) -> dict[str, _ScanRow]:
    """Return participant, time and group of each case of a BIDS dataset, by case id.

    Times are read from sub-*_sessions.tsv and *_scans.tsv, groups from participants.tsv.
    """
    times: dict[Path, Mapping[str, float | None]] = {}
    doubts: list[str] = []
    table = root / "participants.tsv"
    participants = {case.id: f"sub-{case.entities['sub']}" for case in cases}
    names = {(case.stem, participants[case.id]): () for case in cases}
    matched = match_participants(table, names, strict=strict, is_given=False)
    known: dict[str, _ScanRow] = {}
    for case in cases:
        participant = participants[case.id]
        folder = root / participant
        sessions = folder / f"{participant}_sessions.tsv"
        scans = folder / f"{participant}_scans.tsv"
        year = None
        if "ses" in case.entities:
            session = f"ses-{case.entities['ses']}"
            scans = folder / session / f"{participant}_{session}_scans.tsv"
            of_sessions = _times_in(sessions, "session_id", times, doubts)
            year = of_sessions.get(session)
            if of_sessions and session not in of_sessions:
                doubts.append(f"{sessions.name} has no row {session}")
        if year is None:
            filename = f"anat/{case.path.name}"
            year = _times_in(scans, "filename", times, doubts).get(filename)
        group = matched.of(case.stem, participant).group
        known[case.id] = _ScanRow(participant, year, group)
    several = _in_several_groups(known.values())
    remarks = []
    for participant, groups in several.items():
        named = " and ".join(groups)
        remarks.append(
            f"{participant} is in the groups {named}, and counts in none of them"
        )
    far_apart = _too_far_apart(known.values())
    for participant, apart in far_apart.items():
        doubts.append(
            f"scans of {participant} are {apart:,.0f} years apart, so their times are not used"
        )
    for case_id, row in known.items():
        if row.participant in several:
            row = replace(row, group="")
        if row.participant in far_apart:
            row = replace(row, year=None)
        known[case_id] = row
    report_table(table, (), remarks, strict=strict)
    report_table(root / "acq_time", (), doubts, strict=strict)
    return known


def _in_several_groups(rows: Iterable[_ScanRow]) -> dict[str, list[str]]:
    """Return the groups of each participant whose scans are in more than one group, by participant.

    Groups are in the order of their first scans.
    """
    groups_of: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        groups = groups_of[row.participant]
        if row.group and row.group not in groups:
            groups.append(row.group)
    return {
        participant: groups
        for participant, groups in groups_of.items()
        if len(groups) > 1
    }


def _too_far_apart(rows: Iterable[_ScanRow]) -> dict[str, float]:
    """Return the years from first to last scan of each participant for whom they exceed 60."""
    years: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.year is not None:
            years[row.participant].append(row.year)
    too_far = {}
    for participant, times in years.items():
        apart = max(times) - min(times)
        if apart > _LONGEST_YEARS:
            too_far[participant] = apart
    return too_far


def _times_in(
    path: Path,
    key: str,
    read: dict[Path, Mapping[str, float | None]],
    doubts: list[str],
) -> Mapping[str, float | None]:
    """Return the time of each row of a BIDS table, in years, by the cell in the column `key`.

    `path` is the table, whose column `acq_time` has the times. `read` caches the tables that were
    read before. An invalid time becomes None and is added to `doubts`, because scans do not need a
    time. The result is empty if there is no such file.
    """
    if path not in read:
        found: dict[str, float | None] = {}
        if path.is_file():
            table = read_table(path)
            for row in table.rows:
                cells = dict(zip(table.titles, row.cells, strict=True))
                text = cells.get("acq_time", "")
                year = _year_of_date(text)
                if year is None and text.lower() not in MISSING:
                    doubts.append(f"{path.name}, row {row.number}: {text!r} is no date")
                found[cells.get(key, "")] = year
        read[path] = found
    return read[path]


def _from_table(
    cases: Sequence[Case],
    path: Path,
    refusals: Collection[Refusal],
    *,
    strict: bool,
) -> dict[str, _ScanRow]:
    """Return participant, time and group of each case that a table lists, by case id.

    The table `path` must have the columns scan and participant. It may also have the column group,
    and one column of times: date, years or days. ConfigError is raised if a needed column is
    missing, if a row names no scan of the run or a scan twice, or if times or groups contradict
    each other; DatasetError for a file that is not a table.
    """
    table = read_table(path)
    titles = [title.lower() for title in table.titles]
    if any(titles.count(column) != 1 for column in _NEEDED_COLUMNS):
        raise ConfigError(
            "needs the columns scan and participant, and may have date and group",
            where=path,
            remedy="write a line with these names above the rows",
        )
    times = _Times.of(titles, path)
    by_name = _names_of(cases, path.absolute().parent)
    refused = {composed(refusal.shown) for refusal in refusals}
    refused |= {composed(refusal.case) for refusal in refusals if refusal.case}
    known: dict[str, _ScanRow] = {}
    for row in table.rows:
        line = row.number
        cells = dict(zip(titles, row.cells, strict=True))
        scan = composed(cells["scan"])
        case_id = by_name.get(scan)
        if case_id is None and scan in refused:
            continue
        if case_id is None:
            what = f"line {line}: {cells['scan']!r} is no scan of this run"
            remedy = "write it as the path that is given, or as in summary.tsv"
            raise ConfigError(what, where=path, remedy=remedy)
        if case_id in known:
            what = f"line {line}: {cells['scan']!r} is there twice"
            raise ConfigError(what, where=path, remedy="keep one of the two lines")
        if cells["participant"].lower() in NO_NAME:
            what = f"line {line}: no participant"
            raise ConfigError(what, where=path, remedy="write whose scan it is")
        group = cells.get("group", "")
        if group.lower() in NO_NAME:
            group = ""
        year = times.year(cells, line)
        known[case_id] = _ScanRow(cells["participant"], year, group)
    spellings = one_spelling(row.group for row in known.values())
    known = {
        scan: replace(row, group=spellings[row.group]) for scan, row in known.items()
    }
    for participant, apart in _too_far_apart(known.values()).items():
        # Numbers of days have then been read as years.
        raise ConfigError(
            f"scans of {participant} are {apart:,.0f} years apart",
            where=path,
            remedy="call the column days if its numbers are days",
        )
    for participant, groups in _in_several_groups(known.values()).items():
        raise ConfigError(
            f"{participant} is in the groups {groups[0]!r} and {groups[1]!r}",
            where=path,
            remedy="write one group for each participant",
        )
    unnamed = [case.shown for case in cases if case.id not in known]
    notes = []
    if times.kind == "number":
        notes.append(f"the numbers in {times.column} are read as {times.unit}")
    doubts = []
    if times.column not in titles:
        like_times = [title for title in titles if _LIKE_TIMES.search(title)]
        doubts += [
            f"{title!r} is not read: times are in a column date, years or days"
            for title in like_times
        ]
    if unnamed:
        doubts.append(
            f"{len(unnamed)} of {len(cases)} scans are not in it: {some(unnamed)}"
        )
    report_table(path, notes, doubts, strict=strict)
    return known


def _names_of(cases: Sequence[Case], folder: Path) -> dict[str, str]:
    """Return a mapping of all names by which a table may refer to a scan to the id of its case.

    `folder` is the folder of the table. A name that fits several scans is omitted. All names are in
    Unicode's composed form.
    """
    names: dict[str, str | None] = {}
    for case in cases:
        own = {case.id, case.shown, str(case.path), case.path.name}
        own.add(os.path.relpath(case.path))
        if case.path.is_relative_to(folder):
            own.add(str(case.path.relative_to(folder)))
        for name in set(map(composed, own)):
            names[name] = None if name in names else case.id
    # Full names take precedence: they are unique even if they equal another scan's file name.
    for case in cases:
        names[composed(case.id)] = case.id
        names[composed(case.shown)] = case.id
    return {name: case_id for name, case_id in names.items() if case_id is not None}


@dataclass
class _Times:
    """Column of times in a table, either of dates or of numbers.

    `column` is the title and `unit` the unit of numbers, "years" or "days". `kind` is what has been
    read so far, "date" or "number": a table must not mix them, because an age beside a date would
    be centuries apart.
    """

    column: str
    unit: str
    path: Path
    kind: str = ""

    @classmethod
    def of(cls, titles: Sequence[str], path: Path) -> _Times:
        """Return the column of times among `titles` (lower case); assume "date" if there is none.

        ConfigError is raised for two such columns in the table `path`.
        """
        time_columns = [title for title in titles if title in _UNIT_OF_COLUMN]
        if len(time_columns) > 1:
            both = " and ".join(repr(title) for title in time_columns)
            raise ConfigError(
                f"has two columns of times, {both}", where=path, remedy="keep one"
            )
        column = time_columns[0] if time_columns else "date"
        return cls(column, _UNIT_OF_COLUMN[column], path)

    def year(self, cells: Mapping[str, str], line: int) -> float | None:
        """Return the time in a row in years from an arbitrary start; None if the cell is missing.

        `cells` maps titles to the cells of the row, `line` is its number for messages.
        """
        text = cells.get(self.column, "")
        if text.lower() in MISSING:
            return None
        kind = "date"
        year = _year_of_date(text)
        if year is None:
            # The cell is a number of days, or of years such as an age.
            kind = "number"
            try:
                year = number_in(text)
                if self.unit == "days" and may_be_thousands(text, _days_in):
                    raise self._error(line, f"{text!r} could be thousands or decimals")
            except ValueError:
                raise self._error(line, f"{text!r} is no date") from None
            if self.unit == "days":
                year /= _DAYS_OF_YEAR
            elif not any(low <= year <= high for low, high in _YEARS):
                raise self._error(line, f"{text!r} is no date and no number of years")
        if self.kind not in ("", kind):
            what = f"{text!r} is a {kind}, and other lines have {self.kind}s"
            raise self._error(line, what)
        self.kind = kind
        return year

    def _error(self, line: int, what: str) -> ConfigError:
        """Return the error for the time in a line."""
        return ConfigError(
            f"line {line}: {what}",
            where=self.path,
            remedy="write 2024-05-31, or in all rows a number of years (or days, in a column days)",
        )


def _days_in(cell: str) -> float:
    """Parse a number of days; raise ValueError if it exceeds the longest time between two scans."""
    days = number_in(cell)
    if days > _LONGEST_YEARS * _DAYS_OF_YEAR:
        raise ValueError("is too long")
    return days


def _year_of_date(text: str) -> float | None:
    """Convert an ISO 8601 date or time, 2024-05-31 or 20240531, to years; None if it is invalid.

    Years have equal length and are counted from 2000 on, so that equal numbers of days are equal
    times. Near 2000 the integer part is the year of the date.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    whole_days = (moment.date() - _START).days
    part_of_day = (60 * moment.hour + moment.minute) / (24 * 60)
    return _START.year + (whole_days + part_of_day) / _DAYS_OF_YEAR
