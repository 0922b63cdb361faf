"""One's own scans and labels: two folders of equal names, or a table of pairs."""

from __future__ import annotations

from pathlib import Path

from segmentation.data.participants import read_rows
from segmentation.data.sources.base import (
    IMAGE_SUFFIXES,
    Exclusion,
    Listing,
    SourceOptions,
    Subject,
    natural_order,
    safe_name,
    without_suffix,
)
from segmentation.errors import DatasetError

__all__ = ["find", "image_files"]


def find(root: Path, options: SourceOptions) -> Listing:
    """`root` is a folder with images/ and labels/, or a CSV or TSV with a column `image`."""
    if root.suffix in {".csv", ".tsv"}:
        return _from_table(root, options)
    images, labels = root / (options.image or "images"), root / (options.labels or "labels")
    if not images.is_dir():
        raise DatasetError(
            f"no folder {images.name} here",
            where=root,
            remedy="--root is a folder with images/ and labels/, or a CSV with a column `image`",
        )
    label_files = image_files(labels) if labels.is_dir() else {}
    subjects: list[Subject] = []
    exclusions: list[Exclusion] = []
    for name, image in image_files(images).items():
        if label_files and name not in label_files:
            exclusions.append(
                Exclusion(name, f"no label map of that name in {labels.name}/", broken=True)
            )
            continue
        subjects.append(
            Subject(
                id=safe_name(name),
                person=_person(name),
                session=None,
                image=image,
                labels=label_files.pop(name, None),
                extra=options.extra,
                ignore=options.ignore,
            )
        )
    if not subjects and not exclusions:
        raise DatasetError("no image (.nii.gz, .nii, .mgz) here", where=images)
    exclusions += [
        Exclusion(name, f"no image of that name in {images.name}/", broken=True)
        for name in label_files
    ]
    return Listing(tuple(subjects), tuple(exclusions))


def image_files(folder: Path) -> dict[str, Path]:
    """Name without suffix -> file, in natural order; two files of one name are refused."""
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda path: natural_order(path.name)):
        if path.name.startswith(".") or not path.name.endswith(IMAGE_SUFFIXES):
            continue
        name = without_suffix(path)
        if name in files:
            raise DatasetError(f"both {files[name].name} and {path.name} are here", where=folder)
        files[name] = path
    return files


def _from_table(table: Path, options: SourceOptions) -> Listing:
    """Columns: image; and as far as known labels, subject, person, session, family, age, sex."""
    subjects: list[Subject] = []
    exclusions: list[Exclusion] = []
    for number, row in enumerate(read_rows(table, required=("image",)), start=2):
        if not row.get("image"):
            exclusions.append(Exclusion(f"line {number}", "no image named", broken=True))
            continue
        image = table.parent / row["image"]
        labels = table.parent / row["labels"] if row.get("labels") else None
        absent = next((path for path in (image, labels) if path and not path.is_file()), None)
        name = row.get("subject") or without_suffix(image)
        if absent:
            exclusions.append(Exclusion(name, f"{absent.name} is not there", broken=True))
            continue
        try:
            age = float(row["age"]) if row.get("age") else None
        except ValueError:
            raise DatasetError(
                f"line {number}: age {row['age']!r} is no number", where=table
            ) from None
        subjects.append(
            Subject(
                id=safe_name(name),
                person=row.get("person") or _person(name),
                session=row.get("session") or None,
                image=image,
                labels=labels,
                extra=options.extra,
                ignore=options.ignore,
                family=row.get("family") or None,
                age=age,
                sex=row.get("sex", "")[:1].upper() or None,
            )
        )
    return Listing(tuple(subjects), tuple(exclusions))


def _person(name: str) -> str:
    """sub-01 of sub-01_ses-2_T1w; another name is a person's of its own."""
    return name.partition("_")[0] if name.startswith("sub-") else name
