"""Attacks on identities: names, folders and tables of a study, drawn with the truth known.

The expectations follow docs/participants.md, not the code: who is one participant is known because
the study is drawn from participants. The participant and the session of a label map, of its scan,
and the row of the table that it gets must be the true ones; what is ambiguous must be named.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks.verdicts import wrong
from attacks.workshop import READ_S, Try, happens, time_limit
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.study.participants_check import refuse_merged_participants
from trinat.pipelines.study.participants_table import read_participants
from trinat.segmentation.data.identity import Named, clash_among, identify


@dataclass(frozen=True)
class _Scheme:
    """A way to name participants and scans; numbers and sessions are texts."""

    participant: Callable[[int], str]
    sessions: tuple[str, ...]
    name: Callable[[str, str], str]
    is_unique: bool = False  # everywhere in the world
    is_bids: bool = False


def _joined(participant: str, session: str) -> str:
    return f"{participant}_{session}" if session else participant


_BIDS = _Scheme(
    lambda n: f"sub-{n:02d}",
    ("ses-1", "ses-2", "ses-03"),
    lambda participant, session: f"{_joined(participant, session)}_T1w",
    is_bids=True,
)
_SCHEMES = (
    _BIDS,
    _Scheme(
        lambda n: f"sub-{n}",
        ("ses-a", "ses-b"),
        lambda participant, session: (
            f"{_joined(participant, session)}_acq-mprage_run-1_T1w"
        ),
        is_bids=True,
    ),
    _Scheme(lambda n: f"OAS1_{n:04d}", ("MR1", "MR2"), _joined, is_unique=True),
    _Scheme(
        lambda n: f"OAS3{n:04d}", ("MR_d0129", "MR_d2003"), _joined, is_unique=True
    ),
    _Scheme(
        lambda n: f"IXI{n:03d}",
        (),
        lambda participant, _: f"{participant}-Guys-0{participant[3:]}-T1",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{n:03d}_S_{7 * n:04d}",
        (),
        lambda participant, _: f"{participant}_MR_MPRAGE",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{100_000 + n}",
        (),
        lambda participant, _: f"{participant}_3T_T1w_MPR1",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{1_000_000 + n}",
        ("20252_2", "20252_3"),
        lambda participant, session: f"{participant}_{session}_0",
        is_unique=True,
    ),
    _Scheme(lambda n: f"{n:02d}", ("V1", "V2", "V3"), _joined),
    _Scheme(lambda n: f"P{n}", ("tp1", "tp2"), _joined),
    _Scheme(lambda n: f"S{n}", ("v1", "v2"), _joined),
    _Scheme(lambda n: f"pat{n:03d}", ("baseline", "followup"), _joined),
    _Scheme(lambda n: f"K-{n}", ("visit1", "visit2"), _joined),
    _Scheme(
        lambda n: f"TRIAL_P{n:02d}",
        ("V1", "V2"),
        lambda participant, session: f"TRIAL_{session}_{participant[6:]}",
    ),
    _Scheme(lambda n: f"anna-{n}", (), _joined),
    _Scheme(lambda n: f"study_MR{n:03d}", (), _joined),
    _Scheme(
        lambda n: f"TRIAL_{n:03d}",
        ("V1", "V2"),
        lambda participant, session: f"TRIAL_{session}_{participant[6:]}",
    ),
)
_SITES = ("A", "B", "Hamburg")
_SESSION_FOLDERS = (("V1", "V2"), ("baseline", "followup"), ("visit1", "visit2"))
_GROUPS = ("control", "patient")


@dataclass(frozen=True)
class _Scan:
    """A scan of the drawn study: the path of its label map, its participant and its session."""

    path: str  # below the folder of label maps, without the ending
    # As the documents say, with its site where participants of one name are several.
    participant: str
    session: str
    row: str  # of the table


def identities(attempt: Try) -> None:
    """Check that participants, sessions and table rows of a drawn study are right in all places."""
    chance = attempt.chance
    scheme = chance.choice(_SCHEMES)
    scans = _study(scheme, chance)
    maps = attempt.folder / "maps"
    for scan in scans:
        path = maps / f"{scan.path}_dseg.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with time_limit(READ_S):
        files = find_files(maps)
        by_path = {
            str(file.path.relative_to(maps)).removesuffix("_dseg.nii.gz"): file
            for file in files
        }
        if by_path.keys() != {scan.path for scan in scans}:
            raise wrong(f"{len(files)} of {len(scans)} label maps are found")
        for scan in scans:
            if by_path[scan.path].participant != scan.participant:
                found = by_path[scan.path].participant
                raise wrong(f"{scan.path} is of {scan.participant}, not of {found}")
        _compare_sessions(scans, by_path)
        _compare_with_scans(scans)
        several = len({scan.participant.rpartition("/")[2] for scan in scans}) < len(
            {scan.participant for scan in scans}
        )
        if several and not clash_among(file.participant for file in files):
            raise wrong("participants of one name are several without a word")
        _compare_rows(attempt.folder / "participants.tsv", scans, by_path, chance)


def _study(scheme: _Scheme, chance: random.Random) -> list[_Scan]:
    """Draw the scans of a study."""
    numbers = chance.sample(range(1, 30), chance.randint(3, 6))
    layout = chance.choice(("flat", "participants", "sites", "sessions", "files"))
    if layout == "files":
        # Files of one name in folders that are called as participants.
        names = [f"anna{number}" for number in numbers]
        return [_Scan(f"{name}/T1", f"{name}/T1", "", name) for name in names]
    if layout == "sessions" and (scheme.is_unique or scheme.is_bids):
        layout = "participants"
    if layout == "sessions":
        return _in_session_folders(scheme, numbers, chance)
    if layout == "sites":
        return _at_sites(scheme, numbers, chance)
    scans = []
    for number in numbers:
        participant = scheme.participant(number)
        for session in _sessions(scheme, chance):
            path = scheme.name(participant, session)
            if layout == "participants":
                folders = [participant, "anat"]
                if session.startswith("ses-"):
                    folders.insert(1, session)
                path = "/".join((*folders, path))
            scans.append(_Scan(path, participant, session, participant))
    return scans


def _sessions(scheme: _Scheme, chance: random.Random) -> tuple[str, ...]:
    """Draw the sessions of a participant; "" without any. A trial always names its session."""
    if not scheme.sessions:
        return ("",)
    if scheme.is_bids and happens(chance, 0.3):
        return ("",)
    return scheme.sessions[: chance.randint(1, len(scheme.sessions))]


def _in_session_folders(
    scheme: _Scheme, numbers: list[int], chance: random.Random
) -> list[_Scan]:
    """Put scans in folders that are sessions, under the names of their participants."""
    folders = chance.choice(_SESSION_FOLDERS)
    scans = []
    for number in numbers:
        participant = scheme.participant(number)
        scans += [
            _Scan(f"{folder}/{participant}", participant, folder, participant)
            for folder in folders[: chance.randint(1, 2)]
        ]
    return scans


def _at_sites(
    scheme: _Scheme, numbers: list[int], chance: random.Random
) -> list[_Scan]:
    """Put scans in folders of sites, with or without the same numbers of participants."""
    sites = _SITES[: chance.randint(2, 3)]
    of_sites = {
        site: chance.sample(numbers, chance.randint(2, len(numbers))) for site in sites
    }
    times: dict[int, int] = defaultdict(int)
    for of_site in of_sites.values():
        for number in of_site:
            times[number] += 1
    # If a name occurs in two folders, all participants in these folders are prefixed with the
    # folder.
    clashing = {
        site
        for site, of_site in of_sites.items()
        if any(times[number] > 1 for number in of_site)
    }
    scans = []
    session_of: dict[int, int] = defaultdict(int)
    for site, of_site in of_sites.items():
        for number in of_site:
            participant = scheme.participant(number)
            named = participant
            session = scheme.sessions[0] if scheme.sessions else ""
            if scheme.is_unique:
                # One participant in any folder: another session at each site, or there is but one.
                if session_of[number] and session_of[number] >= len(scheme.sessions):
                    continue
                session = scheme.sessions[session_of[number]] if scheme.sessions else ""
                session_of[number] += 1
            elif site in clashing:
                named = f"{site}/{participant}"
            path = f"{site}/{scheme.name(participant, session)}"
            scans.append(_Scan(path, named, session, named))
    return scans


def _compare_sessions(scans: list[_Scan], files: dict[str, ScanFile]) -> None:
    """Raise unless the scans of a participant have their own sessions."""
    seen: dict[tuple[str, str], _Scan] = {}
    for scan in scans:
        file = files[scan.path]
        other = seen.setdefault((file.participant, file.session), scan)
        if other is not scan:
            raise wrong(f"{scan.path} and {other.path} are one scan: {file.session!r}")
        if scan.session and scan.session not in file.session:
            raise wrong(f"{scan.path} is of {file.session!r}, not of {scan.session}")


def _compare_with_scans(scans: list[_Scan]) -> None:
    """Raise if a scan to segment belongs to another participant than its label map."""
    named = []
    for scan in scans:
        *folders, name = scan.path.split("/")
        named.append(Named(name, tuple(folders)))
    found = identify(named)
    for scan, identity in zip(scans, found, strict=True):
        if identity.participant != scan.participant:
            raise wrong(
                f"the scan {scan.path} is of {scan.participant}, not of {identity.participant}"
            )


def _compare_rows(
    table: Path,
    scans: list[_Scan],
    files: dict[str, ScanFile],
    chance: random.Random,
) -> None:
    """Raise if a scan gets the row of another participant, or none without a warning."""
    rows = list(dict.fromkeys(scan.row for scan in scans))
    absent = set(rows[1:]) if happens(chance, 0.1) else set()
    if happens(chance, 0.3):
        absent |= {chance.choice(rows)}
    kept = [row for row in rows if row not in absent]
    # The ages identify the rows.
    ages = {row: 20 + place for place, row in enumerate(rows)}
    spelling = chance.choice((str, str, str.lower, str.upper))
    lines = [
        f"{spelling(row)}\t{ages[row]}\tF\t{chance.choice(_GROUPS)}" for row in kept
    ]
    # Participants without a scan, whose names begin like others.
    lines += [
        f"{row}{end}\t99\tM\tother"
        for row, end in zip(kept, ("x", "-2", "b3"), strict=False)
        if happens(chance, 0.2) and f"{row}{end}" not in rows
    ]
    chance.shuffle(lines)
    table.write_text("\n".join(("participant_id\tage\tsex\tgroup", *lines, "")))
    participants_table = read_participants(table)
    named = {scan.path: (files[scan.path].name, scan.participant) for scan in scans}
    if happens(chance, 0.5):
        # As `predict --participants` asks, which sees scans.
        named = {scan.path: (Path(scan.path).name, scan.participant) for scan in scans}
    matched = participants_table.match(dict.fromkeys(named.values(), ()))
    refuse_merged_participants(table, matched)
    for scan in scans:
        found = matched.of(*named[scan.path]).age
        if scan.row in absent:
            if found is not None:
                raise wrong(f"{scan.path} has a row, and its participant has none")
            # An empty table that the user names is refused; another one misses no scan.
            if participants_table.facts and not matched.remarks:
                raise wrong(f"{scan.path} has no row, and nothing is said")
        elif found != ages[scan.row] and (found is not None or not matched.remarks):
            raise wrong(f"{scan.path} is {found}, not {ages[scan.row]}")


ATTACKS = {"identities": identities}
