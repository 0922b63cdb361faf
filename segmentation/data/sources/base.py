"""What every source of scans gives: subjects, and what was left out, each with its reason."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from natsort import natsort_keygen

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.labels.folding import FoldingTable

IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mgz")

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# What IXI's table has in its column SEX_ID.
_IXI_SEXES = {"1": "M", "2": "F"}
# Titles of columns in small letters, up to the first space.
_GROUP_COLUMNS = ("group", "diagnosis", "dx")
_INTRACRANIAL_COLUMNS = ("estimatedtotalintracranialvol", "etiv", "icv_mm3")

natural_order = natsort_keygen()


@dataclass(frozen=True)
class Subject:
    """One scan of one person, and its labels where there are any.

    `image_axes` and `labels_axes` are the voxel axes (ASL, LAS) where the dataset vouches for them
    and the header lacks them. `extra` takes numbers of the label map to FreeSurfer numbers, the
    numbers of `ignore` are background, and `fold` is the numbering of the label map (None:
    FreeSurfer's). `csf` is a model's label map of the same scan: its CSF fills the background of
    the labels. `note` is kept with the slices.
    """

    id: str
    person: str
    image: Path | None
    labels: Path | None
    session: str | None = None
    image_axes: str | None = None
    labels_axes: str | None = None
    extra: Mapping[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = ()
    fold: FoldingTable | None = None
    csf: Path | None = None
    family: str | None = None
    age: float | None = None
    sex: str | None = None
    licence: str = ""
    note: str = ""


@dataclass(frozen=True)
class Exclusion:
    """What is no subject, or with `broken` one that should be and cannot be used.

    An excluded name counts as skipped, a broken one as failed: `trinat prepare` then ends with a
    status that is not 0. `reason` is a short phrase without a full stop.
    """

    name: str
    reason: str
    broken: bool = False


@dataclass(frozen=True)
class Listing:
    """All that was found, in natural order; `advice` says what would make more of it.

    A listing may have no subjects. `advice` is a sentence for the user, empty if there is none to
    give.
    """

    subjects: tuple[Subject, ...]
    exclusions: tuple[Exclusion, ...] = ()
    advice: str = ""

    @classmethod
    def of(cls, found: Sequence[Subject | Exclusion], unlabelled: str = "") -> Listing:
        """What was found; with the advice `unlabelled` if none of it has labels.

        The order of `found` is kept. `unlabelled` tells the user where labels would come from.
        """
        subjects = tuple(entry for entry in found if isinstance(entry, Subject))
        exclusions = tuple(entry for entry in found if isinstance(entry, Exclusion))
        if any(subject.labels for subject in subjects):
            return cls(subjects, exclusions)
        return cls(subjects, exclusions, unlabelled)


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source, besides its folder.

    `image` and `labels` name one of a dataset's images and label maps, in the source's own words.
    `subjects_dir` has FreeSurfer results that are kept elsewhere. `extra`, `ignore` and `fold` are
    those of the subjects; a `fold` of None is what the source's label maps usually have.
    """

    scheme: str = "quicknat33"
    image: str | None = None
    labels: str | None = None
    subjects_dir: Path | None = None
    extra: Mapping[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = ()
    fold: FoldingTable | None = None


Found = Iterable[Subject | Exclusion]


def _no_member(name: str) -> bool:
    """For datasets that come without archives: no file of one is of use."""
    return False


def _axes_of_header(path: Path) -> str | None:
    """For datasets whose headers have the orientation."""
    return None


@dataclass(frozen=True)
class Source:
    """A dataset: how its subjects are found, and which files of its archives are of use.

    `find(root, options)` yields a Subject or an Exclusion for everything that it meets in the
    folder `root`. Where it finds nothing, `nothing` is the error and `remedy` what to do about it.
    `advice` is given where nothing that was found has labels.

    `wanted_member(name)` says whether a file of an archive is of use. `member_axes(path)` are the
    voxel axes of an Analyze file, whose header does not have them.

    `partly_labelled`: scans without labels are usual among those with labels. `fixed_numbers`: the
    dataset has label numbers of its own, which no options change. `published_training`: of a
    published division, the subjects that train; all others test.
    """

    find: Callable[[Path, SourceOptions], Found]
    nothing: str = ""
    remedy: str = ""
    advice: str = ""
    wanted_member: Callable[[str], bool] = _no_member
    member_axes: Callable[[Path], str | None] = _axes_of_header
    partly_labelled: bool = False
    fixed_numbers: bool = False
    published_training: tuple[str, ...] = ()


def search(root: Path, pattern: str, depth: int) -> Iterator[Path]:
    """Paths named by `pattern` in `root` and in its folders, down to `depth` levels below it.

    Those of a level come before those of the next, each level sorted.
    """
    for level in range(depth + 1):
        folders = "*/" * level
        yield from sorted(root.glob(f"{folders}{pattern}"))


def by_name(paths: Iterable[Path]) -> list[Path]:
    """Paths in the natural order of their names: a2 before a10."""
    return sorted(paths, key=_natural_name)


def _natural_name(path: Path) -> Any:
    """The key that sorts a2 before a10."""
    return natural_order(path.name)


def safe_name(text: str) -> str:
    """A name for files and folders: letters, digits, dot, underscore, dash; 64 at most.

    Raises DatasetError where nothing of `text` can be used.
    """
    name = _UNSAFE.sub("_", text).lstrip(".-_")[:64]
    if not _SAFE.fullmatch(name):
        raise DatasetError(
            f"no subject name can be made of {text!r}", remedy="rename it"
        )
    return name


def without_suffix(path: Path) -> str:
    """The file's name without the ending of a scan, such as .nii.gz, or else without its last.

    Upper and lower case are the same: A.NII.GZ is A. Only the name counts, the file need not exist.
    """
    lower = path.name.lower()
    for suffix in SCAN_SUFFIXES:
        if lower.endswith(suffix):
            return path.name[: len(path.name) - len(suffix)]
    return path.stem


def first_existing(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these files that is there.

    Links to files count as files, folders do not. None if there is none, also where the folder
    cannot be looked into.
    """
    for name in names:
        path = folder / name
        # Not Path.is_file, which raises where it may not look.
        if os.path.isfile(path):  # noqa: PTH113
            return path
    return None


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


def read_participants(path: Path) -> dict[str, Facts]:
    """What is known of each person (of OASIS: of each session), by name.

    `path` is participants.tsv as BIDS has it, with a column `family`, or one of the tables that
    IXI and OASIS come with. A missing file knows nothing. Raises DatasetError where a row names no
    person.
    """
    if not path.exists():
        return {}
    people: dict[str, Facts] = {}
    for number, cells in enumerate(read_rows(path, required=()), start=2):
        row = {_column(title): value for title, value in cells.items()}
        name = _name_in(row, number, path)
        facts = Facts(
            age=_years(row.get("age", "")),
            sex=_sex_in(row),
            family=row.get("family") or None,
            site=row.get("site") or row.get("scanner") or "",
            group=_first_of(row, _GROUP_COLUMNS),
            intracranial_mm3=_positive(_first_of(row, _INTRACRANIAL_COLUMNS)),
        )
        # IXI names some persons twice, once without an age.
        if name not in people or people[name].age is None:
            people[name] = facts
    return people


def _column(title: str) -> str:
    """sex_id of "SEX_ID (1=m, 2=f)"."""
    return title.partition(" ")[0].lower()


def _name_in(row: Mapping[str, str], number: int, table: Path) -> str:
    """The person that a row (on that line of the table) is about: IXI's 2 is IXI002."""
    if "ixi_id" in row:
        if not row["ixi_id"].isdecimal():
            raise DatasetError(f"row {number}: IXI_ID is a whole number", where=table)
        return f"IXI{int(row['ixi_id']):03d}"
    if "participant_id" not in row and "id" not in row:
        raise DatasetError(
            "has no column 'participant_id'",
            where=table,
            remedy="use BIDS' participants.tsv, or IXI's (IXI_ID) or OASIS's (ID) own table",
        )
    return row.get("participant_id") or row.get("id", "")


def _sex_in(row: Mapping[str, str]) -> str | None:
    """M or F, from the first of the usual columns that says anything."""
    for column in ("sex", "m/f", "gender"):
        if row.get(column):
            letter = row[column][:1].upper()
            return letter if letter in {"M", "F"} else None
    return _IXI_SEXES.get(row.get("sex_id", ""))


def _first_of(row: Mapping[str, str], columns: Iterable[str]) -> str:
    """The first of some columns that says anything; empty where none does."""
    for column in columns:
        if row.get(column):
            return row[column]
    return ""


def _positive(text: str) -> float | None:
    """A volume; None where it is not known, or is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def _years(text: str) -> float | None:
    """An age in years; None where it is not known, or is no age."""
    try:
        age = float(text.rstrip("+"))  # BIDS censors great ages as 89+.
    except ValueError:
        return None
    return age if 0 <= age < math.inf else None


def facts_of(people: Mapping[str, Facts], scan: str) -> Facts:
    """Of the person with whom a scan's name begins: IXI002 of IXI002-Guys-0828-T1.

    The longest name counts. Of an unknown person nothing is known.
    """
    ends = [found.start() for found in re.finditer(r"[-_.]|$", scan)]
    for end in reversed(ends):
        facts = people.get(scan[:end])
        if facts is not None:
            return facts
    return Facts()
