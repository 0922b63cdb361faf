"""What every source of scans gives: subjects, and what was left out, each with its reason."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from natsort import natsort_keygen

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.folding import FoldingTable

IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mgz")

# What is safe in a path, of all that trinat writes; and what is replaced elsewhere.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# What is kept of the name of a result that had to change, and the piece of its hash behind a dash.
_PLAIN_LENGTH = 56
_DIGEST_LENGTH = 6

natural_order = natsort_keygen()


@dataclass(frozen=True)
class Subject:
    """One scan of one person, and its labels where there are any.

    `image_axes` and `labels_axes` are the voxel axes (ASL, LAS) where the dataset vouches for them
    and the header lacks them. `extra` takes numbers of the label map to FreeSurfer numbers, the
    numbers of `ignore` are background, and `fold` is the numbering of the label map (None:
    FreeSurfer's). `csf` is a model's label map of the same scan: its CSF fills the background of
    the labels. `mask` says which voxels count in training, above 0; without it all do. `note` is
    kept with the slices.
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
    mask: Path | None = None
    family: str | None = None
    age: float | None = None
    sex: str | None = None
    licence: str = ""
    note: str = ""


# The note of a subject whose image shows no skull.
STRIPPED = "skull-stripped"


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
    """Subjects and exclusions that were found, in natural order.

    `advice` is a sentence for the user on how to get more of them, or empty.
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
            unlabelled = ""
        return cls(subjects, exclusions, unlabelled)


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source, besides its folder.

    `image` and `labels` name one of a dataset's images and label maps, in the source's own words.
    `subjects_dir` has FreeSurfer results that are kept elsewhere. `extra`, `ignore` and `fold` are
    those of the subjects; a `fold` of None is what the source's label maps usually have.
    """

    scheme: str = DEFAULT_SCHEME
    image: str | None = None
    labels: str | None = None
    subjects_dir: Path | None = None
    extra: Mapping[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = ()
    fold: FoldingTable | None = None


Listed = Iterable[Subject | Exclusion]


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
    published division, the subjects that train; all others test. `participants`: the name of the
    dataset's own participants table in its folder.
    """

    find: Callable[[Path, SourceOptions], Listed]
    nothing: str = ""
    remedy: str = ""
    advice: str = ""
    wanted_member: Callable[[str], bool] = _no_member
    member_axes: Callable[[Path], str | None] = _axes_of_header
    partly_labelled: bool = False
    fixed_numbers: bool = False
    published_training: tuple[str, ...] = ()
    participants: str = ""


def search(root: Path, pattern: str, depth: int) -> Iterator[Path]:
    """Paths named by `pattern` in `root` and in its folders, down to `depth` levels below it.

    Those of a level come before those of the next, each level sorted.
    """
    for level in range(depth + 1):
        folders = "*/" * level
        yield from sorted(root.glob(f"{folders}{pattern}"))


def by_name(paths: Iterable[Path]) -> list[Path]:
    """Paths in the natural order of their names: a2 before a10."""
    return sorted(paths, key=lambda path: natural_order(path.name))


def safe_name(text: str) -> str:
    """The name of a subject in a store: letters, digits, dot, underscore, dash; 64 at most.

    It is what people type and find in tables, so it is as short as it can be: "sub 01" is sub_01.
    A dataset of which two subjects come to one name is refused. Raises DatasetError where nothing
    of `text` can be used.
    """
    name = _UNSAFE.sub("_", text).lstrip(".-_")[:64]
    if not _SAFE.fullmatch(name):
        raise DatasetError(
            f"no subject name can be made of {text!r}", remedy="rename it"
        )
    return name


def safe_component(name: str) -> str:
    """One part of the path of a result, in the same letters; every name has one.

    A name that had to change gets a piece of the original's hash, "sub 01" is sub_01-b665fd, so
    that no two become one: results of a scan must not depend on what is beside it today, and be
    found again tomorrow. For the same reason the two rules stay apart: either one in the place of
    the other would give stores or results other names than they have.
    """
    if _SAFE.fullmatch(name):
        return name
    # é becomes e and an accent, which is dropped.
    decomposed = unicodedata.normalize("NFKD", name)
    ascii_alone = decomposed.encode("ascii", "ignore").decode()
    plain = _UNSAFE.sub("_", ascii_alone)
    plain = plain.lstrip(".-_")[:_PLAIN_LENGTH].rstrip(".-_")
    if not plain:
        plain = "scan"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{plain}-{digest[:_DIGEST_LENGTH]}"


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
