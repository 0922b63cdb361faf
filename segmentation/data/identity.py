"""Participant and session of each scan, from its name and the folders that it is in.

| name, or folder | participant | session |
|---|---|---|
| sub-01_ses-2_run-1_T1w | sub-01 | ses-2 |
| OAS1_0001_MR2, OASIS_OAS1_0001_MR2 | OAS1_0001 | MR2 |
| OAS30001_MR_d0129 | OAS30001 | MR_d0129 |
| IXI002-Guys-0828-T1 | IXI002 | |
| 002_S_0413_MR_MPRAGE (ADNI) | 002_S_0413 | |
| 100307_3T_T1w_MPR1 (Human Connectome Project) | 100307 | |
| 1234567_20252_2_0 (UK Biobank) | 1234567 | 20252_2 |
| 07_V2, 07_v2, 07_tp2, 07_ses-b, 07.long.base | 07 | V2, v2, tp2, ses-b |
| 07_baseline, 07_followup, 07_visit2 | 07 | baseline, followup, visit2 |

Folders, the nearest first, supply what the name lacks: sub-01/ses-2/T1 is a scan of sub-01.

`identify` looks at all scans of a study together, since one name is not always enough:

- Equal names of participants below two folders (A/sub-01, B/sub-01) are two participants, because
  sites often use the same numbers. Exceptions are folders that are sessions (baseline, V2) and
  globally unique identifiers (OASIS, IXI, ADNI, HCP, UK Biobank).
- In TRIAL_V1_000, TRIAL_V1_001, ... the number after the session is that of the participant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from natsort import natsorted

# OASIS-1 and -2, OASIS-3, BIDS, and the time points of FreeSurfer's users.
_SESSION = (
    r"ses-[A-Za-z0-9+]+|MR(?:_d\d+|\d{1,2})|V\d{1,2}|tp\d{1,2}"
    r"|(?:visit|session|wave|timepoint)[-_]?\d{1,2}|baseline|follow[-_]?up\d{0,2}"
)
_BIDS = re.compile(r"(?P<participant>sub-[A-Za-z0-9+]+)(?:[_.](?P<rest>.*))?")
_IXI = re.compile(r"(?P<participant>IXI\d{3})-(?P<rest>[A-Za-z]+-\d+(?:[-_].*)?)")
_ADNI = re.compile(r"(?:ADNI_)?(?P<participant>\d{3}_S_\d{4,5})(?:[-_.](?P<rest>.*))?")
_HCP = re.compile(r"(?P<participant>\d{6})_(?P<rest>[37]T_.*)")
# Number of the data field, the session, and the index of one of several files.
_UK_BIOBANK = re.compile(r"(?P<participant>\d{7})_(?P<rest>\d{5}_\d_\d(?:[_.].*)?)")
_OASIS = re.compile(
    rf"(?:OASIS_)?(?P<participant>OAS[12]_\d{{4}}|OAS3\d{{4}})_(?P<rest>(?:{_SESSION})(?:[_.].*)?)"
)
_OTHER = re.compile(
    rf"(?P<participant>.+?)_(?P<rest>(?:{_SESSION})(?:[_.].*)?)", re.IGNORECASE
)
# Globally unique identifiers: each belongs to one participant in every folder.
_UNIQUE = (_IXI, _ADNI, _HCP, _UK_BIOBANK, _OASIS)
_NAMES = (_BIDS, *_UNIQUE, _OTHER)
_FIRST = re.compile(rf"({_SESSION}|\d{{5}}_\d(?=_\d))(?:[_.]|$)", re.IGNORECASE)
# What may number a participant behind a session: 000 and P01, but not T1 and run-01.
_NUMBER = re.compile(
    r"(\d+|(?!t[12]|pd|mpr|run|echo|acq|scan|rep|anat)[a-z]{1,8}-?\d+)(?=_|$)",
    re.IGNORECASE,
)
# A folder that is a session, with any number of participants in it.
_SESSION_FOLDER = re.compile(
    rf"{_SESSION}|(?:visit|session|wave|timepoint)[-_]?\w{{1,8}}|follow[-_]?up\w*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Identity:
    """Participant of a scan, and the parts of its name that distinguish it from their other scans.

    `scan` is everything that distinguishes it, including the `session`; "" for nothing. `site`
    are the folders above those of the participant. `is_unique` is True for a globally unique
    identifier.
    """

    participant: str
    session: str = ""
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
    return disambiguate([identity_alone(scan) for scan in scans])


def identity_alone(scan: Named) -> Identity:
    """Return the identity by a scan's own name and folders, whatever other scans there are.

    If neither says anything, the scan has the name of its participant.
    """
    identity = identity_of(scan.name, scan.folders)
    if identity is not None:
        return identity
    return Identity(scan.name, site=scan.folders)


def identity_of(name: str, folders: Sequence[str] = ()) -> Identity | None:
    """Return the identity from one name without a file ending; None if the name has none.

    `folders` are those around it, the outermost first. `identify` handles several scans
    together.
    """
    # In a longitudinal run of FreeSurfer, the template's name follows.
    name, is_long, _ = name.partition(".long.")
    inside = ""
    for depth in range(len(folders), -1, -1):
        part = name if depth == len(folders) else folders[depth]
        matches = [pattern.fullmatch(part) for pattern in _NAMES]
        match = next((found for found in matches if found), None)
        if match is not None:
            scan = "_".join(text for text in (match["rest"] or "", inside) if text)
            session = _FIRST.match(scan)
            site = _above(match["participant"], folders[:depth])
            is_unique = match.re in _UNIQUE
            named_session = session[1] if session else ""
            return Identity(match["participant"], named_session, scan, site, is_unique)
        inside = "_".join(text for text in (part, inside) if text)
    return Identity(name) if is_long else None


def _above(participant: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders above the participant's own: A of A/sub-01/anat."""
    for depth, folder in enumerate(folders):
        own = identity_of(folder)
        if own is not None and own.participant == participant:
            return tuple(folders[:depth])
    return tuple(folders)


