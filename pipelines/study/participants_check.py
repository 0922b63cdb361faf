"""Messages about participants tables: what was understood, and what was not.

Commands log at most five lines or raise; `trinat participants` prints everything.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from trinat.pipelines.study.files import segmented_together, years_of
from trinat.pipelines.study.participants import Facts, Matched, Named, ParticipantsTable
from trinat.pipelines.study.participants_table import (
    inspect_participants,
    read_participants,
    refuse_problems,
)
from trinat.pipelines.study.study import Study
from trinat.segmentation.data.identity import Named as NamedScan
from trinat.segmentation.data.identity import clash_among, identify
from trinat.segmentation.errors import ConfigError, DatasetError, one_line, some

_log = logging.getLogger(__name__)

# Maximum number of lines that a command logs about a table; the page of a report has all lines.
_MOST_LINES = 5
_COLUMNS = ("age", "sex", "family", "site", "group", "intracranial_cm3")
_MM3_PER_CM3 = 1000
# Scans within this number of years may share an age.
_SAME_AGE = 1


def read_given(table: Path) -> ParticipantsTable:
    """Read a participants table that the user named; raise ConfigError if it does not exist."""
    if not table.is_file():
        raise ConfigError("no such table", where=table)
    return read_participants(table)


def report_table(
    table: Path,
    notes: Sequence[str],
    doubts: Sequence[str],
    *,
    strict: bool = False,
) -> None:
    """Log how a participants table was read, and what was not understood, in at most five lines.

    `notes` say how values were read, and `doubts` which cells and names were not understood. With
    `strict`, a DatasetError is raised if there are doubts.
    """
    if strict and doubts:
        raise _error_of_doubts(table, doubts, "mend the table, or leave out --strict")
    lines = [(logging.INFO, note) for note in notes]
    lines += [(logging.WARNING, doubt) for doubt in doubts]
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES + 1
        shows_all = f"{more} more: `trinat participants {table.name}` shows all"
        level = logging.WARNING if doubts else logging.INFO
        lines = [*lines[: _MOST_LINES - 1], (level, shows_all)]
    for level, line in lines:
        _log.log(level, "%s: %s", table.name, line)


def _refuse_strangers(table: Path, matched: Matched) -> None:
    """Raise DatasetError if none of the scans has a row in the participants table.

    `table` is the path of the table, for the message. `matched` has the row of each scan.
    """
    if matched.rows or not matched.participants:
        return
    remedy = "it has no rows"
    if matched.table.facts:
        named = ", ".join(list(matched.table.facts)[:3])
        absent = ", ".join(matched.absent[:3])
        remedy = f"it has {named} ..., and scans are of {absent} ..."
    raise DatasetError(
        f"0 of {matched.participants} participants are in the table",
        where=table,
        remedy=remedy,
    )


def refuse_merged_participants(
    table: Path, matched: Matched, together: Collection[str] = ()
) -> None:
    """Raise DatasetError if scans of one participant match rows of different participants.

    `table` is the path of the table, for the message. `matched` has the row of each scan. Rows of
    several sessions of a participant (OAS2_0001_MR1, OAS2_0001_MR2) are rows of one participant,
    unless they differ in sex. The same holds for all rows of a participant in `together`, whose
    scans were segmented together: the run knew that they are of one participant.
    """
    rows_of: dict[str, dict[str, None]] = defaultdict(dict)
    for (_, participant), row in matched.rows.items():
        rows_of[participant][row] = None
    for participant, rows in rows_of.items():
        participants = {
            scan.participant for scan in identify([NamedScan(row) for row in rows])
        }
        sexes = {matched.table.facts[row].sex for row in rows} - {None}
        is_one = participant in together or len(participants) == 1
        if is_one and len(sexes) < 2:
            continue
        named = " and ".join(list(rows)[:2])
        raise DatasetError(
            f"the scans of {participant} have several rows in the table: {named}",
            where=table,
            remedy="rename the scans, so that each participant's begin with the name of its row",
        )


def shared_ages(matched: Matched, years: Mapping[Named, float]) -> str:
    """Return a warning that scans of several years have the age of one row; "" if none have.

    `years` has the times of scans, as far as they are known, by the names of the scan and of its
    participant.
    """
    years_of: dict[str, list[float]] = defaultdict(list)
    for names, year in years.items():
        row = matched.rows.get(names)
        if row is not None and matched.table.facts[row].age is not None:
            years_of[row].append(year)
    sharing = [
        row for row, times in years_of.items() if max(times) - min(times) > _SAME_AGE
    ]
    if not sharing:
        return ""
    return (
        f"{some(sharing)}: scans more than a year apart have the age of one row; give a row for "
        "each scan, with its age"
    )


def match_participants(
    table: Path,
    scans: Mapping[Named, Sequence[str]],
    *,
    strict: bool = False,
    is_given: bool = True,
    together: Collection[str] = (),
) -> Matched:
    """Match scans to the rows of a table, and log how the table was read.

    `scans` has the folders around each scan, by the scan's name and its participant's name, as for
    `ParticipantsTable.match`. `is_given` is True if the user has named the table: it must exist
    (ConfigError) and have a row of at least one scan (DatasetError). A table of a dataset may lack
    both. `together` are the participants whose scans were segmented together. With `strict`,
    DatasetError is raised for anything that is not understood.
    """
    participants_table = read_given(table) if is_given else read_participants(table)
    matched = participants_table.match(scans, together)
    if is_given:
        _refuse_strangers(table, matched)
    refuse_merged_participants(table, matched, together)
    report_table(table, participants_table.notes, matched.remarks, strict=strict)
    return matched


def describe_table(
    table: Path, results: Path | None, *, strict: bool = False
) -> Iterator[str]:
    """Yield the lines of a table that shows how a participants table was understood.

    Values are separated by tabs; lines that begin with # are messages. Without `results` there is a
    row for each participant, with `results` (a folder of label maps) a row for each scan.
    DatasetError is raised if the table is invalid or has a row of none of the scans, and with
    `strict` for doubts; ConfigError if it does not exist.
    """
    if not table.is_file():
        raise ConfigError("no such table", where=table)
    participants_table = inspect_participants(table)
    for kind, title in participants_table.columns.items():
        yield f"# {kind}: the column {title!r}"
    for note in participants_table.notes:
        yield f"# {note}"
    doubts = list(participants_table.doubts)
    if results is None:
        yield "\t".join(("participant", *_COLUMNS))
        for name, facts in participants_table.facts.items():
            yield _row(name, *_cells(facts))
    else:
        files = Study(results).label_maps()
        together = segmented_together(files)
        matched = participants_table.match(
            {(file.name, file.participant): file.parsed.folders for file in files},
            together,
        )
        _refuse_strangers(table, matched)
        refuse_merged_participants(table, matched, together)
        yield "\t".join(("scan", "participant", "session", "row", *_COLUMNS))
        for file in files:
            row = matched.rows.get((file.name, file.participant), "")
            facts = matched.of(file.name, file.participant)
            yield _row(file.name, file.participant, file.session, row, *_cells(facts))
        used = set(matched.rows.values())
        without = [name for name in participants_table.facts if name not in used]
        if without:
            yield f"# rows without a scan: {', '.join(without)}"
        doubts = list(matched.remarks)
        shared = shared_ages(matched, years_of(files))
        if shared:
            yield f"# {shared}"
        clash = clash_among(file.participant for file in files)
        if clash:
            doubts.append(clash)
    for problem in participants_table.problems:
        yield one_line(f"# refused: {problem}")
    for doubt in doubts:
        yield one_line(f"# not understood: {doubt}")
    refuse_problems(table, participants_table)
    if strict and doubts:
        raise _error_of_doubts(table, doubts, "mend the table")


def _error_of_doubts(table: Path, doubts: Sequence[str], remedy: str) -> DatasetError:
    """Return the error for a table with cells or names that were not understood.

    It contains the first of `doubts`, the number of others, and the advice `remedy`.
    """
    what = f"not understood: {doubts[0]}"
    if len(doubts) > 1:
        what = f"{what} (and {len(doubts) - 1} more)"
    return DatasetError(what, where=table, remedy=remedy)


def _row(*cells: str) -> str:
    """Join cells with tabs; line ends and tabs inside a cell are replaced."""
    return "\t".join(one_line(cell) for cell in cells)


def _cells(facts: Facts) -> list[str]:
    """Return the facts about a participant as cells of a table row; unknown facts are "".

    They are in the order of `_COLUMNS`.
    """
    intracranial_cm3 = None
    if facts.intracranial_mm3 is not None:
        intracranial_cm3 = facts.intracranial_mm3 / _MM3_PER_CM3
    values = (
        *(facts.age, facts.sex, facts.family, facts.site, facts.group),
        intracranial_cm3,
    )
    return [
        f"{value:g}" if isinstance(value, float) else value or "" for value in values
    ]
