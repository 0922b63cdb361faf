"""Walks through folders, and what kind a file is by its name.

`os.path` instead of `Path` in places: its functions answer False where those of `Path` raise, for
want of permission or because a name is too long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trinat.pipelines.scans.naming import RESULT_ENDINGS
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.io.dicom.containers import is_dicom
from trinat.segmentation.io.streams import SCAN_SUFFIXES


def is_dir(path: Path) -> bool:
    """Whether it is a folder; False where that cannot be known."""
    return os.path.isdir(path)  # noqa: PTH112 - see above


def is_file(path: Path) -> bool:
    """Whether it is a regular file; False where that cannot be known."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def is_closed(folder: Path) -> bool:
    """Whether it is a folder that may not be listed or entered."""
    return not os.access(folder, os.R_OK | os.X_OK) and is_dir(folder)


def is_scan(path: Path) -> bool:
    """Whether it is called as a scan is, in any format but DICOM."""
    if path.name.startswith("."):
        return False
    return path.name.lower().endswith(SCAN_SUFFIXES)


def is_dicom_or_zip(path: Path) -> bool:
    """Whether it is a file in which DICOM images may be."""
    return is_file(path) and (path.suffix.lower() == ".zip" or is_dicom(path))


def is_result(path: Path) -> bool:
    """Whether it is called as a result of `trinat predict` is."""
    return is_scan(path) and stem_ends(path, *RESULT_ENDINGS)


def stem_ends(path: Path, *endings: str) -> bool:
    """Whether the name, in small letters and without .nii.gz or the like, has one of the ends."""
    return without_suffix(path).lower().endswith(endings)


def absolute(path: str | Path) -> Path:
    """Absolute, without `..`, links kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


def _fail(error: OSError) -> None:
    raise error


def walk(
    root: Path,
    exclude: Path | None = None,
    on_closed: Callable[[OSError], None] = _fail,
    wanted: Callable[[Path], bool] = is_scan,
) -> Iterator[Path]:
    """The files below a folder that are `wanted`, through links to folders, never twice round.

    `exclude` is not searched; `on_closed` is called for each folder that cannot be read.
    """
    seen: set[Path] = set()
    if exclude:
        seen.add(exclude.resolve())
    for folder, subfolders, names in os.walk(root, onerror=on_closed, followlinks=True):
        here = Path(folder)
        real = here.resolve()
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        # In place: os.walk enters those that are left in this list.
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            if wanted(here / name):
                yield here / name
