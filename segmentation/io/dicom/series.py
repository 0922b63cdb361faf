"""The series in a folder or a zip, and the one of them that is a T1-weighted scan."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from natsort import natsorted

from trinat.segmentation.errors import FormatError, InputError
from trinat.segmentation.io.dicom.containers import is_dicom, opened
from trinat.segmentation.io.dicom.parsing import (
    MAX_HEADER,
    damage_explained,
    frame_count,
    has_magic,
    lists_files,
    parse,
)
from trinat.segmentation.io.dicom.selection import why_left_out
from trinat.segmentation.io.limits import MIN_SIDE

# How many of the reasons in a folder are named.
_NAMED = 5
_NUMBER = re.compile("[0-9]{1,9}")


class Series(NamedTuple):
    """A series, or those of its files that go together.

    Its name is made of the series' number and a piece of its identifier's hash. `reason` says why
    it is no scan. A `damaged` one is a single file that may belong to any series.
    """

    name: str
    files: tuple[str, ...]
    reason: str = ""
    damaged: bool = False


class _Image(NamedTuple):
    """A file of a series: its name, the series' number and how many images it holds."""

    name: str
    series_number: str
    frames: int


def find_series(
    place: Path,
    names: Sequence[str] | None = None,
    *,
    any_contrast: bool = False,
) -> list[Series]:
    """The series in a zip, or of these files of a folder; scans come first.

    Scans are T1-weighted and 3D, or with `any_contrast` any anatomical series. Files that are not
    DICOM are passed over. A damaged file is a series of its own, with the damage as its reason.
    """
    # Files of a series that are left out for different reasons are different series.
    groups: dict[tuple[str, str], list[_Image]] = defaultdict(list)
    found = []
    with opened(place) as container:
        members = container.members if names is None else names
        for number, name in enumerate(members, start=1):
            raw = container.read(name, MAX_HEADER)
            if not has_magic(raw) or lists_files(raw):
                continue
            try:
                uid, reason, image = _look_at(raw, place, name, any_contrast)
            except InputError as error:
                # Names in a zip are a hospital's, and may be a patient's.
                shown = Path(name).name if names else f"file-{number}"
                found.append(Series(shown, (name,), error.what, damaged=True))
            else:
                groups[uid, reason].append(image)
    for (uid, reason), images in groups.items():
        found.append(_series_of(images, uid, reason))
    return list(natsorted(found, key=_scans_before_others))


def _look_at(
    raw: bytes,
    place: Path,
    name: str,
    any_contrast: bool,
) -> tuple[str, str, _Image]:
    """The identifier of a file's series, why it is left out, and what is known of it."""
    where = place / name
    with damage_explained(where):
        dataset, _ = parse(raw, where)
        uid = str(dataset.SeriesInstanceUID)
        reason = why_left_out(dataset, any_contrast=any_contrast)
        series_number = str(dataset.get("SeriesNumber"))
        return uid, reason, _Image(name, series_number, frame_count(dataset))


def _series_of(images: list[_Image], uid: str, reason: str) -> Series:
    """The series of these images; too few of them are no scan either."""
    digest = hashlib.sha256(f"{uid}{reason}".encode()).hexdigest()[:8]
    number = images[0].series_number
    name = f"series-{digest}"
    # What is no number may be anything, a patient's name too.
    if _NUMBER.fullmatch(number):
        name = f"series-{number}-{digest}"
    count = sum(image.frames for image in images)
    if not reason and count < MIN_SIDE:
        reason = f"{count} images, fewer than {MIN_SIDE}"
    files = natsorted(image.name for image in images)
    return Series(name, tuple(files), reason)


def _scans_before_others(series: Series) -> tuple[bool, str]:
    """By what series are sorted."""
    return bool(series.reason), series.name


def only_scan(place: Path) -> tuple[Path, Sequence[str]]:
    """The folder or zip and the files in it of the one T1-weighted series that `place` holds.

    `place` is a folder, a zip or a single file. Raises FormatError for none and for several.
    """
    if place.is_dir():
        files = [path for path in place.rglob("*") if is_dicom(path)]
        found = find_series(place, [str(path.relative_to(place)) for path in files])
    elif place.suffix.lower() == ".zip":
        found = find_series(place)
    else:
        return place.parent, (place.name,)
    scans = [series for series in found if not series.reason]
    if len(scans) == 1:
        return place, scans[0].files
    problem = f"{len(scans) or 'no'} T1-weighted series in it"
    reasons = [f"{series.name}: {series.reason}" for series in found if series.reason]
    if reasons:
        problem += f" ({_first_few(reasons)})"
    raise FormatError(problem, where=place, remedy="give the files of one")


def _first_few(reasons: list[str]) -> str:
    """The first reasons in one line, and how many more there are."""
    listed = "; ".join(reasons[:_NAMED])
    if len(reasons) > _NAMED:
        listed += f"; and {len(reasons) - _NAMED} more"
    return listed
