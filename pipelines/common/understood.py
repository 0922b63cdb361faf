"""What users are told of their tables: what was not understood, in a few lines, or as an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trinat.segmentation.data.people import Matched, People
from trinat.segmentation.errors import DatasetError

# So many lines are printed; the page of a report has all of them.
_MOST_LINES = 5


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
    if matched.rows or not matched.persons or not people.facts:
        return
    named = ", ".join(list(people.facts)[:3])
    raise DatasetError(
        f"0 of {matched.persons} persons are in the table",
        where=table,
        remedy=f"it has {named} ..., and scans are of {', '.join(matched.absent[:3])} ...",
    )
