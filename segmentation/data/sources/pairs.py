"""The user's own scans and labels: two folders with equal names, a table, or label maps alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from trinat.segmentation.data.identity import Named, identify
from trinat.segmentation.data.sources.base import (
    IMAGE_SUFFIXES,
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    by_name,
    safe_name,
    without_suffix,
)
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.io.cells import age_in, composed, sex_in
from trinat.segmentation.io.files import absolute, read_rows
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
    GENERATION_SURROUNDINGS,
)

_NAMES = ("subject", "participant", "session")
_TITLES = frozenset({"image", "labels", "mask", *_NAMES, "family", "age", "sex"})
# Other titles of these columns, which would be ignored.
_OTHER_TITLES = {
    "person": "participant",
    "participant_id": "participant",
    "subject_id": "subject",
    "label": "labels",
    "masks": "mask",
}
_Value = TypeVar("_Value")

# Label maps of whole heads, from which training synthesises scans, have numbers beyond
# FreeSurfer's. Linings of ventricles and lesions become part of their structure
# (GENERATION_FOLDED). Fluid around the brain and everything outside the brain become background.
_OUTSIDE = (GENERATION_SURROUNDINGS, *range(GENERATION_FIRST_OUTSIDE, 600))


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield the subjects of a folder with images/ and labels/, or of a table.

    A table is a .csv, .tsv or Excel file with a column `image`.
    """
    if root.is_file():
        return _from_table(root, options)
    images = root / (options.image or "images")
    labels = root / (options.labels or "labels")
    if not images.is_dir():
        raise DatasetError(
            f"no folder {images.name} here",
            where=root,
            remedy="--root is a folder with images/ and labels/, or a CSV with a column `image`",
        )
    return _from_folders(images, labels, options)


def _from_folders(images: Path, labels: Path, options: SourceOptions) -> Listed:
    """Yield every image as a subject, with the label map of the same name.

    `images` and `labels` are folders. If `labels` is empty or does not exist, the subjects have no
    labels.
    """
    image_of = image_files(images)
    if not image_of:
        raise DatasetError("no image (.nii.gz, .nii, .mgz) here", where=images)
    label_of = image_files(labels) if labels.is_dir() else {}
    identities = identify([Named(name) for name in image_of])
    for (name, image), identity in zip(image_of.items(), identities, strict=True):
        if label_of and name not in label_of:
            yield Exclusion(
                name, f"no label map of that name in {labels.name}/", broken=True
            )
            continue
        yield Subject(
            id=safe_name(name),
            participant=identity.participant,
            image=image,
            labels=label_of.get(name),
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
        )
    for name in label_of:
        if name not in image_of:
            yield Exclusion(
                name, f"no image of that name in {images.name}/", broken=True
            )


def image_files(
    folder: Path, suffixes: tuple[str, ...] = IMAGE_SUFFIXES
) -> dict[str, Path]:
    """Return the image files of a folder by name without suffix, in natural order.

    Names are in Unicode's composed form, so that they can be compared. Hidden files and files
    with other suffixes are ignored; subfolders are not searched. Raises DatasetError if two files
    have the same name, as a.nii and a.nii.gz.
    """
    files: dict[str, Path] = {}
    for path in by_name(folder.iterdir()):
        has_suffix = path.name.lower().endswith(suffixes)
        if path.name.startswith(".") or not has_suffix:
            continue
        name = composed(without_suffix(path))
        if name in files:
            raise DatasetError(
                f"both {files[name].name} and {path.name} are here", where=folder
            )
        files[name] = path
    return files


def _check_titles(rows: Sequence[Mapping[str, str]], table: Path) -> None:
    """Raise DatasetError for another title of a known column, or its title in another case.

    Its values would be ignored, which could divide a participant among the parts of a split.
    """
    titles = rows[0] if rows else {}
    for title in titles:
        lower = title.lower()
        meant = _OTHER_TITLES.get(lower, lower)
        if meant in _TITLES and meant not in titles:
            raise DatasetError(
                f"has a column {title!r}", where=table, remedy=f"call it {meant}"
            )


