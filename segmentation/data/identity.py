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
A DICOM series is a scan of the participant whose folder it is in, whatever that is called:
07/series-5-dd82e866 and 07/baseline/series-3-0123abcd are of 07.

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

from trinat.segmentation.errors import some
from trinat.segmentation.io.cells import composed

# Names of sessions in OASIS-1 and -2, OASIS-3 and BIDS, and names of time points that users of
# FreeSurfer choose.
_SESSION = (
    r"ses-[A-Za-z0-9+]+|MR(?:_d\d+|\d{1,2})|V\d{1,2}|tp\d{1,2}"
    r"|(?:visit|session|wave|timepoint)[-_]?\d{1,2}|baseline|follow[-_]?up\d{0,2}"
)
_BIDS = re.compile(r"(?P<participant>sub-[A-Za-z0-9+]+)(?:[_.](?P<rest>.*))?")
_IXI = re.compile(r"(?P<participant>IXI\d{3})-(?P<rest>[A-Za-z]+-\d+(?:[-_].*)?)")
_ADNI = re.compile(r"(?:ADNI_)?(?P<participant>\d{3}_S_\d{4,5})(?:[-_.](?P<rest>.*))?")
_HCP = re.compile(r"(?P<participant>\d{6})_(?P<rest>[37]T_.*)")
# `rest` has the number of the data field, the session, and the index of one of several files.
_UK_BIOBANK = re.compile(r"(?P<participant>\d{7})_(?P<rest>\d{5}_\d_\d(?:[_.].*)?)")
_OASIS = re.compile(
    rf"(?:OASIS_)?(?P<participant>OAS[12]_\d{{4}}|OAS3\d{{4}})_(?P<rest>(?:{_SESSION})(?:[_.].*)?)"
)
_NAME_WITH_SESSION = re.compile(
    rf"(?P<participant>.+?)_(?P<rest>(?:{_SESSION})(?:[_.].*)?)", re.IGNORECASE
)
# Globally unique identifiers: each belongs to one participant in every folder.
_UNIQUE = (_IXI, _ADNI, _HCP, _UK_BIOBANK, _OASIS)
_NAMES = (_BIDS, *_UNIQUE, _NAME_WITH_SESSION)
_SESSION_AT_START = re.compile(
    rf"({_SESSION}|\d{{5}}_\d(?=_\d))(?:[_.]|$)", re.IGNORECASE
)
# Text that may be a participant's number after the session: 000 and P01, but not T1 and run-01.
_NUMBER_AFTER_SESSION = re.compile(
    r"(\d+|(?!t[12]|pd|mpr|run|echo|acq|scan|rep|anat)[a-z]{1,8}-?\d+)(?=_|$)",
    re.IGNORECASE,
)
# A day: 20160115.
_DATE = re.compile(r"(19|20)\d{2}(0[1-9]|1[0-2])([0-2]\d|3[01])")
# Name of a folder that is a session and may hold any number of participants.
_SESSION_FOLDER = re.compile(
    rf"{_SESSION}|(?:visit|session|wave|timepoint)[-_]?\w{{1,8}}|follow[-_]?up\w*",
    re.IGNORECASE,
)

# Name of a scan that is a DICOM series: its number, if it has one, and a part of a hash.
_SERIES = re.compile(r"series-(?:\d{1,9}-)?[0-9a-f]{8}")


@dataclass(frozen=True)
class Identity:
    """Participant and session of a scan, as its name and its folders tell them.

    `scan` is the part of the name that distinguishes the scan from other scans of the participant,
    including the `session`; "" if there is none. `beside` is what stands of it in the same folder
    or file name as the participant. `site` has the folders above the participant's own
    folder, outermost first. `is_unique` is True if the participant's identifier is globally unique.
    """

    participant: str
    session: str = ""
    scan: str = ""
    site: tuple[str, ...] = ()
    is_unique: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Named:
    """A scan's name without the ending of its file, and the folders around it, outermost first."""

    name: str
    folders: tuple[str, ...] = ()


def identify(scans: Sequence[Named]) -> list[Identity]:
    """Return participant and session of each scan of a study, from names and folders.

    The results are in the order of the scans. Names are compared across the study, so that equal
    names at different sites stay apart.
    """
    return disambiguate([identity_alone(scan) for scan in scans])


def is_series(name: str) -> bool:
    """Return True if the name of a scan is that of a DICOM series, such as series-3-0123abcd."""
    return _SERIES.fullmatch(name) is not None


def identity_alone(scan: Named) -> Identity:
    """Return participant and session of a scan by its name and folders, without other scans.

    If they tell nothing, the name of the scan is used as that of the participant, or for a DICOM
    series the name of the nearest folder that is no session. Names are returned in Unicode's
    composed form, so that they can be compared.
    """
    name = composed(scan.name)
    folders = tuple(map(composed, scan.folders))
    identity = identity_of(name, folders)
    if identity is not None:
        return identity
    if is_series(name):
        for depth, folder in reversed(list(enumerate(folders))):
            if not _SESSION_FOLDER.fullmatch(folder):
                around = (*folders[:depth], *folders[depth + 1 :])
                series = Identity(folder, scan=name, site=around)
                return _with_session_of_folder(series)
    return Identity(name, site=folders)


