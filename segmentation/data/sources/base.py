"""What every source of scans gives: subjects, and what was left out, each with its reason."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from natsort import natsort_keygen

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.labels.folding import FoldingTable

IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mgz")

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

natural_order = natsort_keygen()


@dataclass(frozen=True)
class Subject:
    """One scan of one person, and its labels where there are any."""

    id: str
    person: str
    image: Path | None
    labels: Path | None
    session: str | None = None
    image_axes: str | None = (
        None  # where the dataset vouches for axes that the header lacks
    )
    labels_axes: str | None = None
    extra: Mapping[int, int] = field(
        default_factory=dict
    )  # label number -> FreeSurfer number
    ignore: tuple[int, ...] = ()  # label numbers that are background here
    fold: FoldingTable | None = None  # the numbering of the labels; None: FreeSurfer's
    family: str | None = None
    age: float | None = None
    sex: str | None = None
    licence: str = ""
    note: str = ""


@dataclass(frozen=True)
class Exclusion:
    """What is no subject, or with `broken` one that should be and cannot be used."""

    name: str
    reason: str
    broken: bool = False


@dataclass(frozen=True)
class Listing:
    """All that was found, in natural order; `advice` says what would make more of it."""

    subjects: tuple[Subject, ...]
    exclusions: tuple[Exclusion, ...] = ()
    advice: str = ""

    @classmethod
    def of(cls, found: Sequence[Subject | Exclusion], unlabelled: str = "") -> Listing:
        """What was found; with the advice if none of it has labels."""
        subjects = tuple(entry for entry in found if isinstance(entry, Subject))
        exclusions = tuple(entry for entry in found if isinstance(entry, Exclusion))
        return cls(
            subjects, exclusions, "" if any(s.labels for s in subjects) else unlabelled
        )


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source, besides its folder."""

    scheme: str = "quicknat33"
    image: str | None = None  # which of a dataset's images, by the source's own word
    labels: str | None = None  # which of a dataset's label maps, likewise
    subjects_dir: Path | None = None  # FreeSurfer results kept elsewhere
    extra: Mapping[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = ()
    fold: FoldingTable | None = None  # None: what the source's label maps usually have


Found = Iterable[Subject | Exclusion]


@dataclass(frozen=True)
class Source:
    """How to find a dataset's subjects, and which files of its archives are of use."""

    find: Callable[[Path, SourceOptions], Found]
    nothing: str = ""  # the error where nothing is found, and its remedy
    remedy: str = ""
    advice: str = ""  # where nothing that was found has labels
    wanted_member: Callable[[str], bool] = lambda name: False
    member_axes: Callable[[Path], str | None] = lambda path: None
    partly_labelled: bool = (
        False  # whether scans without labels are usual among those with them
    )
    fixed_numbers: bool = False  # the dataset's own, which no options change
    # Of a published division, the subjects that train; all others of the dataset test.
    published_training: tuple[str, ...] = ()


def safe_name(text: str) -> str:
    """A name for files and folders: letters, digits, dot, underscore, dash; 64 at most."""
    name = _UNSAFE.sub("_", text).lstrip(".-_")[:64]
    if not _SAFE.fullmatch(name):
        raise DatasetError(
            f"no subject name can be made of {text!r}", remedy="rename it"
        )
    return name


def without_suffix(path: Path) -> str:
    """The file's name without the ending of a scan, such as .nii.gz, or else without its last."""
    lower = path.name.lower()
    suffix = next(
        (ending for ending in SCAN_SUFFIXES if lower.endswith(ending)), path.suffix
    )
    return path.name[: len(path.name) - len(suffix)]


def first_existing(folder: Path, *names: str) -> Path | None:
    """The first of these files that is there."""
    for name in names:
        # Not Path.is_file, which raises where it may not look.
        if os.path.isfile(folder / name):  # noqa: PTH113
            return folder / name
    return None


@dataclass(frozen=True)
class Facts:
    """What is known of a person."""

    age: float | None = None
    sex: str | None = None
    family: str | None = None
    site: str = ""


def read_participants(path: Path) -> dict[str, Facts]:
    """Of participants.tsv, as BIDS has it, with a column `family`, or of the tables that IXI and
    OASIS come with: person (of OASIS: session) -> what is known.

    A missing file knows nothing.
    """
    if not path.exists():
        return {}
    people: dict[str, Facts] = {}
    for number, cells in enumerate(read_rows(path, required=()), start=2):
        # "SEX_ID (1=m, 2=f)" is sex_id.
        row = {
            column.partition(" ")[0].lower(): value for column, value in cells.items()
        }
        name = row.get("participant_id") or row.get("id", "")
        if "ixi_id" in row:
            if not row["ixi_id"].isdecimal():
                raise DatasetError(
                    f"row {number}: IXI_ID is a whole number", where=path
                )
            name = f"IXI{int(row['ixi_id']):03d}"
        elif not row.keys() & {"participant_id", "id"}:
            raise DatasetError(
                "has no column 'participant_id'",
                where=path,
                remedy="use BIDS' participants.tsv, or IXI's (IXI_ID) or OASIS's (ID) own table",
            )
        sex = (
            row.get("sex")
            or row.get("m/f")
            or row.get("gender")
            or {"1": "M", "2": "F"}.get(row.get("sex_id", ""))
        )
        sex = (sex or "")[:1].upper()
        facts = Facts(
            _years(row.get("age", "")),
            sex if sex in {"M", "F"} else None,
            row.get("family") or None,
            row.get("site") or row.get("scanner") or "",
        )
        # IXI names some persons twice, once without an age.
        if name not in people or people[name].age is None:
            people[name] = facts
    return people


def _years(text: str) -> float | None:
    try:
        age = float(text.rstrip("+"))  # BIDS censors great ages as 89+.
    except ValueError:
        return None
    return age if 0 <= age < math.inf else None


def facts_of(people: Mapping[str, Facts], scan: str) -> Facts:
    """Of the person with whom a scan's name begins: IXI002 of IXI002-Guys-0828-T1."""
    ends = [found.start() for found in re.finditer(r"[-_.]|$", scan)]
    known = (people.get(scan[:end]) for end in reversed(ends))
    return next((facts for facts in known if facts), Facts())
