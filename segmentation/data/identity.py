"""Whose a scan is, and which of the person's scans, by its name and the folders that it is in.

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

What a name leaves open, the folders say, the nearest first: sub-01/ses-2/T1 is of sub-01. Two files
of one name in two folders are of two persons (`told_apart`), as sites number their persons alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

# OASIS-1 and -2, OASIS-3, BIDS, and the time points of FreeSurfer's users.
_VISIT = r"ses-[A-Za-z0-9+]+|MR(?:_d)?\d+|V\d{1,2}|tp\d{1,2}"
_BIDS = re.compile(r"(?P<person>sub-[A-Za-z0-9+]+)(?:[_.](?P<rest>.*))?")
_IXI = re.compile(r"(?P<person>IXI\d{3})-(?P<rest>[A-Za-z]+-\d+(?:[-_].*)?)")
_ADNI = re.compile(r"(?:ADNI_)?(?P<person>\d{3}_S_\d{4,5})(?:[-_.](?P<rest>.*))?")
_HCP = re.compile(r"(?P<person>\d{6})_(?P<rest>[37]T_.*)")
# The number of a field, the visit, and which of several files it is.
_UK_BIOBANK = re.compile(r"(?P<person>\d{7})_(?P<rest>\d{5}_\d_\d(?:[_.].*)?)")
_OTHER = re.compile(
    rf"(?:OASIS_(?=OAS))?(?P<person>.+?)_(?P<rest>(?:{_VISIT})(?:[_.].*)?)"
)
_NAMES = (_BIDS, _IXI, _ADNI, _HCP, _UK_BIOBANK, _OTHER)
_FIRST = re.compile(rf"({_VISIT}|\d{{5}}_\d(?=_\d))(?:[_.]|$)")
# A folder that is a visit, whatever persons are in it.
_VISIT_FOLDER = re.compile(
    rf"{_VISIT}|(?:visit|session|wave|timepoint)[-_]?\w{{1,8}}|baseline|follow[-_]?up\w*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Identity:
    """A person, and which of their scans it is: `visit` and, with it, all that tells scans apart.

    `scan` is "" where nothing tells it from others of the person. `site` are the folders above
    those of the person.
    """

    person: str
    visit: str = ""
    scan: str = ""
    site: tuple[str, ...] = ()


def identity_of(name: str, folders: Sequence[str] = ()) -> Identity | None:
    """Whose the scan of this name is, without its file's ending; None where nothing says it.

    `folders` are those around it, the outermost first.
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
            return Identity(match["person"], visit[1] if visit else "", scan, site)
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
    """The same scans, with persons of one name in several folders called by these: A/sub-01.

    Persons are two where both have the same scan, in two folders. Then all persons in these folders
    are called so. A folder that is a visit (baseline, ses-2) is one of the person's.
    """
    placed = [_with_visit_of_folder(scan) for scan in scans]
    sites: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for scan in placed:
        sites[scan.person, scan.scan].add(scan.site)
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


def _with_visit_of_folder(scan: Identity) -> Identity:
    """A scan with the visit that a folder above its person says, which is no site then."""
    visits = [folder for folder in scan.site if _VISIT_FOLDER.fullmatch(folder)]
    if not visits or scan.visit:
        return scan
    site = tuple(folder for folder in scan.site if folder not in visits)
    named = "_".join((*visits, scan.scan)) if scan.scan else "_".join(visits)
    return replace(scan, visit=visits[0], scan=named, site=site)
