"""One's own scans and labels: two folders of equal names, a table of pairs, or label maps alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from trinat.segmentation.io.cells import age_in, sex_in
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.folding import (
    GENERATION_FIRST_OUTSIDE,
    GENERATION_FOLDED,
    GENERATION_SURROUNDINGS,
)

_NAMES = ("subject", "person", "session", "family")
_TITLES = frozenset({"image", "labels", "mask", *_NAMES, "age", "sex"})
_Value = TypeVar("_Value")

# Label maps of whole heads, for networks that learn from scans synthesised on the way, have numbers
# beyond FreeSurfer's: linings of ventricles and lesions join what they line or lie in; the fluid
# all around the brain and what is outside it are background.
_OUTSIDE = (GENERATION_SURROUNDINGS, *range(GENERATION_FIRST_OUTSIDE, 600))


def _find(root: Path, options: SourceOptions) -> Listed:
    """`root` is a folder with images/ and labels/, or a CSV or TSV with a column `image`."""
    if root.suffix in {".csv", ".tsv"}:
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
    """Yield every image, with the label map of the same name.

    Where `labels` is empty or not there, the images are subjects without labels.
    """
    image_of = image_files(images)
    if not image_of:
        raise DatasetError("no image (.nii.gz, .nii, .mgz) here", where=images)
    label_of = image_files(labels) if labels.is_dir() else {}
    person_of = _persons_of(image_of)
    for name, image in image_of.items():
        if label_of and name not in label_of:
            yield Exclusion(
                name, f"no label map of that name in {labels.name}/", broken=True
            )
            continue
        yield Subject(
            id=safe_name(name),
            person=person_of[name],
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
    """Name without suffix -> file, in natural order; two files of one name are refused.

    Hidden files and other endings are passed over; subfolders are not searched. DatasetError for
    two files that have one name, as a.nii and a.nii.gz.
    """
    files: dict[str, Path] = {}
    for path in by_name(folder.iterdir()):
        has_suffix = path.name.lower().endswith(suffixes)
        if path.name.startswith(".") or not has_suffix:
            continue
        name = without_suffix(path)
        if name in files:
            raise DatasetError(
                f"both {files[name].name} and {path.name} are here", where=folder
            )
        files[name] = path
    return files


def _check_titles(rows: Sequence[Mapping[str, str]], table: Path) -> None:
    """Refuse a title that would be ours in small letters: whose scans they are would be lost."""
    for title in rows[0] if rows else ():
        meant = title.lower()
        if title != meant and meant in _TITLES:
            raise DatasetError(
                f"has a column {title!r}", where=table, remedy=f"call it {meant}"
            )


def _from_table(table: Path, options: SourceOptions) -> Listed:
    """Columns: image; and as far as known labels, mask, subject, person, session, family, age, sex.

    A name may be any word, NA or unknown; DatasetError for an age or a sex that is not understood.
    """
    rows = read_rows(table, required=("image",), names=_NAMES)
    _check_titles(rows, table)
    person_of = _persons_of(
        row.get("subject") or without_suffix(Path(row["image"]))
        for row in rows
        if row.get("image")
    )
    for line, row in enumerate(rows, start=2):
        if not row.get("image"):
            yield Exclusion(f"line {line}", "no image named", broken=True)
            continue
        image = table.parent / row["image"]
        labels = table.parent / row["labels"] if row.get("labels") else None
        mask = table.parent / row["mask"] if row.get("mask") else None
        name = row.get("subject") or without_suffix(image)
        files = [path for path in (image, labels, mask) if path is not None]
        absent = [path.name for path in files if not path.is_file()]
        if absent:
            yield Exclusion(name, f"{absent[0]} is not there", broken=True)
            continue
        yield Subject(
            id=safe_name(name),
            person=row.get("person") or person_of[name],
            session=row.get("session") or None,
            image=image,
            labels=labels,
            mask=mask,
            extra=options.extra,
            ignore=options.ignore,
            fold=options.fold,
            family=row.get("family") or None,
            age=_understood(age_in, row, "age", line, table),
            sex=_understood(sex_in, row, "sex", line, table),
        )


def _understood(
    value_in: Callable[[str], _Value],
    row: Mapping[str, str],
    column: str,
    line: int,
    table: Path,
) -> _Value | None:
    """What a row's cell of a column says; None where the row has none."""
    if not row.get(column):
        return None
    try:
        return value_in(row[column])
    except ValueError as error:
        what = f"line {line}: {column} {row[column]!r} {error}"
        raise DatasetError(what, where=table) from None


def _persons_of(names: Iterable[str]) -> dict[str, str]:
    """Return the person of each scan, by its name: sub-01 of sub-01_ses-2_T1w."""
    every = list(names)
    identities = identify([Named(name) for name in every])
    return {name: scan.person for name, scan in zip(every, identities, strict=True)}


def _find_label_maps(root: Path, options: SourceOptions) -> Listed:
    """Yield every image file in `root` as the label map of one person.

    It has FreeSurfer's numbers, and those of label maps for generation; or those of options.fold.
    """
    extra: dict[int, int] = {}
    ignore = set(options.ignore)
    if options.fold is None:
        extra.update(GENERATION_FOLDED)
        ignore.update(_OUTSIDE)
    extra.update(options.extra)
    for name, path in image_files(root).items():
        yield Subject(
            id=safe_name(name),
            person=name,
            image=None,
            labels=path,
            extra=extra,
            ignore=tuple(ignore),
            fold=options.fold,
        )


PAIRS = Source(find=_find)
LABEL_MAPS = Source(
    find=_find_label_maps, nothing="no label map (.nii.gz, .nii, .mgz) here"
)
