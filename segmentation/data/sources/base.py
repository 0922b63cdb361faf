"""Interface of a source: subjects, and excluded files with their reasons."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from natsort import natsort_keygen

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.labels import DEFAULT_SCHEME
from trinat.segmentation.labels.folding import FoldingTable

IMAGE_SUFFIXES = (".nii.gz", ".nii", ".mgz")

# Names that are safe in a path that trinat writes, and characters that are replaced in other names.
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Lengths of the part of a changed name that is kept, and of the hash appended to it.
_PLAIN_LENGTH = 56
_DIGEST_LENGTH = 6

_by_numbers = natsort_keygen()


def natural_order(name: str) -> tuple[object, str]:
    """Return the sort key of a name in natural order: s2 before s10.

    Names with equal numbers, such as s1 and s01, have a fixed order, too.
    """
    return _by_numbers(name), name


@dataclass(frozen=True)
class Subject:
    """One scan of one participant, with its labels if there are any.

    `id` is the name of the subject in a store. `image_axes` and `labels_axes` are the voxel axes
    (such as ASL or LAS) if the dataset's documentation defines them and the header lacks them.
    `extra` maps numbers of the label map to FreeSurfer numbers, numbers in `ignore` are background,
    and `fold` is the numbering of the label map (None: FreeSurfer's). `csf` is a model's label map
    of the same scan; its CSF replaces background in the labels. `mask` is a map that is above 0 in
    voxels that are used in training; None means all voxels. `family` is an identifier that
    relatives share. `age` is in years, `sex` is M or F. `note` is stored with the slices.
    """

    id: str
    participant: str
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


# Note of a subject whose image shows no skull.
STRIPPED = "skull-stripped"


@dataclass(frozen=True)
class Exclusion:
    """Entry of a source that is not used as a subject, and the reason.

    With `broken` the entry should be a subject but cannot be used: it counts as failed, and `trinat
    prepare` exits with a non-zero status. Otherwise it counts as skipped. `reason` is a short
    phrase without a full stop.
    """

    name: str
    reason: str
    broken: bool = False


@dataclass(frozen=True)
class Listing:
    """Subjects of a dataset in natural order, and its entries that cannot be used, with reasons.

    `advice` is a sentence for the user on how to get labels if no subject has any, or "".
    """

    subjects: tuple[Subject, ...]
    exclusions: tuple[Exclusion, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source, besides its folder.

    `image` and `labels` choose among a dataset's images and label maps, by names that the source
    defines. `subjects_dir` is a folder with FreeSurfer results that are stored elsewhere. `extra`,
    `ignore` and `fold` apply to all subjects and have the meanings of `Subject`; if `fold` is None,
    the usual numbering of the source applies.
    """

    scheme: str = DEFAULT_SCHEME
    image: str | None = None
    labels: str | None = None
    subjects_dir: Path | None = None
    extra: Mapping[int, int] = field(default_factory=dict)
    ignore: tuple[int, ...] = ()
    fold: FoldingTable | None = None


Listed = Iterable[Subject | Exclusion]


@dataclass(frozen=True)
class Source:
    """A dataset: how to find its subjects, and which files of its archives to unpack.

    `find(root, options)` yields, for each entry of the folder `root`, a Subject, or an Exclusion
    that says why it cannot be used. If it yields nothing, an error with the text `nothing` and the
    remedy `remedy` is raised. `advice` is shown if no subject has labels.

    `wanted_member(name)` returns True for a file of an archive that is to be unpacked.
    `member_axes(path)` returns the voxel axes of an Analyze file, whose header lacks them, or None.

    - `uses`: options that it uses, of `image`, `labels` and `subjects_dir`; others are refused.
    - `partly_labelled`: it is usual that some scans have labels and others do not.
    - `fixed_numbers`: the dataset has label numbers of its own, which options cannot change.
    - `published_training`: the training subjects of a published split; all others test.
    - `participants`: the file name of the dataset's own participants table in its folder, or "".
    """

    find: Callable[[Path, SourceOptions], Listed]
    nothing: str = ""
    remedy: str = ""
    advice: str = ""
    wanted_member: Callable[[str], bool] = lambda name: False
    member_axes: Callable[[Path], str | None] = lambda path: None
    uses: tuple[str, ...] = ()
    partly_labelled: bool = False
    fixed_numbers: bool = False
    published_training: tuple[str, ...] = ()
    participants: str = ""


def search(root: Path, pattern: str, depth: int) -> Iterator[Path]:
    """Yield the paths that match `pattern` in `root` and in its subfolders, `depth` levels deep.

    Upper levels come first, and each level is sorted.
    """
    for level in range(depth + 1):
        folders = "*/" * level
        yield from sorted(root.glob(f"{folders}{pattern}"))


def by_name(paths: Iterable[Path]) -> list[Path]:
    """Sort paths in the natural order of their names: a2 before a10."""
    return sorted(paths, key=lambda path: natural_order(path.name))


def safe_name(text: str) -> str:
    """Convert text to the name of a subject in a store.

    The name has letters, digits, dots, underscores and dashes, at most 64. People type it and read
    it in tables, so it is as short as possible: "sub 01" becomes sub_01. Different texts can give
    the same name; a dataset in which this happens is refused. Raises DatasetError if no character
    of `text` can be used.
    """
    name = _UNSAFE.sub("_", text).lstrip(".-_")[:64]
    if not _SAFE.fullmatch(name):
        raise DatasetError(
            f"no subject name can be made of {text!r}", remedy="rename it"
        )
    return name


def safe_component(name: str) -> str:
    """Convert any name to a component of the path of a result, with the characters of `safe_name`.

    If a name must be changed, a part of its hash is appended: "sub 01" becomes sub_01-b665fd. Two
    names thus never become one, and the name of a result does not depend on the other scans of a
    run. This rule and `safe_name` stay separate, because using either one in place of the other
    would rename existing stores or results.
    """
    if _SAFE.fullmatch(name):
        return name
    # NFKD splits é into e and an accent; the accent is then dropped.
    decomposed = unicodedata.normalize("NFKD", name)
    ascii_alone = decomposed.encode("ascii", "ignore").decode()
    plain = _UNSAFE.sub("_", ascii_alone)
    plain = plain.lstrip(".-_")[:_PLAIN_LENGTH].rstrip(".-_")
    if not plain:
        plain = "scan"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{plain}-{digest[:_DIGEST_LENGTH]}"


def without_suffix(path: Path) -> str:
    """Return the file name without a scan's suffix, such as .nii.gz.

    If it ends with no suffix of a scan, its last suffix is removed. Case does not matter: A.NII.GZ
    becomes A. The file need not exist.
    """
    lower = path.name.lower()
    for suffix in SCAN_SUFFIXES:
        if lower.endswith(suffix):
            return path.name[: len(path.name) - len(suffix)]
    return path.stem


def first_existing(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the path of the first of these names that is a file in the folder, or None.

    Links to files count as files, folders do not. If the folder cannot be read, the result is None.
    """
    for name in names:
        path = folder / name
        # Path.is_file would raise an error in a folder without permission.
        if os.path.isfile(path):  # noqa: PTH113
            return path
    return None