def _from_table(table: Path, options: SourceOptions) -> Listed:
    """Yield the subjects of a table with a column `image`.

    Optional columns are labels, mask, subject, participant, session, family, age and sex. Paths are
    relative to the table's folder. Names may be any word, even NA or unknown, but these words mean
    no family. Raises DatasetError for an age or a sex that cannot be parsed.
    """
    rows = read_rows(table, required=("image",), names=_NAMES)
    _check_titles(rows, table)
    numbered = []
    for line, row in enumerate(rows, start=2):
        if row["image"]:
            numbered.append((line, row))
        else:
            yield Exclusion(f"line {line}", "no image named", broken=True)
    named = _named([row for _, row in numbered], table.parent)
    identities = identify(named)
    for (line, row), scan, identity in zip(numbered, named, identities, strict=True):
        name = scan.name
        image = table.parent / row["image"]
        labels = table.parent / row["labels"] if row.get("labels") else None
        mask = table.parent / row["mask"] if row.get("mask") else None
        files = [path for path in (image, labels, mask) if path is not None]
        absent = [path.name for path in files if not path.is_file()]
        if absent:
            yield Exclusion(name, f"{absent[0]} does not exist", broken=True)
            continue
        yield Subject(
            id=safe_name(name),
            participant=composed(row.get("participant") or identity.participant),
            session=row.get("session") or None,
            image=image,
            labels=labels,
            mask=mask,
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            family=row.get("family") or None,
            age=_parsed_cell(age_in, row, "age", line, table),
            sex=_parsed_cell(sex_in, row, "sex", line, table),
        )


def _named(rows: Sequence[Mapping[str, str]], folder: Path) -> list[Named]:
    """Return the name of the scan in each row, with its folders below the common one of all images.

    `folder` is that of the table.
    """
    images = [absolute(folder / row["image"]) for row in rows]
    root = os.path.commonpath([image.parent for image in images] or [folder])
    return [
        Named(
            row.get("subject") or without_suffix(image),
            image.parent.relative_to(root).parts,
        )
        for row, image in zip(rows, images, strict=True)
    ]


def _parsed_cell(
    value_in: Callable[[str], _Value],
    row: Mapping[str, str],
    column: str,
    line: int,
    table: Path,
) -> _Value | None:
    """Parse the cell of a column with `value_in`; return None if the cell is empty.

    Raises DatasetError, with the `line` of the `table`, if it cannot be parsed.
    """
    if not row.get(column):
        return None
    try:
        return value_in(row[column])
    except ValueError as error:
        what = f"line {line}: {column} {row[column]!r} {error}"
        raise DatasetError(what, where=table) from None


def _find_label_maps(root: Path, options: SourceOptions) -> Listed:
    """Yield every image file in `root` as a label map without an image.

    Numbers are FreeSurfer's and those of label maps that training scans are synthesised from, such
    as 136 for the lining of a ventricle and 500 and above for skull and scalp, unless
    `options.fold` defines others.
    """
    extra: dict[int, int] = {}
    ignore = set(options.ignore)
    if options.fold is None:
        extra.update(GENERATION_FOLDED)
        ignore.update(_OUTSIDE)
    extra.update(options.extra)
    found = image_files(root)
    identities = identify([Named(name) for name in found])
    for (name, path), identity in zip(found.items(), identities, strict=True):
        yield Subject(
            id=safe_name(name),
            participant=identity.participant,
            image=None,
            labels=path,
            extra=extra,
            ignore=tuple(ignore),
            fold=options.fold,
        )


PAIRS = Source(find=_find, uses=("image", "labels"))
LABEL_MAPS = Source(
    find=_find_label_maps, nothing="no label map (.nii.gz, .nii, .mgz) here"
)
