"""MALC: the Multi-Atlas Labelling Challenge of 2012, OASIS scans with manual labels.

Scans have numbers of four digits. 1000_3.nii.gz is a head, 1000_SS.nii.gz the same head
skull-stripped, 1000_3_glm.nii.gz its label map. The challenge has them in training-images/,
training-labels/, testing-images/ and testing-labels/; other copies have them all in one folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from trinat.segmentation.data.sources.base import (
    STRIPPED,
    Exclusion,
    Listed,
    Source,
    SourceOptions,
    Subject,
    natural_order,
)
from trinat.segmentation.errors import ConfigError, DatasetError
from trinat.segmentation.io.files import read_rows
from trinat.segmentation.labels.folding import load_folding

_LICENCE = (
    "CC BY-NC 3.0; scans from OASIS, labels provided by Neuromorphometrics, Inc. "
    "(http://neuromorphometrics.com) under academic subscription"
)
_NUMBERING = "neuromorphometrics"

# The challenge's own training part; all other scans are for testing.
_TRAINING_NUMBERS = (*range(1000, 1003), *range(1006, 1016), 1017, 1036)
TRAINING = tuple(str(number) for number in _TRAINING_NUMBERS)
# Five participants of the test part were scanned twice: maps the second scan to the first.
FIRST_SCAN = {
    "1023": "1003",
    "1024": "1004",
    "1025": "1005",
    "1038": "1018",
    "1039": "1019",
}

_TABLE = "demographics.csv"
_IMAGE_FOLDERS = ("", "training-images", "testing-images")
_LABEL_FOLDERS = ("", "training-labels", "testing-labels")
_IMAGE = re.compile(r"(?P<scan>\d{4})(?P<kind>|_3|_SS)\.nii(\.gz)?")
_LABELS = re.compile(r"(?P<scan>\d{4})(_3)?_glm\.nii(\.gz)?")
# Endings of image names for the values of `options.image`, and all endings in order of preference.
_KINDS = {"head": "_3", "stripped": "_SS"}
_PREFERENCE = ("_3", "_SS", "")


def _find(root: Path, options: SourceOptions) -> Listed:
    """Yield every image with its label map as a subject, from the folders that exist.

    `options.image` is `head` (1000_3.nii.gz) or `stripped` (1000_SS.nii.gz); None means the first
    of _PREFERENCE that a scan has.
    """
    # Accepted endings of images, the best first.
    kinds: tuple[str, ...] = _PREFERENCE
    if options.image is not None:
        if options.image not in _KINDS:
            raise ConfigError(
                f"malc has no images called {options.image!r}",
                remedy="name head or stripped",
            )
        kinds = (_KINDS[options.image],)
    images: dict[str, Path] = {}
    # Add the preferred kind last, so that it replaces the others.
    for kind in reversed(kinds):
        of_kind: dict[str, Path] = {}
        for path, match in _matching_files(root, _IMAGE_FOLDERS, _IMAGE):
            if match["kind"] == kind:
                _add_file(of_kind, match["scan"], path)
        images.update(of_kind)
    label_maps: dict[str, Path] = {}
    for path, match in _matching_files(root, _LABEL_FOLDERS, _LABELS):
        _add_file(label_maps, match["scan"], path)
    table = root / _TABLE
    participants: dict[str, str] = {}
    if table.is_file():
        columns = ("id", "Subject")
        for row in read_rows(table, required=columns, names=columns):
            participants[row["id"]] = row["Subject"] or row["id"]
    fold = options.fold or load_folding(_NUMBERING)
    for scan in sorted({*images, *label_maps}, key=natural_order):
        image = images.get(scan)
        labels = label_maps.get(scan)
        if image is None:
            wanted = " or ".join(f"{scan}{kind}.nii.gz" for kind in kinds)
            yield Exclusion(scan, f"no image ({wanted})", broken=True)
            continue
        folder = _labels_folder(image)
        if labels is None and folder is not None:
            yield Exclusion(scan, f"no label map in {folder.name}/", broken=True)
            continue
        is_stripped = image.name.startswith(f"{scan}_SS.")
        yield Subject(
            id=scan,
            participant=_participant_of(scan, participants),
            image=image,
            labels=labels,
            extra=options.extra,
            ignore=options.ignore,
            fold=fold,
            licence=_LICENCE,
            note=STRIPPED if is_stripped else "",
        )


def _add_file(files: dict[str, Path], scan: str, path: Path) -> None:
    """Add a scan's file to `files`; raise DatasetError if the scan has a file there already."""
    if scan in files:
        raise DatasetError(
            f"{scan} exists twice, also as {files[scan]}",
            where=path,
            remedy="keep one of them",
        )
    files[scan] = path


def _matching_files(
    root: Path,
    folders: tuple[str, ...],
    pattern: re.Pattern[str],
) -> Iterator[tuple[Path, re.Match[str]]]:
    """Yield the files in these folders of `root` whose names match, each with its match.

    Folders that do not exist are skipped.
    """
    for name in folders:
        folder = root / name
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            match = pattern.fullmatch(path.name)
            if match is not None:
                yield path, match


def _labels_folder(image: Path) -> Path | None:
    """Return training-labels for an image in training-images, and likewise for testing-images.

    It is None if the image is in another folder, or if the folder of labels does not exist.
    """
    part, _, kind = image.parent.name.rpartition("-")
    if kind != "images":
        return None
    folder = image.parent.with_name(f"{part}-labels")
    return folder if folder.is_dir() else None


def _participant_of(scan: str, participants: Mapping[str, str]) -> str:
    """Return the participant of a scan; a second scan belongs to the participant of the first.

    `participants` maps the numbers of scans to participants, from the dataset's table. It may have
    either scan of a participant. Without an entry, the number of the first scan is returned.
    """
    first_scan = FIRST_SCAN.get(scan, scan)
    seconds = [second for second, first in FIRST_SCAN.items() if first == first_scan]
    for one in (first_scan, *seconds):
        if one in participants:
            return participants[one]
    return first_scan


SOURCE = Source(
    find=_find,
    uses=("image",),
    nothing="no scan of the challenge (1000_3.nii.gz or 1000_SS.nii.gz) here",
    remedy="--root is the folder with training-images/ and training-labels/, or with all files in "
    "one; `trinat data list` says how to get them",
    advice="no label maps (1000_3_glm.nii.gz) were found: only images for prediction can be "
    "prepared",
    partly_labelled=True,
    published_training=TRAINING,
    participants=_TABLE,
)
