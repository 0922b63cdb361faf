"""Persons and visits of scans, by their names and the folders that they are in.

| name, or folder | person | visit |
|---|---|---|
| sub-01_ses-2_run-1_T1w | sub-01 | ses-2 |
| OAS1_0001_MR2, OASIS_OAS1_0001_MR2 | OAS1_0001 | MR2 |
| OAS30001_MR_d0129 | OAS30001 | MR_d0129 |
| IXI002-Guys-0828-T1 | IXI002 | |
| 002_S_0413_MR_MPRAGE (ADNI) | 002_S_0413 | |
| 100307_3T_T1w_MPR1 (Human Connectome Project) | 100307 | |
| 1234567_20252_2_0 (UK Biobank) | 1234567 | 20252_2 |
| 07_V2, 07_tp2, 07_ses-b, 07.long.base | 07 | V2, tp2, ses-b |

The folders say what the name leaves open, the nearest first: sub-01/ses-2/T1 is a scan of sub-01.

`identify` decides for all scans of a study together, since one name is not always enough:

- Persons of one name below two folders (A/sub-01, B/sub-01) are two persons, because sites number
  their persons alike. Folders that are visits (baseline, V2) and identifiers that are unique in the
  world (OASIS, IXI, ADNI, HCP, UK Biobank) are exceptions.
- In TRIAL_V1_000, TRIAL_V1_001, ... the number behind the visit is the person's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from natsort import natsorted

# OASIS-1 and -2, OASIS-3, BIDS, and the time points of FreeSurfer's users.
_VISIT = r"ses-[A-Za-z0-9+]+|MR(?:_d\d+|\d{1,2})|V\d{1,2}|tp\d{1,2}"
_BIDS = re.compile(r"(?P<person>sub-[A-Za-z0-9+]+)(?:[_.](?P<rest>.*))?")
_IXI = re.compile(r"(?P<person>IXI\d{3})-(?P<rest>[A-Za-z]+-\d+(?:[-_].*)?)")
_ADNI = re.compile(r"(?:ADNI_)?(?P<person>\d{3}_S_\d{4,5})(?:[-_.](?P<rest>.*))?")
_HCP = re.compile(r"(?P<person>\d{6})_(?P<rest>[37]T_.*)")
# The number of a field, the visit, and which of several files it is.
_UK_BIOBANK = re.compile(r"(?P<person>\d{7})_(?P<rest>\d{5}_\d_\d(?:[_.].*)?)")
_OASIS = re.compile(
    rf"(?:OASIS_)?(?P<person>OAS[12]_\d{{4}}|OAS3\d{{4}})_(?P<rest>(?:{_VISIT})(?:[_.].*)?)"
)
_OTHER = re.compile(rf"(?P<person>.+?)_(?P<rest>(?:{_VISIT})(?:[_.].*)?)")
# Identifiers of these are of one person, wherever they stand.
_UNIQUE = (_IXI, _ADNI, _HCP, _UK_BIOBANK, _OASIS)
_NAMES = (_BIDS, *_UNIQUE, _OTHER)
_FIRST = re.compile(rf"({_VISIT}|\d{{5}}_\d(?=_\d))(?:[_.]|$)")
# A folder that is a visit, whatever persons are in it.
_VISIT_FOLDER = re.compile(
    rf"{_VISIT}|(?:visit|session|wave|timepoint)[-_]?\w{{1,8}}|baseline|follow[-_]?up\w*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Identity:
    """The person of a scan, and which of their scans it is.

    `scan` is all that tells it from others of the person, the `visit` among it; "" for nothing.
    `site` are the folders above those of the person. `is_unique` is True if the person's name is an
    identifier that nobody else has.
    """

    person: str
    visit: str = ""
    scan: str = ""
    site: tuple[str, ...] = ()
    is_unique: bool = False


@dataclass(frozen=True)
class Named:
    """A scan's name without the ending of its file, and the folders around it, outermost first."""

    name: str
    folders: tuple[str, ...] = ()

    @classmethod
    def of_path(cls, path: str) -> Named:
        """Split the path of a scan, such as the name of a case."""
        *folders, name = path.split("/")
        return cls(name, tuple(folders))


def identify(scans: Sequence[Named]) -> list[Identity]:
    """Return the identity of each scan of a study."""
    return told_apart([identity_alone(scan) for scan in scans])