def disambiguate(scans: Sequence[Identity]) -> list[Identity]:
    """Prefix participants with their folders if the same name occurs below several folders.

    All participants in these folders then get the prefix, as in A/sub-01. A unique identifier
    counts as two participants only if two folders have the same scan of it. Folders that are
    sessions are ignored.
    """
    placed = [_with_session_of_folder(scan) for scan in _with_numbers(scans)]
    sites: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for scan in placed:
        same = scan.scan if scan.is_unique else ""
        sites[scan.participant, same].add(scan.site)
    clashing: set[tuple[str, ...]] = set()
    for places in sites.values():
        if len(places) > 1:
            clashing |= places
    apart = []
    for scan in placed:
        if scan.site in clashing and scan.site:
            scan = replace(scan, participant="/".join((*scan.site, scan.participant)))
        apart.append(scan)
    return apart


def clash_among(participants: Iterable[str]) -> str:
    """Return a sentence on participants distinguished by folder only; "" if there are none."""
    apart = {participant for participant in participants if "/" in participant}
    if not apart:
        return ""
    named = ", ".join(natsorted(apart)[:2])
    return f"participants of one name in several folders are taken as several: {named}, ..."


def _with_session_of_folder(scan: Identity) -> Identity:
    """Use a folder above the participant that is a session as the session, instead of as a site."""
    sessions = [folder for folder in scan.site if _SESSION_FOLDER.fullmatch(folder)]
    if not sessions or scan.session:
        return scan
    site = tuple(folder for folder in scan.site if folder not in sessions)
    named = "_".join((*sessions, scan.scan)) if scan.scan else "_".join(sessions)
    return replace(scan, session=sessions[0], scan=named, site=site)


def _with_numbers(scans: Sequence[Identity]) -> list[Identity]:
    """Append numbers after sessions to participants' names where they identify participants.

    TRIAL_V1_000 and TRIAL_V1_001 belong to TRIAL_000 and TRIAL_001. If there are as many
    participants as numbers (07_V1_1, 08_V1_1), the numbers are runs.
    """
    numbers: dict[str, set[str]] = defaultdict(set)
    for scan in scans:
        number = _number_behind_session(scan)
        if number:
            numbers[scan.participant].add(number)
    renamed = []
    for scan in scans:
        number = _number_behind_session(scan)
        if number and len(numbers[scan.participant]) > len(numbers):
            scan = replace(
                scan,
                participant=f"{scan.participant}_{number}",
                scan=scan.scan.replace(f"_{number}", "", 1),
            )
        renamed.append(scan)
    return renamed


def _number_behind_session(scan: Identity) -> str:
    """Return 000 of TRIAL_V1_000; "" if there is no number, or the participant's name is unique."""
    if scan.is_unique or not scan.session or scan.participant.startswith("sub-"):
        return ""
    _, _, rest = scan.scan.partition(f"{scan.session}_")
    number = _NUMBER.match(rest)
    return number[0] if number else ""
