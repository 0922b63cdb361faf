"""The series in a folder or a zip, and which of them are scans of the head.

Those are T1-weighted and 3D, or of any contrast where that is asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from natsort import natsorted

from trinat.segmentation.errors import FormatError, InputError
from trinat.segmentation.io.dicom.containers import is_dicom, opened
from trinat.segmentation.io.dicom.parsing import (
    MAX_HEADER,
    damage_explained,
    frame_count,
    functional_group,
    has_magic,
    lists_files,
    parse,
    several,
)
from trinat.segmentation.io.limits import MIN_SIDE

if TYPE_CHECKING:
    from pydicom import Dataset

# How many of the reasons in a folder are named.
_NAMED = 5
_NUMBER = re.compile("[0-9]{1,9}")

_MR = "1.2.840.10008.5.1.4.1.1.4"
# MR, enhanced MR and legacy converted enhanced MR images.
_MR_CLASSES = (_MR, f"{_MR}.1", f"{_MR}.4")
_MODALITY = re.compile("[A-Z]{2}|SEG|RT[A-Z]{1,8}")
_MAX_ECHO_MS = 25.0

# Words of ImageType.
_PHASES = frozenset({"P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY"})
_DERIVED = frozenset({"DERIVED", "SECONDARY", "MPR", "PROJECTION IMAGE", "REFORMATTED"})
# Words of descriptions, in small letters.
_T1 = re.compile(r"t1|mp2?rage|spgr|bravo|tfe")
# Where a word begins: "headcoil" has "adc" in it.
_OTHER_CONTRAST = re.compile("(?<![a-z])(t2|flair|ciss|fiesta)")
_NO_ANATOMY = re.compile(
    "(?<![a-z])(swi|tof|angio|dwi|dti|diff|adc|bold|asl|perf|field|phase)"
)
_SCOUT = re.compile(r"locali[sz]er|scout|survey")


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
            where = place / name
            try:
                with damage_explained(where):
                    dataset, _ = parse(raw, where)
                    uid = str(dataset.SeriesInstanceUID)
                    reason = why_left_out(dataset, any_contrast=any_contrast)
                    series_number = str(dataset.get("SeriesNumber"))
                    image = _Image(name, series_number, frame_count(dataset))
            except InputError as error:
                # Names in a zip are a hospital's, and may be a patient's.
                shown = Path(name).name if names else f"file-{number}"
                found.append(Series(shown, (name,), error.what, damaged=True))
            else:
                groups[uid, reason].append(image)
    for (uid, reason), images in groups.items():
        found.append(_series_of(images, uid, reason))
    # Scans before others.
    return list(natsorted(found, key=lambda series: (bool(series.reason), series.name)))


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
    if len(reasons) > _NAMED:
        reasons[_NAMED:] = [f"and {len(reasons) - _NAMED} more"]
    if reasons:
        problem += f" ({'; '.join(reasons)})"
    raise FormatError(problem, where=place, remedy="give the files of one")


def why_left_out(dataset: Dataset, *, any_contrast: bool = False) -> str:
    """Why an image is no part of a T1-weighted 3D scan, in words that are not its header's.

    With `any_contrast`, why it is no part of an anatomical scan, 3D or in slices. Empty if it may
    be one. What the header does not say speaks for the image: headers of old and of anonymous
    files say little. The first reason that holds is given.
    """
    modality = str(dataset.get("Modality"))
    if modality != "MR" or dataset.get("SOPClassUID") not in _MR_CLASSES:
        # Only a modality of the standard's form is repeated.
        if _MODALITY.fullmatch(modality):
            return f"no MR image ({modality})"
        return "no MR image"
    reasons = _no_anatomy(dataset)
    if not any_contrast:
        reasons.update(_not_t1(dataset))
    for reason, holds in reasons.items():
        if holds:
            return reason
    return ""


def _no_anatomy(dataset: Dataset) -> dict[str, object]:
    """Reasons against an anatomical scan of any contrast, and whether each holds."""
    kinds = [str(kind).upper() for kind in several(dataset.get("ImageType"))]
    words = _words(dataset)
    pulses = several(dataset.get("ScanningSequence"))
    echo_planar_pulse = dataset.get("EchoPlanarPulseSequence") == "YES"
    return {
        "a localiser": "LOCALIZER" in kinds or _SCOUT.search(words),
        "a mosaic": "MOSAIC" in kinds,
        "derived from other images": _DERIVED.intersection(kinds),
        "no magnitude image": _PHASES.intersection(kinds[2:]),
        "echo-planar": "EP" in pulses or echo_planar_pulse,
        "an angiogram": dataset.get("AngioFlag") == "Y",
        "its description names another kind of image": (
            _NO_ANATOMY.search(words) and not _T1.search(words)
        ),
    }


def _not_t1(dataset: Dataset) -> dict[str, object]:
    """Reasons against a T1-weighted 3D scan, and whether each holds."""
    words = _words(dataset)
    contrast = dataset.get("AcquisitionContrast") or "UNKNOWN"
    echo_ms = dataset.get("EchoTime")
    if not echo_ms:
        echo_ms = functional_group(dataset, 0, "MREcho").get("EffectiveEchoTime")
    return {
        "a 2D acquisition": dataset.get("MRAcquisitionType") == "2D",
        "its contrast is not T1": contrast not in ("T1", "UNKNOWN", "MIXED"),
        f"its echo time is above {_MAX_ECHO_MS:g} ms": (
            echo_ms and float(echo_ms) > _MAX_ECHO_MS
        ),
        "its description names another contrast": (
            _OTHER_CONTRAST.search(words) and not _T1.search(words)
        ),
    }


def _words(dataset: Dataset) -> str:
    """What people call the series and its protocol, in small letters."""
    description = dataset.get("SeriesDescription")
    return f"{description} {dataset.get('ProtocolName')}".lower()
