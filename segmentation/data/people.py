"""What is known of persons, and whose scans are whose: the rows of a table, matched by names.

Nobody gets another person's row. What could be of several is named, in `doubts`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What a linear model of groups may take into account beside group and site.
COVARIATES = ("age", "sex", "icv")
# So many persons are named of those that a table lacks.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Facts:
    """What is known of a person.

    `age` in years; `family` is a name that relatives share; `group` is what a study calls the
    person's. None, or "" for site and group, is what is not known.
    """

    age: float | None = None
    sex: str | None = None
    family: str | None = None
    site: str = ""
    group: str = ""
    intracranial_mm3: float | None = None


# A scan's own name, and its person's.
Named = tuple[str, str]


@dataclass(frozen=True)
class Matched:
    """Which row of a table each scan has: its `rows` and `facts`, by the scan's names.

    Scans without a row are in neither. `persons` is how many persons the scans are of, `absent`
    names those without a row; `doubts` says which names could be of several rows.
    """

    rows: Mapping[Named, str]
    facts: Mapping[Named, Facts]
    persons: int
    absent: tuple[str, ...]
    doubts: tuple[str, ...]

    def of(self, scan: str, person: str) -> Facts:
        """What is known of a scan's person; nothing where the table does not have them."""
        return self.facts.get((scan, person), Facts())

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that users are told of the match; nothing where each scan has its row."""
        if not self.absent:
            return self.doubts
        named = ", ".join(self.absent[:_MOST_NAMED])
        more = len(self.absent) - _MOST_NAMED
        if more > 0:
            named = f"{named} and {more} more"
        count = f"{len(self.absent)} of {self.persons} persons are not in the table"
        return (*self.doubts, f"{count}: {named}")


@dataclass(frozen=True)
class People:
    """What a table says of persons (of OASIS: of sessions), by the names that they have there.

    `columns` has the title that each kind of fact was read from. `notes` are sentences on how
    numbers were taken, `doubts` on what was not understood, by row and column.
    """

    facts: Mapping[str, Facts]
    columns: Mapping[str, str]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def match(self, scans: Iterable[Named]) -> Matched:
        """The rows of scans by their names and their persons'; nobody gets two persons' facts.

        A row is of the scan or person whose name it has, or with whose name the scan's begins:
        IXI002 of IXI002-Guys-0828-T1. The longest name counts. Other letters, sub- and zeros (1,
        01, SUB-01) make no difference where one row and one person alone remain.
        """
        every = list(dict.fromkeys(scans))
        rows: dict[Named, str] = {}
        for names in every:
            exact = [name for name in _names_of(*names) if name in self.facts]
            if exact:
                rows[names] = exact[0]
        doubts = self._match_loosely(every, rows)
        # Several persons with one row may be one.
        persons_of: dict[str, dict[str, None]] = defaultdict(dict)
        for (_, person), row in rows.items():
            persons_of[row][person] = None
        for row, sharing in persons_of.items():
            if len(sharing) > 1:
                named = ", ".join(list(sharing)[:_MOST_NAMED])
                doubts.append(
                    f"{row} in the table is the row of {len(sharing)} persons: {named}"
                )
        persons = dict.fromkeys(person for _, person in every)
        present = {person for _, person in rows}
        absent = tuple(person for person in persons if person not in present)
        facts = {names: self.facts[row] for names, row in rows.items()}
        return Matched(rows, facts, len(persons), absent, tuple(doubts))

    def _match_loosely(
        self, scans: Iterable[Named], rows: dict[Named, str]
    ) -> list[str]:
        """Add to `rows` what remains if names are not taken to the letter; the doubtful ones."""
        taken = set(rows.values())
        free: dict[str, list[str]] = defaultdict(list)
        for name in self.facts:
            if name not in taken:
                free[_loosely(name)].append(name)
        claims: dict[str, dict[str, list[Named]]] = defaultdict(
            lambda: defaultdict(list)
        )
        doubts: dict[str, None] = {}
        for names in scans:
            if names in rows:
                continue
            found: list[str] = []
            for name in _names_of(*names, with_folder=False):
                found = found or free.get(_loosely(name), [])
            if len(found) > 1:
                doubts[f"{names[1]} could be {_either(found)} in the table"] = None
            elif found:
                claims[found[0]][names[1]].append(names)
        for row, claimed in claims.items():
            if len(claimed) > 1:
                doubts[f"{row} in the table could be {_either(list(claimed))}"] = None
                continue
            (of_one,) = claimed.values()
            rows.update(dict.fromkeys(of_one, row))
        return list(doubts)


def _names_of(scan: str, person: str, *, with_folder: bool = True) -> list[str]:
    """What a row may be called that is of this scan, the longest first.

    Of a person in a folder (A/sub-01) these are names with the folder, A/sub-01 or A_sub-01, or
    those without it.
    """
    folder, _, person_alone = person.rpartition("/")
    names: dict[str, None] = {}
    for text in (scan.rpartition("/")[2], person_alone):
        ends = [found.start() for found in re.finditer(r"[-_.]|$", text)]
        names.update(dict.fromkeys(text[:end] for end in reversed(ends) if end))
    if not folder or not with_folder:
        return list(names)
    return [f"{folder}{mark}{name}" for name in names for mark in "/_"]


def _loosely(name: str) -> str:
    """1 of 1, 01, SUB-01 and sub_1: what a name is without letters' case, sub- and zeros."""
    without = re.sub(r"^sub[-_]?(?=.)", "", name.casefold())
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", without)


def _either(names: Sequence[str]) -> str:
    """Names as alternatives; of many the first ones."""
    named = " or ".join(names[:3])
    if len(names) > 3:
        named = f"{named} or {len(names) - 3} more"
    return named
