"""Facts about participants, and the matching of scans to rows of a participants table.

A row is never used for the scan of another participant. Ambiguous names are reported as doubts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trinat.segmentation.errors import some
from trinat.segmentation.io.cells import composed

# Covariates that a linear model of groups may have beside group and site.
COVARIATES = ("age", "sex", "icv")
# A covariate that the user did not name is used if it is known for this share of the participants.
LEAST_KNOWN = 0.8


@dataclass(frozen=True)
class Facts:
    """Age, sex and other facts about a participant, from a participants table.

    `age` is in years, `sex` is M or F, and relatives share a `family`. `intracranial_mm3` is the
    volume inside the skull. Unknown facts are None; an unknown site or group is "".
    """

    age: float | None = None
    sex: str | None = None
    family: str | None = None
    site: str = ""
    group: str = ""
    intracranial_mm3: float | None = None


# Pair of the name of a scan and the name of its participant.
Named = tuple[str, str]


@dataclass(frozen=True)
class Matched:
    """Result of matching scans to the rows of a participants table.

    `rows` has the name of the row of `table` that belongs to a scan, by the name of the scan and
    the name of its participant. Scans without a row are not in it. `participants` is the number of
    participants of all scans; `absent` names the participants without a row. `doubts` are warnings:
    about cells that were not understood, followed by ambiguous names.
    """

    table: ParticipantsTable
    rows: Mapping[Named, str]
    participants: int
    absent: tuple[str, ...]
    doubts: tuple[str, ...]

    def of(self, scan: str, participant: str) -> Facts:
        """Return age, sex and so on of a scan's participant; all unknown if it has no row."""
        row = self.rows.get((scan, participant))
        return Facts() if row is None else self.table.facts[row]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Messages about cells and names that are not understood, and participants without a row.

        There is no message about missing rows if the table has no rows at all, such as a table that
        a dataset lacks.
        """
        if not self.absent:
            return self.doubts
        named = some(self.absent)
        count = f"{len(self.absent)} of {self.participants} participants are not in the table"
        return (*self.doubts, f"{count}: {named}")


@dataclass(frozen=True)
class ParticipantsTable:
    """Content of a participants table: age, sex and so on of each participant.

    `facts` maps the name of each row, which is a participant (or a session, as in OASIS), to the
    facts in the row. `columns` maps each kind of fact, such as "age", to the title of the column
    that it was read from. `notes` say how values were read, `doubts` which cells were not
    understood, and `problems` why the table is invalid.
    """

    facts: Mapping[str, Facts]
    columns: Mapping[str, str]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def match(
        self, scans: Mapping[Named, Sequence[str]], together: Collection[str] = ()
    ) -> Matched:
        """Match scans to the rows of the table, by the names of scans and of their participants.

        `scans` maps the names of each scan to the folders around it, outermost first. `together`
        are the participants that a run or a table of sessions has named, whatever the names of
        their scans. A row with the name of such a participant is only for its scans.

        A row belongs to the scan or participant with the name of the row, or with a name that
        begins with it: row IXI002 to scan IXI002-Guys-0828-T1. The longest row name wins. Upper
        case, `sub-` and leading zeros (1, 01, SUB-01) are ignored if only one row and one
        participant match then. A row may also have the name of a folder that holds one participant.
        """
        rows: dict[Named, str] = {}
        searched: dict[Named, Named] = {}
        listed = {_normalised(name) for name in self.facts}
        for names in scans:
            scan, participant = names
            # The name of the scan may be that of another participant.
            is_listed = participant in together and _normalised(participant) in listed
            if is_listed and participant not in _beginnings(scan):
                scan = participant
            searched[names] = (scan, participant)
            exact = [
                name
                for name in _names_of(*searched[names])
                if name in self.facts and (name == participant or name not in together)
            ]
            if exact:
                rows[names] = exact[0]
        doubts = self._match_loosely(scans, searched, rows)
        # Participants that share a row may be the same participant under several names.
        participants_of: dict[str, dict[str, None]] = defaultdict(dict)
        for (_, participant), row in rows.items():
            participants_of[row][participant] = None
        for row, sharing in participants_of.items():
            if len(sharing) > 1:
                doubts.append(
                    f"{row} in the table is the row of {len(sharing)} participants: {some(sharing)}"
                )
        participants = dict.fromkeys(participant for _, participant in scans)
        present = {participant for _, participant in rows}
        absent: tuple[str, ...] = ()
        if self.facts:
            absent = tuple(
                participant
                for participant in participants
                if participant not in present
            )
        return Matched(self, rows, len(participants), absent, (*self.doubts, *doubts))

    def _match_loosely(
        self,
        scans: Mapping[Named, Sequence[str]],
        searched: Mapping[Named, Named],
        rows: dict[Named, str],
    ) -> list[str]:
        """Match the remaining scans by names without case, `sub-` and leading zeros.

        The names are those in `searched` for the scan and its participant, and its folders. The
        matches are added to `rows`, which maps scans to names of rows. Returns a message for each
        ambiguous name.
        """
        taken = set(rows.values())
        free: dict[str, list[str]] = defaultdict(list)
        for name in self.facts:
            if name not in taken:
                free[_normalised(name)].append(name)
        claims: dict[str, dict[str, list[Named]]] = defaultdict(
            lambda: defaultdict(list)
        )
        doubts: dict[str, None] = {}
        folders_of = _own_folders(scans)
        for names in scans:
            if names in rows:
                continue
            found: list[str] = []
            own = _names_of(*searched[names], with_folder=False)
            for name in (*own, *folders_of[names]):
                found = found or free.get(_normalised(name), [])
            if len(found) > 1:
                could_be = some(found, between=" or ", last=" or ")
                doubts[f"{names[1]} could be {could_be} in the table"] = None
            elif found:
                claims[found[0]][names[1]].append(names)
        for row, claimed in claims.items():
            if len(claimed) > 1:
                could_be = some(claimed, between=" or ", last=" or ")
                doubts[f"{row} in the table could be {could_be}"] = None
                continue
            (of_one,) = claimed.values()
            rows.update(dict.fromkeys(of_one, row))
        return list(doubts)


def _names_of(scan: str, participant: str, *, with_folder: bool = True) -> list[str]:
    """Return the names under which a participants table may list a scan, the longest first.

    They are beginnings of the name of the scan, `scan`, and of its participant: IXI002-Guys and
    IXI002. If `participant` has a folder (A/sub-01), names are A/sub-01 and A_sub-01; without
    `with_folder` the name is sub-01.
    """
    folder, _, participant_alone = participant.rpartition("/")
    names: dict[str, None] = {}
    for text in (scan.rpartition("/")[2], participant_alone):
        names.update(dict.fromkeys(_beginnings(text)))
    if not folder or not with_folder:
        return list(names)
    return [f"{folder}{mark}{name}" for name in names for mark in "/_"]


def _beginnings(name: str) -> list[str]:
    """Return a name and its beginnings before each dash, underscore and dot, the longest first."""
    ends = [found.start() for found in re.finditer(r"[-_.]|$", name)]
    return [name[:end] for end in reversed(ends) if end]


def _own_folders(scans: Mapping[Named, Sequence[str]]) -> dict[Named, list[str]]:
    """Return the names of the folders around each scan that hold only its participant.

    `scans` has all folders around each scan, outermost first; the result is innermost first.
    """
    participants_in: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for (_, participant), folders in scans.items():
        for depth in range(1, len(folders) + 1):
            participants_in[tuple(folders[:depth])].add(participant)
    own: dict[Named, list[str]] = {}
    for names, folders in scans.items():
        own[names] = [
            folders[depth - 1]
            for depth in range(len(folders), 0, -1)
            if len(participants_in[tuple(folders[:depth])]) == 1
        ]
    return own


def _normalised(name: str) -> str:
    """Return a name without case, `sub-` and leading zeros: "1" for 1, 01, SUB-01 and sub_1."""
    without = re.sub(r"^sub[-_]?(?=.)", "", composed(name).casefold())
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", without)
