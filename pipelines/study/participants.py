"""Facts about participants, and which row of a participants table belongs to which scan.

A row is never given to the scan of another participant. Ambiguous names are reported as doubts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Covariates that a linear model of groups may have beside group and site.
COVARIATES = ("age", "sex", "icv")
# Participants named in a message; the rest is counted.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Facts:
    """Age in years, sex (M or F), family, site, group and intracranial volume of a participant.

    Relatives share a `family`. Unknown facts are None; an unknown site or group is "".
    """

    age: float | None = None
    sex: str | None = None
    family: str | None = None
    site: str = ""
    group: str = ""
    intracranial_mm3: float | None = None


# Name of a scan and name of its participant.
Named = tuple[str, str]


@dataclass(frozen=True)
class Matched:
    """Rows of a table that belong to scans: `rows` and `facts`, by the scans' names.

    Scans without a row are in neither. `participants` counts the participants of all scans, and
    `absent` names those without a row. `notes` are those of the table; `doubts` are those of the
    table, and which names fit several rows.
    """

    rows: Mapping[Named, str]
    facts: Mapping[Named, Facts]
    participants: int
    absent: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]

    def of(self, scan: str, participant: str) -> Facts:
        """Return the facts about a scan's participant, empty if the table does not have them."""
        return self.facts.get((scan, participant), Facts())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages about what is not understood in the table, and about scans without a row.

        A table without rows, such as one that a dataset lacks, misses no scan.
        """
        if not self.absent:
            return self.doubts
        named = ", ".join(self.absent[:_MOST_NAMED])
        more = len(self.absent) - _MOST_NAMED
        if more > 0:
            named = f"{named} and {more} more"
        count = f"{len(self.absent)} of {self.participants} participants are not in the table"
        return (*self.doubts, f"{count}: {named}")


@dataclass(frozen=True)
class ParticipantsTable:
    """Content of a participants table: facts by participant (or by session, as in OASIS).

    `columns` has the title of the column that each fact was read from. `notes` say how values were
    read, `doubts` which cells were not understood, and `problems` why the table is refused.
    """

    facts: Mapping[str, Facts]
    columns: Mapping[str, str]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def match(self, scans: Iterable[Named]) -> Matched:
        """Find the rows of scans by the names of the scans and of their participants.

        A row belongs to the scan or participant of its name, and to those whose names begin with
        it: IXI002 to IXI002-Guys-0828-T1. The longest name wins. Case, `sub-` and leading zeros (1,
        01, SUB-01) are ignored where exactly one row and one participant remain.
        """
        every = list(dict.fromkeys(scans))
        rows: dict[Named, str] = {}
        for names in every:
            exact = [name for name in _names_of(*names) if name in self.facts]
            if exact:
                rows[names] = exact[0]
        doubts = self._match_loosely(every, rows)
        # A row that fits several participants may mean that they are one.
        participants_of: dict[str, dict[str, None]] = defaultdict(dict)
        for (_, participant), row in rows.items():
            participants_of[row][participant] = None
        for row, sharing in participants_of.items():
            if len(sharing) > 1:
                named = ", ".join(list(sharing)[:_MOST_NAMED])
                doubts.append(
                    f"{row} in the table is the row of {len(sharing)} participants: {named}"
                )
        participants = dict.fromkeys(participant for _, participant in every)
        present = {participant for _, participant in rows}
        absent: tuple[str, ...] = ()
        if self.facts:
            absent = tuple(
                participant
                for participant in participants
                if participant not in present
            )
        facts = {names: self.facts[row] for names, row in rows.items()}
        return Matched(
            rows, facts, len(participants), absent, self.notes, (*self.doubts, *doubts)
        )

    def _match_loosely(
        self, scans: Iterable[Named], rows: dict[Named, str]
    ) -> list[str]:
        """Add the rows that match apart from spelling to `rows`; return what is ambiguous."""
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


def _names_of(scan: str, participant: str, *, with_folder: bool = True) -> list[str]:
    """Return the names that a row of this scan may have, the longest first.

    The row of a participant in a folder (A/sub-01) is named with the folder, A/sub-01 or A_sub-01,
    without it, or by the folder alone.
    """
    folder, _, participant_alone = participant.rpartition("/")
    names: dict[str, None] = {}
    for text in (scan.rpartition("/")[2], participant_alone):
        ends = [found.start() for found in re.finditer(r"[-_.]|$", text)]
        names.update(dict.fromkeys(text[:end] for end in reversed(ends) if end))
    if not with_folder:
        # The folder of T1 in anna/T1 may be the participant's.
        return [*names, *([folder] if folder else [])]
    if not folder:
        return list(names)
    return [f"{folder}{mark}{name}" for name in names for mark in "/_"]


def _loosely(name: str) -> str:
    """Return a name without case, `sub-` and leading zeros: 1 for 1, 01, SUB-01 and sub_1."""
    without = re.sub(r"^sub[-_]?(?=.)", "", name.casefold())
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", without)


def _either(names: Sequence[str]) -> str:
    """Join the first names as alternatives."""
    named = " or ".join(names[:3])
    if len(names) > 3:
        named = f"{named} or {len(names) - 3} more"
    return named
