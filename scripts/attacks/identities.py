"""Attacks on identities: names, folders and tables of a study, drawn with the truth known.

The expectations follow docs/participants.md, not the code: who is one person is known because the
study is drawn from persons. The person and the visit of a label map, of its scan, and the row of
the table that it gets must be the true ones; what is ambiguous must be named.
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
from trinat.pipelines.study.participants_check import refuse_merged_persons
from trinat.pipelines.study.participants_table import read_participants
from trinat.segmentation.data.identity import Named, clash_among, identify


@dataclass(frozen=True)
class _Scheme:
    """A way to name persons and scans: the number of a person, and of its visit, as text."""

    person: Callable[[int], str]
    visits: tuple[str, ...]
    name: Callable[[str, str], str]
    is_unique: bool = False  # everywhere in the world
    is_bids: bool = False


def _joined(person: str, visit: str) -> str:
    return f"{person}_{visit}" if visit else person


_BIDS = _Scheme(
    lambda n: f"sub-{n:02d}",
    ("ses-1", "ses-2", "ses-03"),
    lambda person, visit: f"{_joined(person, visit)}_T1w",
    is_bids=True,
)
_SCHEMES = (
    _BIDS,
    _Scheme(
        lambda n: f"sub-{n}",
        ("ses-a", "ses-b"),
        lambda person, visit: f"{_joined(person, visit)}_acq-mprage_run-1_T1w",
        is_bids=True,
    ),
    _Scheme(lambda n: f"OAS1_{n:04d}", ("MR1", "MR2"), _joined, is_unique=True),
    _Scheme(
        lambda n: f"OAS3{n:04d}", ("MR_d0129", "MR_d2003"), _joined, is_unique=True
    ),
    _Scheme(
        lambda n: f"IXI{n:03d}",
        (),
        lambda person, _: f"{person}-Guys-0{person[3:]}-T1",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{n:03d}_S_{7 * n:04d}",
        (),
        lambda person, _: f"{person}_MR_MPRAGE",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{100_000 + n}",
        (),
        lambda person, _: f"{person}_3T_T1w_MPR1",
        is_unique=True,
    ),
    _Scheme(
        lambda n: f"{1_000_000 + n}",
        ("20252_2", "20252_3"),
        lambda person, visit: f"{person}_{visit}_0",
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
        lambda person, visit: f"TRIAL_{visit}_{person[6:]}",
    ),
    _Scheme(lambda n: f"anna-{n}", (), _joined),
    _Scheme(lambda n: f"study_MR{n:03d}", (), _joined),
    _Scheme(
        lambda n: f"TRIAL_{n:03d}",
        ("V1", "V2"),
        lambda person, visit: f"TRIAL_{visit}_{person[6:]}",
    ),
)
_SITES = ("A", "B", "Hamburg")
_VISIT_FOLDERS = (("V1", "V2"), ("baseline", "followup"), ("visit1", "visit2"))
_GROUPS = ("control", "patient")


@dataclass(frozen=True)
class _Scan:
    """A scan of the drawn study: the path of its label map, its person and its visit."""

    path: str  # below the folder of label maps, without the ending
    person: (
        str  # as the documents say, with its site where persons of one name are several
    )
    visit: str
    row: str  # of the table


def identities(attempt: Try) -> None:
    """Check that persons, visits and table rows of a drawn study are right in all places."""
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
            if by_path[scan.path].person != scan.person:
                found = by_path[scan.path].person
                raise wrong(f"{scan.path} is of {scan.person}, not of {found}")
        _compare_visits(scans, by_path)
        _compare_with_scans(scans)
        several = len({scan.person.rpartition("/")[2] for scan in scans}) < len(
            {scan.person for scan in scans}
        )
        if several and not clash_among(file.person for file in files):
            raise wrong("persons of one name are several without a word")
        _compare_rows(attempt.folder / "people.tsv", scans, by_path, chance)


def _study(scheme: _Scheme, chance: random.Random) -> list[_Scan]:
    """Draw the scans of a study."""
    numbers = chance.sample(range(1, 30), chance.randint(3, 6))
    layout = chance.choice(("flat", "persons", "sites", "visits", "files"))
    if layout == "files":
        # Files of one name in folders that are called as persons.
        names = [f"anna{number}" for number in numbers]
        return [_Scan(f"{name}/T1", f"{name}/T1", "", name) for name in names]
    if layout == "visits" and (scheme.is_unique or scheme.is_bids):
        layout = "persons"
    if layout == "visits":
        return _in_visit_folders(scheme, numbers, chance)
    if layout == "sites":
        return _at_sites(scheme, numbers, chance)
    scans = []
    for number in numbers:
        person = scheme.person(number)
        for visit in _visits(scheme, chance):
            path = scheme.name(person, visit)
            if layout == "persons":
                folders = [person, "anat"]
                if visit.startswith("ses-"):
                    folders.insert(1, visit)
                path = "/".join((*folders, path))
            scans.append(_Scan(path, person, visit, person))
    return scans


def _visits(scheme: _Scheme, chance: random.Random) -> tuple[str, ...]:
    """Draw the visits of a person; "" if the scheme has none. A trial always names its visit."""
    if not scheme.visits:
        return ("",)
    if scheme.is_bids and happens(chance, 0.3):
        return ("",)
    return scheme.visits[: chance.randint(1, len(scheme.visits))]


def _in_visit_folders(
    scheme: _Scheme, numbers: list[int], chance: random.Random
) -> list[_Scan]:
    """Put scans in folders that are visits, under the names of their persons."""
    folders = chance.choice(_VISIT_FOLDERS)
    scans = []
    for number in numbers:
        person = scheme.person(number)
        scans += [
            _Scan(f"{folder}/{person}", person, folder, person)
            for folder in folders[: chance.randint(1, 2)]
        ]
    return scans


def _at_sites(
    scheme: _Scheme, numbers: list[int], chance: random.Random
) -> list[_Scan]:
    """Put scans in folders of sites, with or without the same numbers of persons."""
    sites = _SITES[: chance.randint(2, 3)]
    of_sites = {
        site: chance.sample(numbers, chance.randint(2, len(numbers))) for site in sites
    }
    times: dict[int, int] = defaultdict(int)
    for of_site in of_sites.values():
        for number in of_site:
            times[number] += 1
    # If a name occurs in two folders, all persons in these folders are prefixed with the
    # folder.
    clashing = {
        site
        for site, of_site in of_sites.items()
        if any(times[number] > 1 for number in of_site)
    }
    scans = []
    visit_of: dict[int, int] = defaultdict(int)
    for site, of_site in of_sites.items():
        for number in of_site:
            person = scheme.person(number)
            named = person
            visit = scheme.visits[0] if scheme.visits else ""
            if scheme.is_unique:
                # One person in any folder: another visit at each site, or there is but one.
                if visit_of[number] and visit_of[number] >= len(scheme.visits):
                    continue
                visit = scheme.visits[visit_of[number]] if scheme.visits else ""
                visit_of[number] += 1
            elif site in clashing:
                named = f"{site}/{person}"
            path = f"{site}/{scheme.name(person, visit)}"
            scans.append(_Scan(path, named, visit, named))
    return scans


def _compare_visits(scans: list[_Scan], files: dict[str, ScanFile]) -> None:
    """Raise unless the scans of a person have their own visits."""
    seen = {}
    for scan in scans:
        file = files[scan.path]
        other = seen.setdefault((file.person, file.visit), scan)
        if other is not scan:
            raise wrong(f"{scan.path} and {other.path} are one scan: {file.visit!r}")
        if scan.visit and scan.visit not in file.visit:
            raise wrong(f"{scan.path} is of {file.visit!r}, not of {scan.visit}")


def _compare_with_scans(scans: list[_Scan]) -> None:
    """Raise if a scan to segment belongs to another person than its label map."""
    found = identify([Named.of_path(scan.path) for scan in scans])
    for scan, identity in zip(scans, found, strict=True):
        if identity.person != scan.person:
            raise wrong(
                f"the scan {scan.path} is of {scan.person}, not of {identity.person}"
            )


def _compare_rows(
    table: Path,
    scans: list[_Scan],
    files: dict[str, ScanFile],
    chance: random.Random,
) -> None:
    """Raise if a scan gets the row of another person, or none without a warning."""
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
    # Persons without a scan, whose names begin like others.
    lines += [
        f"{row}{end}\t99\tM\tother"
        for row, end in zip(kept, ("x", "-2", "b3"), strict=False)
        if happens(chance, 0.2) and f"{row}{end}" not in rows
    ]
    chance.shuffle(lines)
    table.write_text("\n".join(("participant_id\tage\tsex\tgroup", *lines, "")))
    people = read_participants(table)
    named = {scan.path: (files[scan.path].name, scan.person) for scan in scans}
    if happens(chance, 0.5):
        # As `predict --participants` asks, which sees scans.
        named = {scan.path: (Path(scan.path).name, scan.person) for scan in scans}
    matched = people.match(named.values())
    refuse_merged_persons(table, people, matched)
    for scan in scans:
        found = matched.of(*named[scan.path]).age
        if scan.row in absent:
            if found is not None:
                raise wrong(f"{scan.path} has a row, and its person has none")
            if not matched.remarks:
                raise wrong(f"{scan.path} has no row, and nothing is said")
        elif found != ages[scan.row] and (found is not None or not matched.remarks):
            raise wrong(f"{scan.path} is {found}, not {ages[scan.row]}")


ATTACKS = {"identities": identities}
