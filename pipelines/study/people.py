"""What users are told of their tables of persons: what of them was understood, and what was not.

Commands say it in a few lines, or as an error; `trinat people` says all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from trinat.pipelines.study.files import find_files, persons_in_folders
from trinat.segmentation.data.identity import Named, identify
from trinat.segmentation.data.people import Facts, Matched, People
from trinat.segmentation.data.people_table import read_people
from trinat.segmentation.errors import ConfigError, DatasetError, one_line

# So many lines are printed; the page of a report has all of them.
_MOST_LINES = 5
_COLUMNS = ("age", "sex", "family", "site", "group", "intracranial_cm3")
_MM3_PER_CM3 = 1000


def say_of_table(
    table: Path,
    notes: Sequence[str],
    doubts: Sequence[str],
    say: Callable[[str], object],
    *,
    strict: bool = False,
) -> None:
    """Say how a table was read, and what of it was not understood, in five lines at most.

    With `strict` whatever was not understood is a DatasetError.
    """
    if strict and doubts:
        what = doubts[0]
        if len(doubts) > 1:
            what = f"{what} (and {len(doubts) - 1} more)"
        remedy = "mend the table, or leave out --strict"
        raise DatasetError(what, where=table, remedy=remedy)
    lines = [*notes, *doubts]
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES + 1
        shows_all = f"{more} more: `trinat people {table.name}` shows all"
        lines = [*lines[: _MOST_LINES - 1], shows_all]
    for line in lines:
        say(f"{table.name}: {line}")


def refuse_strangers(table: Path, people: People, matched: Matched) -> None:
    """Raise if no scan has a row in a table that was given for them."""
    if matched.rows or not matched.persons:
        return
    remedy = "it has no rows"
    if people.facts:
        named = ", ".join(list(people.facts)[:3])
        absent = ", ".join(matched.absent[:3])
        remedy = f"it has {named} ..., and scans are of {absent} ..."
    raise DatasetError(
        f"0 of {matched.persons} persons are in the table", where=table, remedy=remedy
    )


def refuse_merged_persons(table: Path, people: People, matched: Matched) -> None:
    """Raise if the scans that are taken for one person's have rows of several persons.

    Rows of several sessions of a person (OAS2_0001_MR1, OAS2_0001_MR2) are of one.
    """
    rows_of: dict[str, dict[str, None]] = defaultdict(dict)
    for (_, person), row in matched.rows.items():
        rows_of[person][row] = None
    for person, rows in rows_of.items():
        persons = {scan.person for scan in identify([Named(row) for row in rows])}
        sexes = {people.facts[row].sex for row in rows} - {None}
        if len(persons) == 1 and len(sexes) < 2:
            continue
        named = " and ".join(list(rows)[:2])
        raise DatasetError(
            f"the scans of {person} have several rows in the table: {named}",
            where=table,
            remedy="rename the scans, so that each person's begin with the name of its row",
        )


def match_people(
    table: Path,
    names: Sequence[tuple[str, str]],
    say: Callable[[str], object],
    *,
    strict: bool = False,
) -> Matched:
    """Whose row of a given table each scan has, by (name, person); says how the table was read.

    ConfigError without the table. DatasetError where it has nobody of these scans, and with
    `strict` where anything of it is not understood.
    """
    if not table.is_file():
        raise ConfigError("no such table", where=table)
    people = read_people(table)
    matched = people.match(names)
    refuse_strangers(table, people, matched)
    refuse_merged_persons(table, people, matched)
    doubts = people.doubts + matched.remarks
    say_of_table(table, people.notes, doubts, say, strict=strict)
    return matched


def show_people(
    table: Path,
    results: Path | None,
    say: Callable[[str], object],
    *,
    strict: bool = False,
) -> None:
    """Say all that is understood of a table, and what is not; with `results`, of which scans.

    The output is a table of tab-separated values, below lines that begin with #. DatasetError for
    a table that is refused, for one that has nobody of the results, and with `strict` for one of
    which anything is not understood.
    """
    if not table.is_file():
        raise ConfigError("no such table", where=table)
    people = read_people(table)
    for kind, title in people.columns.items():
        say(f"# {kind}: the column {title!r}")
    for note in people.notes:
        say(f"# {note}")
    doubts = list(people.doubts)
    if results is None:
        say("\t".join(("person", *_COLUMNS)))
        for name, facts in people.facts.items():
            say(_row(name, *_cells(facts)))
    else:
        files = find_files(results)
        matched = people.match((file.name, file.person) for file in files)
        refuse_strangers(table, people, matched)
        refuse_merged_persons(table, people, matched)
        say("\t".join(("scan", "person", "visit", "row", *_COLUMNS)))
        for file in files:
            row = matched.rows.get((file.name, file.person), "")
            facts = matched.of(file.name, file.person)
            say(_row(file.name, file.person, file.visit, row, *_cells(facts)))
        used = set(matched.rows.values())
        without = [name for name in people.facts if name not in used]
        if without:
            say(f"# rows without a scan: {', '.join(without)}")
        doubts += matched.remarks
        clash = persons_in_folders(files)
        if clash:
            doubts.append(clash)
    for doubt in doubts:
        say(one_line(f"# not understood: {doubt}"))
    if strict and doubts:
        what = f"not understood: {doubts[0]}"
        if len(doubts) > 1:
            what = f"{what}, and {len(doubts) - 1} more"
        raise DatasetError(what, where=table, remedy="mend the table")


def _row(*cells: str) -> str:
    """A row of the table; a line or a tab within a name does not end its cell."""
    return "\t".join(one_line(cell) for cell in cells)


def _cells(facts: Facts) -> tuple[str, ...]:
    """Write the facts of a person as text, empty where they are not known."""
    age = "" if facts.age is None else f"{facts.age:g}"
    intracranial = ""
    if facts.intracranial_mm3 is not None:
        intracranial = f"{facts.intracranial_mm3 / _MM3_PER_CM3:g}"
    return (
        age,
        facts.sex or "",
        facts.family or "",
        facts.site,
        facts.group,
        intracranial,
    )