def identity_alone(scan: Named) -> Identity:
    """Return the identity by a scan's own name and folders, whatever other scans there are.

    If neither says anything, the scan has the name of its person.
    """
    identity = identity_of(scan.name, scan.folders)
    if identity is not None:
        return identity
    return Identity(scan.name, site=scan.folders)


def identity_of(name: str, folders: Sequence[str] = ()) -> Identity | None:
    """Return the identity by one name, without its file's ending; None if nothing says it.

    `folders` are those around it, the outermost first. Of several scans see `identify`.
    """
    # A longitudinal run of FreeSurfer's: what follows is its template.
    name, is_long, _ = name.partition(".long.")
    inside = ""
    for depth in range(len(folders), -1, -1):
        part = name if depth == len(folders) else folders[depth]
        matches = [pattern.fullmatch(part) for pattern in _NAMES]
        match = next((found for found in matches if found), None)
        if match is not None:
            scan = "_".join(text for text in (match["rest"] or "", inside) if text)
            visit = _FIRST.match(scan)
            site = _above(match["person"], folders[:depth])
            is_unique = match.re in _UNIQUE
            named_visit = visit[1] if visit else ""
            return Identity(match["person"], named_visit, scan, site, is_unique)
        inside = "_".join(text for text in (part, inside) if text)
    return Identity(name) if is_long else None


def _above(person: str, folders: Sequence[str]) -> tuple[str, ...]:
    """The folders above the person's own: A of A/sub-01/anat."""
    for depth, folder in enumerate(folders):
        own = identity_of(folder)
        if own is not None and own.person == person:
            return tuple(folders[:depth])
    return tuple(folders)


def told_apart(scans: Sequence[Identity]) -> list[Identity]:
    """Return the scans with the names of folders before persons whose name is below several.

    Then all persons in these folders are called so: A/sub-01. A unique identifier is two persons
    only if two folders have the same scan of it. A folder that is a visit is none of them.
    """
    placed = [_with_visit_of_folder(scan) for scan in _with_numbers(scans)]
    sites: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for scan in placed:
        same = scan.scan if scan.is_unique else ""
        sites[scan.person, same].add(scan.site)
    clashing: set[tuple[str, ...]] = set()
    for places in sites.values():
        if len(places) > 1:
            clashing |= places
    apart = []
    for scan in placed:
        if scan.site in clashing and scan.site:
            scan = replace(scan, person="/".join((*scan.site, scan.person)))
        apart.append(scan)
    return apart


def clash_among(persons: Iterable[str]) -> str:
    """Return a sentence on persons who are told apart by their folders; "" if there are none."""
    apart = {person for person in persons if "/" in person}
    if not apart:
        return ""
    named = ", ".join(natsorted(apart)[:2])
    return f"persons of one name in several folders are taken as several: {named}, ..."


def _with_visit_of_folder(scan: Identity) -> Identity:
    """A scan with the visit that a folder above its person says, which is no site then."""
    visits = [folder for folder in scan.site if _VISIT_FOLDER.fullmatch(folder)]
    if not visits or scan.visit:
        return scan
    site = tuple(folder for folder in scan.site if folder not in visits)
    named = "_".join((*visits, scan.scan)) if scan.scan else "_".join(visits)
    return replace(scan, visit=visits[0], scan=named, site=site)


def _with_numbers(scans: Sequence[Identity]) -> list[Identity]:
    """Return the scans with the numbers behind their visits as a part of the persons' names.

    TRIAL_V1_000 and TRIAL_V1_001 are of TRIAL_000 and TRIAL_001. Where there are as many persons as
    numbers (07_V1_1, 08_V1_1), these are runs.
    """
    numbers: dict[str, set[str]] = defaultdict(set)
    for scan in scans:
        number = _number_behind_visit(scan)
        if number:
            numbers[scan.person].add(number)
    renamed = []
    for scan in scans:
        number = _number_behind_visit(scan)
        if number and len(numbers[scan.person]) > len(numbers):
            scan = replace(
                scan,
                person=f"{scan.person}_{number}",
                scan=scan.scan.replace(f"_{number}", "", 1),
            )
        renamed.append(scan)
    return renamed


def _number_behind_visit(scan: Identity) -> str:
    """Return 000 of TRIAL_V1_000; "" if there is none, or the person's name is unique."""
    if scan.is_unique or not scan.visit or scan.person.startswith("sub-"):
        return ""
    rest = scan.scan.removeprefix(f"{scan.visit}_")
    number = re.match(r"\d+(?=_|$)", rest)
    return number[0] if number else ""
