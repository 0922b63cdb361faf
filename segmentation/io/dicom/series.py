"""Search for series in a folder or a zip, and selection of scans of the head.

Scans are T1-weighted and 3D, or of any contrast on request.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from natsort import natsorted

from trinat.segmentation.errors import (
    FormatError,
    InputError,
    IntegrityError,
    extra_remedy,
    summarise,
)
from trinat.segmentation.io.dicom.parsing import (
    MAX_HEADER,
    REMAKE,
    START_LENGTH,
    convert_errors,
    frame_count,
    functional_group,
    has_magic,
    lists_files,
    parse,
    several,
)
from trinat.segmentation.io.files import open_regular
from trinat.segmentation.io.limits import MIN_SIDE
from trinat.segmentation.io.streams import refuse_bomb

if TYPE_CHECKING:
    from pydicom import Dataset

# Largest table of contents of a zip: about 40,000 files.
_MAX_CONTENTS = 4 * 2**20
# Length of the record that ends a zip, with the longest comment that may follow it, and the first
# bytes of this record in a zip and in a zip64.
_ZIP_END_LENGTH = 22 + 2**16
_ZIP_END = b"PK\5\6"
_ZIP64_END = b"PK\6\7"
# Errors of damaged zips; the last two are raised for encrypted zips and unknown compression.
_ZIP_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    RuntimeError,
)

_NUMBER = re.compile("[0-9]{1,9}")

_MR = "1.2.840.10008.5.1.4.1.1.4"
# MR, enhanced MR and legacy converted enhanced MR images.
_MR_CLASSES = (_MR, f"{_MR}.1", f"{_MR}.4")
_MODALITY = re.compile("[A-Z]{2}|SEG|RT[A-Z]{1,8}")
_MAX_ECHO_MS = 25.0

# Values of ImageType.
_PHASES = frozenset({"P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY"})
_DERIVED = frozenset({"DERIVED", "SECONDARY", "MPR", "PROJECTION IMAGE", "REFORMATTED"})
# Words in descriptions, in lower case.
_T1 = re.compile(r"t1|mp2?rage|spgr|bravo|tfe")
# Match only at the beginning of a word: "headcoil" contains "adc".
_OTHER_CONTRAST = re.compile("(?<![a-z])(t2|flair|ciss|fiesta)")
_NO_ANATOMY = re.compile(
    "(?<![a-z])(swi|tof|angio|dwi|dti|diff|adc|bold|asl|perf|field|phase)"
)
_SCOUT = re.compile(r"locali[sz]er|scout|survey")


class Container(NamedTuple):
    """Open folder or zip in which DICOM files are searched.

    `members` are the names of the files in a zip; empty for a folder. `read(name, limit)` returns
    at most `limit` bytes of a file. `digest` is the SHA-256 of a zip; None for a folder.
    """

    members: Sequence[str]
    read: Callable[[str, int], bytes]
    digest: str | None


def is_dicom(path: Path) -> bool:
    """Return True if a path is a regular file that begins like a DICOM file.

    Only the first bytes are read. The result is False for a folder and a dangling link. Raises
    InputError for a file that cannot be read.
    """
    try:
        with open_regular(path) as file:
            return has_magic(file.read(START_LENGTH))
    except (FileNotFoundError, InputError):
        return False
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})",
            where=path,
            remedy="check its permissions",
        ) from error


def holds_dicom(path: Path) -> bool:
    """Return True if DICOM scans may be found in a path: a folder, a zip or a DICOM file."""
    return path.is_dir() or path.suffix.lower() == ".zip" or is_dicom(path)


@contextmanager
def opened(place: Path) -> Iterator[Container]:
    """Open the folder or zip `place` for reading its files.

    Raises FormatError if pydicom is missing or a zip unpacks to too much. Raises IntegrityError for
    a damaged zip, also while its files are read in the block.
    """
    try:
        import pydicom  # noqa: F401
    except ImportError:
        raise FormatError(
            "DICOM needs more packages",
            where=place,
            remedy=extra_remedy("dicom"),
        ) from None
    if place.is_dir():
        yield _container_of_folder(place)
        return
    with open_regular(place) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        _refuse_long_contents(file, size, place)
        try:
            with zipfile.ZipFile(file) as archive:
                yield _container_of_zip(archive, size, digest, place)
        except _ZIP_DAMAGE:
            raise IntegrityError(
                "a damaged or encrypted zip",
                where=place,
                remedy="pack it again, without password",
            ) from None


class Series(NamedTuple):
    """Series, or the part of its files that has one reason to be left out.

    `name` consists of the series' number and a part of a hash of its identifier. `files` are names
    in the folder or zip. `reason` says why the series is no scan; "" if it is one. A `damaged`
    series is a single damaged file, which may belong to any series. `patient` is the identifier of
    its patient; it must not be shown.
    """

    name: str
    files: tuple[str, ...]
    reason: str = ""
    damaged: bool = False
    patient: str = ""


class _Image(NamedTuple):
    """File of a series: its name, the number of its series, the images in it, and the patient."""

    name: str
    series_number: str
    frames: int
    patient: str


def find_series(
    place: Path,
    names: Sequence[str] | None = None,
    *,
    any_contrast: bool = False,
) -> list[Series]:
    """Find the series in a zip, or in the files `names` of a folder; scans come first.

    Scans are T1-weighted and 3D, or with `any_contrast` any anatomical series. Files that are not
    DICOM are skipped. A damaged file becomes a series of its own, with the damage as its reason; it
    is named by its place among the files.
    """
    # Images by series and by the reason to leave them out; each group becomes a Series.
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
                with convert_errors(where):
                    dataset, _ = parse(raw, where)
                    uid = _series_uid(dataset)
                    reason = why_left_out(dataset, any_contrast=any_contrast)
                    series_number = str(dataset.get("SeriesNumber"))
                    patient = str(dataset.get("PatientID") or "")
                    image = _Image(name, series_number, frame_count(dataset), patient)
            except InputError as error:
                # Names of files come from a hospital, and may contain a patient's name.
                found.append(
                    Series(f"file-{number}", (name,), error.what, damaged=True)
                )
            else:
                groups[uid, reason].append(image)
    for (uid, reason), images in groups.items():
        digest = hashlib.sha256(f"{uid}{reason}".encode()).hexdigest()[:8]
        series_number = images[0].series_number
        name = f"series-{digest}"
        # A value that is not a number may be anything, including a patient's name.
        if _NUMBER.fullmatch(series_number):
            name = f"series-{series_number}-{digest}"
        count = sum(image.frames for image in images)
        if not reason and count < MIN_SIDE:
            reason = f"only {count} images, and at least {MIN_SIDE} are needed"
        files = natsorted(image.name for image in images)
        patient = images[0].patient
        found.append(Series(name, tuple(files), reason, patient=patient))
    # Scans come first.
    return list(natsorted(found, key=lambda series: (bool(series.reason), series.name)))


def _series_uid(dataset: Dataset) -> str:
    """Return the identifier of an image's series.

    If an anonymiser has removed it, return that of the frame of reference, which the images of a
    series share; "" without either. Raises AttributeError, which pydicom raises for a missing
    element, if the number of rows, which comes later in a file, is missing too: the file ends
    within its header.
    """
    if "SeriesInstanceUID" not in dataset and "Rows" in dataset:
        return str(dataset.get("FrameOfReferenceUID") or "")
    return str(dataset.SeriesInstanceUID or "")


def only_scan(place: Path, *, any_contrast: bool = False) -> tuple[Path, Sequence[str]]:
    """Find the only scan in `place`; return a folder or zip, and its files' names.

    `place` is a folder, a zip or a single file; a single file is returned unchecked. The scan is a
    T1-weighted series, or with `any_contrast` any anatomical one. Raises FormatError if there is no
    such series, or more than one, and IntegrityError if a file is damaged: it may be a slice of the
    scan.
    """
    if place.is_dir():
        files = [path for path in place.rglob("*") if is_dicom(path)]
        names = [str(path.relative_to(place)) for path in files]
        found = find_series(place, names, any_contrast=any_contrast)
    elif place.suffix.lower() == ".zip":
        found = find_series(place, any_contrast=any_contrast)
    else:
        return place.parent, (place.name,)
    damaged = [series for series in found if series.damaged]
    if damaged:
        raise IntegrityError(
            f"DICOM files in it cannot be read and may be part of the scan: {len(damaged)}",
            where=place,
            remedy=REMAKE,
        )
    scans = [series for series in found if not series.reason]
    if len(scans) == 1:
        return place, scans[0].files
    kind = "anatomical" if any_contrast else "T1-weighted"
    problem = f"{len(scans) or 'no'} {kind} series in it"
    reasons = [f"{series.name}: {series.reason}" for series in found if series.reason]
    if reasons:
        problem += f" ({summarise(reasons)})"
    raise FormatError(problem, where=place, remedy="give the files of one")


def why_left_out(dataset: Dataset, *, any_contrast: bool = False) -> str:
    """Return the reason why an image is not part of a T1-weighted 3D scan, or "" if it may be.

    With `any_contrast`, the reason why it is not part of an anatomical scan, in 3D or 2D. Missing
    elements count in favour of the image, because headers of old and of anonymous files have few
    elements. The first reason that applies is returned. It does not quote the header, except for
    the modality.
    """
    modality = str(dataset.get("Modality"))
    if modality != "MR" or dataset.get("SOPClassUID") not in _MR_CLASSES:
        # Quote the modality only if it has the standard's form.
        if _MODALITY.fullmatch(modality):
            return f"no MR image ({modality})"
        return "no MR image"
    reasons = _reasons_against_anatomy(dataset)
    if not any_contrast:
        reasons.update(_reasons_against_t1(dataset))
    for reason, holds in reasons.items():
        if holds:
            return reason
    return ""


def _reasons_against_anatomy(dataset: Dataset) -> dict[str, object]:
    """Return reasons against an anatomical scan of any contrast.

    A true value means that the reason applies.
    """
    kinds = [str(kind).upper() for kind in several(dataset.get("ImageType"))]
    words = _descriptions(dataset)
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


def _reasons_against_t1(dataset: Dataset) -> dict[str, object]:
    """Return reasons against a T1-weighted 3D scan; a true value means that the reason applies."""
    words = _descriptions(dataset)
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


def _descriptions(dataset: Dataset) -> str:
    """Return the descriptions of series and protocol as one text in lower case."""
    description = dataset.get("SeriesDescription")
    return f"{description} {dataset.get('ProtocolName')}".lower()


def _container_of_folder(place: Path) -> Container:
    """Return the folder `place` as a container; each file is opened when it is read."""

    def read(name: str, limit: int) -> bytes:
        with open_regular(place / name) as file:
            # Limit the number of bytes by the size of the file, because `read` allocates all that
            # it is asked for.
            size = os.fstat(file.fileno()).st_size
            return file.read(min(limit, size))

    return Container((), read, None)


def _container_of_zip(
    archive: zipfile.ZipFile, size: int, digest: str, place: Path
) -> Container:
    """Return an opened zip as a container; raise FormatError if it unpacks to far more than `size`.

    `size` is the number of bytes of the zip, and `digest` its SHA-256.
    """
    members = [member for member in archive.infolist() if not member.is_dir()]
    refuse_bomb(sum(member.file_size for member in members), size, place)

    def unpack(name: str, limit: int) -> bytes:
        with archive.open(name) as member:
            return member.read(limit)

    names = [member.filename for member in members]
    return Container(names, unpack, digest)


def _refuse_long_contents(file: BinaryIO, size: int, place: Path) -> None:
    """Raise FormatError if the table of contents of a zip of `size` bytes is too long.

    This is checked first, because zipfile reads the whole table at once.
    """
    file.seek(max(0, size - _ZIP_END_LENGTH))
    tail = file.read()
    is_long = _ZIP64_END in tail
    # The signature may also occur in a comment, so every match must announce a length within the
    # limit.
    for record in re.finditer(_ZIP_END, tail):
        length = tail[record.start() + 12 : record.start() + 16]
        if int.from_bytes(length, "little") > _MAX_CONTENTS:
            is_long = True
    if is_long:
        raise FormatError(
            "too many files in a zip", where=place, remedy="pack one study"
        )