def identity_of(name: str, folders: Sequence[str] = ()) -> Identity | None:
    """Return participant and session from a name without file ending, such as sub-01_ses-2_T1w.

    The result is None if no known pattern matches, and the name is not that of a longitudinal
    FreeSurfer folder. `folders` are the folders around the file, outermost first. They are
    searched, from the innermost outwards, if the name does not match. To compare several scans, use
    `identify`.
    """
    # Longitudinal FreeSurfer folders are called SCAN.long.TEMPLATE.
    name, is_long, _ = name.partition(".long.")
    inside = ""
    for depth in range(len(folders), -1, -1):
        part = name if depth == len(folders) else folders[depth]
        matches = [pattern.fullmatch(part) for pattern in _NAMES]
        match = next((found for found in matches if found), None)
        if match is not None:
            scan = "_".join(text for text in (match["rest"] or "", inside) if text)
            session = _SESSION_AT_START.match(scan)
            site = _folders_above(match["participant"], folders[:depth])
            is_unique = match.re in _UNIQUE
            named_session = session[1] if session else ""
            beside = match["rest"] or ""
            return Identity(
                match["participant"], named_session, scan, site, is_unique, beside
            )
        inside = "_".join(text for text in (part, inside) if text)
    return Identity(name) if is_long else None


def _folders_above(participant: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the folders above the participant's own folder: A for A/sub-01/anat."""
    for depth, folder in enumerate(folders):
        own = identity_of(folder)
        if own is not None and own.participant == participant:
            return tuple(folders[:depth])
    return tuple(folders)


def disambiguate(scans: Sequence[Identity]) -> list[Identity]:
    """Prefix participants with their folders if the same name occurs below several folders.

    All participants in these folders then get the prefix, as in A/sub-01. A unique identifier is
    prefixed only if the same scan of it is in two folders, whatever the others are called. Folders
    that are sessions are ignored.
    """
    placed = [_with_session_of_folder(scan) for scan in _with_numbers(scans)]
    sites: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    sites_of_scan: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for scan in placed:
        if scan.is_unique:
            sites_of_scan[scan.participant, scan.scan].add(scan.site)
        else:
            sites[scan.participant].add(scan.site)
    clashing: set[tuple[str, ...]] = set()
    for places in sites.values():
        if len(places) > 1:
            clashing |= places
    repeated = {
        participant
        for (participant, _), places in sites_of_scan.items()
        if len(places) > 1
    }
    apart = []
    for scan in placed:
        is_apart = scan.site in clashing
        if scan.is_unique:
            is_apart = scan.participant in repeated
        if is_apart and scan.site:
            scan = replace(scan, participant="/".join((*scan.site, scan.participant)))
        apart.append(scan)
    return apart


def clash_among(participants: Iterable[str]) -> str:
    """Return a sentence that names participants with a folder prefix, or "" if there are none.

    `participants` are names from `disambiguate`; it adds the prefix to equal names in several
    folders.
    """
    apart = {participant for participant in participants if "/" in participant}
    if not apart:
        return ""
    named = some(natsorted(apart), most=2)
    return f"participants of one name in several folders are taken as several: {named}"


def _with_session_of_folder(scan: Identity) -> Identity:
    """Return a copy of `scan` with the session that one of its folders names; no file is moved.

    For the scan of baseline/07, `site` is ("baseline",) before and () afterwards, and `session` is
    "baseline". The session is also put in front of the scan's name (`scan`). A scan is returned
    unchanged if it has a session already, or if none of its folders has the name of a session.
    """
    sessions = [folder for folder in scan.site if _SESSION_FOLDER.fullmatch(folder)]
    if not sessions or scan.session:
        return scan
    site = tuple(folder for folder in scan.site if folder not in sessions)
    named = "_".join((*sessions, scan.scan)) if scan.scan else "_".join(sessions)
    return replace(scan, session=sessions[0], scan=named, site=site)


def _with_numbers(scans: Sequence[Identity]) -> list[Identity]:
    """Append the number after the session to the participant's name if it identifies a participant.

    TRIAL_V1_000 and TRIAL_V1_001 belong to TRIAL_000 and TRIAL_001. This holds for all scans, if a
    session of one name has more numbers than the study has names with a session; otherwise the
    numbers are runs (07_V1_1, 07_V1_2, 08_V1).
    """
    numbers: dict[tuple[str, str], set[str]] = defaultdict(set)
    names = set()
    for scan in scans:
        if scan.session and not scan.is_unique:
            names.add(scan.participant)
        number = _number_after_session(scan)
        if number:
            numbers[scan.participant, scan.session].add(number)
    most = max(map(len, numbers.values()), default=0)
    if most <= len(names):
        return list(scans)
    renamed = []
    for scan in scans:
        number = _number_after_session(scan)
        if number:
            scan = replace(
                scan,
                participant=f"{scan.participant}_{number}",
                scan=scan.scan.replace(f"_{number}", "", 1),
            )
        renamed.append(scan)
    return renamed


def _number_after_session(scan: Identity) -> str:
    """Return the number after the session in a scan's name: 000 for TRIAL_V1_000.

    "" if there is no number, if it is a date, or if the participant's identifier is unique or a
    BIDS label.
    """
    if scan.is_unique or not scan.session or scan.participant.startswith("sub-"):
        return ""
    _, _, rest = scan.beside.partition(f"{scan.session}_")
    number = _NUMBER_AFTER_SESSION.match(rest)
    if number is None or _DATE.fullmatch(number[0]):
        return ""
    return number[0]
