"""Series of DICOM files, in a folder or a zip: which are T1-weighted 3D scans; their voxels, place.

pydicom parses headers and decodes pixels, from bytes in memory that were measured before: it reads
whatever sizes a file announces. Nothing of what a header says of the patient leaves this module,
but for whole headers, which a DICOM segmentation of the same patient is made from.
"""

from __future__ import annotations

import hashlib
import io
import logging
import lzma
import os
import re
import struct
import threading
import warnings
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from natsort import natsorted
from numpy.typing import NDArray

from trinat.segmentation.errors import (
    FormatError,
    GeometryError,
    InputError,
    IntegrityError,
)
from trinat.segmentation.io.files import open_regular
from trinat.segmentation.io.headers import (
    MAX_BYTES,
    MIN_SIDE,
    Form,
    Header,
    check_sides,
    check_size,
    check_zooms,
)
from trinat.segmentation.io.orientation import MAX_SHEAR
from trinat.segmentation.io.streams import refuse_bomb

if TYPE_CHECKING:
    from pydicom import Dataset

_MAGIC_AT = 128
_MR = "1.2.840.10008.5.1.4.1.1.4"  # MR, enhanced MR and legacy converted enhanced MR images
_MR_CLASSES = (_MR, f"{_MR}.1", f"{_MR}.4")
_DEFLATED = b"1.2.840.10008.1.2.1.99"
# An enhanced header of 1,500 frames has a few MB. pydicom makes up to 50 bytes in memory of each
# byte, and of an item, which may be empty, a kilobyte.
_MAX_HEADER = 8 * 2**20
_MAX_ITEMS = 100_000
_ITEMS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
# A zip's table of contents: some 40,000 files.
_MAX_CONTENTS = 4 * 2**20
_MAX_ECHO_MS = 25.0
# Positions are written with few digits.
_POSITION_MM = 0.01
# So much of the distance of slices, a slice may lie off its place on an even grid.
_UNEVEN = 0.01
# Of what is wrong in a folder, so many are named.
_NAMED = 5
_COSINES = 1e-4

_PHASES = frozenset({"P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY"})
_DERIVED = frozenset({"DERIVED", "SECONDARY", "MPR", "PROJECTION IMAGE", "REFORMATTED"})
_T1 = re.compile(r"t1|mp2?rage|spgr|bravo|tfe")
# Where a word begins: "headcoil" has "adc" in it.
_OTHER = re.compile(
    "(?<![a-z])(t2|flair|swi|tof|angio|dwi|dti|diff|adc|bold|asl|perf|field|phase|ciss|fiesta)"
)
_SCOUT = re.compile(r"locali[sz]er|scout|survey")

_TAGS = [
    *("SOPClassUID", "SOPInstanceUID", "Modality", "ImageType", "SeriesInstanceUID"),
    *("SeriesNumber", "SeriesDescription", "ProtocolName", "FrameOfReferenceUID"),
    *(
        "ScanningSequence",
        "MRAcquisitionType",
        "AngioFlag",
        "EchoTime",
        "AcquisitionContrast",
    ),
    *(
        "EchoPlanarPulseSequence",
        "SamplesPerPixel",
        "PhotometricInterpretation",
        "Rows",
        "Columns",
    ),
    *(
        "BitsAllocated",
        "BitsStored",
        "HighBit",
        "PixelRepresentation",
        "NumberOfFrames",
    ),
    *(
        "ImagePositionPatient",
        "ImageOrientationPatient",
        "PixelSpacing",
        "PlanarConfiguration",
    ),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
]
# What must be the same in all files, and what the functional groups of a frame are called.
_COMMON = (
    *("Rows", "Columns", "BitsAllocated", "PixelRepresentation", "FrameOfReferenceUID"),
    *("SamplesPerPixel", "PhotometricInterpretation"),
)
_PLACES = (
    *(
        ("PlanePosition", "ImagePositionPatient"),
        ("PlaneOrientation", "ImageOrientationPatient"),
    ),
    ("PixelMeasures", "PixelSpacing"),
    *(
        ("PixelValueTransformation", f"Rescale{name}")
        for name in ("Slope", "Intercept")
    ),
)
_DIRECTORY = b"1.2.840.10008.1.3.10"
_NUMBER = re.compile("[0-9]{1,9}")
_MODALITY = re.compile("[A-Z]{2}|SEG|RT[A-Z]{1,8}")
# Encrypted ones and unknown kinds of compression raise the last two.
_ZIP_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, RuntimeError),
)
_QUIET = threading.RLock()
_REMAKE = "export the series again"


class Series(NamedTuple):
    """A series, or those of its files that go together; `reason`: why it is no T1-weighted scan.

    Its name is made of the series' number and a piece of its identifier's hash.
    """

    name: str
    files: tuple[str, ...]
    reason: str = ""
    damaged: bool = False  # a file that may belong to any series


class _Frame(NamedTuple):
    """An image: where it is in the files, and in space."""

    file: int
    number: int
    position: tuple[float, ...]
    cosines: tuple[float, ...]  # along a row, then along a column
    spacing: tuple[float, ...]  # between rows, then between columns
    scaling: tuple[float, ...]  # slope, intercept


class _File(NamedTuple):
    where: Path
    dataset: Dataset
    raw: bytes
    pixels_at: int


class Loaded(NamedTuple):
    """The files of a scan, its slices in their order, and what is known before voxels are read."""

    files: dict[int, _File]
    frames: list[_Frame]
    header: Header
    digest: str
    notes: tuple[str, ...]


def is_dicom(path: Path) -> bool:
    """Whether a regular file begins as DICOM files do."""
    try:
        with open_regular(path) as file:
            return _has_magic(file.read(_MAGIC_AT + 4))
    except (OSError, InputError):
        return False


def holds_dicom(path: Path) -> bool:
    """Whether a scan is looked for inside: a folder, a zip, a DICOM file."""
    return path.is_dir() or path.suffix.lower() == ".zip" or is_dicom(path)


# Which series there are ---------------------------------------------------------------------


def find_series(place: Path, names: Sequence[str] | None = None) -> list[Series]:
    """The series in a zip, or of these files of a folder; T1-weighted scans come first."""
    groups: dict[tuple[str, str], list[tuple[str, str, int]]] = defaultdict(list)
    found = []
    with _opened(place) as (members, read, _):
        for at, name in enumerate(members if names is None else names):
            raw = read(name, _MAX_HEADER)
            if not _has_magic(raw) or _lists_files(raw):
                continue
            try:
                with _damage_explained(place / name):
                    dataset, _ = _parse(raw, place / name)
                    uid, number = (
                        str(dataset.SeriesInstanceUID),
                        str(dataset.get("SeriesNumber")),
                    )
                    reason, count = _left_out(dataset), _count(dataset)
                groups[uid, reason].append((name, number, count))
            except InputError as error:
                # Names in a zip are a hospital's, and may be a patient's.
                shown = Path(name).name if names else f"file-{at + 1}"
                found.append(Series(shown, (name,), error.what, damaged=True))
    for (uid, reason), images in groups.items():
        digest = hashlib.sha256(f"{uid}{reason}".encode()).hexdigest()[:8]
        count, number = sum(frames for *_, frames in images), images[0][1]
        if not reason and count < MIN_SIDE:
            reason = f"{count} images, fewer than {MIN_SIDE}"
        name = (
            f"series-{number}-{digest}"
            if _NUMBER.fullmatch(number)
            else f"series-{digest}"
        )
        found.append(
            Series(name, tuple(natsorted(name for name, *_ in images)), reason)
        )
    return list(natsorted(found, key=lambda series: (bool(series.reason), series.name)))


def _left_out(dataset: Dataset) -> str:
    """Why an image is no part of a T1-weighted 3D scan, in words that are not its header's."""
    modality = str(dataset.get("Modality"))
    if modality != "MR" or dataset.get("SOPClassUID") not in _MR_CLASSES:
        return (
            f"no MR image ({modality})"
            if _MODALITY.fullmatch(modality)
            else "no MR image"
        )
    kinds = [str(kind).upper() for kind in _several(dataset.get("ImageType"))]
    words = f"{dataset.get('SeriesDescription')} {dataset.get('ProtocolName')}".lower()
    echo = dataset.get("EchoTime") or _group(dataset, 0, "MREcho").get(
        "EffectiveEchoTime"
    )
    pulses = _several(dataset.get("ScanningSequence"))
    contrast = dataset.get("AcquisitionContrast") or "UNKNOWN"
    tests = {
        "a localiser": "LOCALIZER" in kinds or _SCOUT.search(words),
        "a mosaic": "MOSAIC" in kinds,
        "derived from other images": _DERIVED.intersection(kinds),
        "no magnitude image": _PHASES.intersection(kinds[2:]),
        "a 2D acquisition": dataset.get("MRAcquisitionType") == "2D",
        "echo-planar": "EP" in pulses
        or dataset.get("EchoPlanarPulseSequence") == "YES",
        "an angiogram": dataset.get("AngioFlag") == "Y",
        "its contrast is not T1": contrast not in ("T1", "UNKNOWN", "MIXED"),
        f"its echo time is above {_MAX_ECHO_MS:g} ms": echo
        and float(echo) > _MAX_ECHO_MS,
        "its description names another contrast": _OTHER.search(words)
        and not _T1.search(words),
    }
    return next((reason for reason, holds in tests.items() if holds), "")


def _only_series(place: Path) -> tuple[Path, Sequence[str]]:
    """Where the files of the one scan are that a folder or zip holds, or a single file is."""
    names = None
    if place.is_dir():
        names = [
            str(path.relative_to(place)) for path in place.rglob("*") if is_dicom(path)
        ]
    elif place.suffix.lower() != ".zip":
        return place.parent, (place.name,)
    found = find_series(place, names)
    scans = [series for series in found if not series.reason]
    if len(scans) == 1:
        return place, scans[0].files
    reasons = [f"{series.name}: {series.reason}" for series in found if series.reason]
    told = "; ".join(reasons[:_NAMED])
    if len(reasons) > _NAMED:
        told += f"; and {len(reasons) - _NAMED} more"
    raise FormatError(
        f"{len(scans) or 'no'} T1-weighted series in it" + f" ({told})" * bool(told),
        where=place,
        remedy="give the files of one",
    )


# A scan of its files ------------------------------------------------------------------------


def read_series(
    place: Path, names: Sequence[str] = ()
) -> tuple[Header, NDArray[Any], str, tuple[str, ...]]:
    """Header, voxels (column, row, slice), digest and notes of the scan that these files are."""
    files, frames, header, digest, notes = load(place, names)
    # What the header does not scale is scaled here, slice by slice.
    scales = header.dtype.kind == "f"
    voxels = np.empty(header.shape, header.dtype, order="F")
    padding = 0
    slices: dict[int, list[int]] = defaultdict(list)
    for at, frame in enumerate(frames):
        slices[frame.file].append(at)
    for number, places in slices.items():
        # What was read is let go of, file by file.
        file = files.pop(number)
        pixels = _pixels(file)
        for at in places:
            stored = pixels[frames[at].number].T
            slope, inter = frames[at].scaling
            values = stored * slope + inter if scales else stored
            padded = _padded(file.dataset, stored)
            padding += int((padded & (values != 0)).sum())
            voxels[..., at] = np.where(padded, 0, values)
    if padding:
        notes = (*notes, f"{padding} voxels of padding are set to 0")
    return header, voxels, digest, notes


def _padded(dataset: Dataset, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which stored values stand for no measurement, by PixelPaddingValue and its range limit."""
    first = dataset.get("PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, np.bool_)
    last = dataset.get("PixelPaddingRangeLimit")
    if last is None:
        last = first
    # Some writers give the number of a signed value without its sign: its bits count.
    ends = np.array([int(first), int(last)]).astype(stored.dtype)
    return np.asarray((stored >= ends.min()) & (stored <= ends.max()))


def load(place: Path, names: Sequence[str] = (), *, whole: bool = False) -> Loaded:
    """The files of a scan, checked; without names, of the only T1-weighted series in `place`.

    `whole`: with all that their headers say, the patient's name among it, and without pixels.
    """
    if not names:
        place, names = _only_series(place)
    files: dict[int, _File] = {}
    frames: list[_Frame] = []
    seen: set[bytes] = set()
    digest, left = hashlib.sha256(), MAX_BYTES + _MAX_HEADER
    with _opened(place) as (_, read, of_zip):
        for number, name in enumerate(names):
            where, raw = place / name, read(name, left + 1)
            left -= len(raw)
            if left < 0:
                raise FormatError(
                    "more than 2 GiB of files", where=place, remedy="give one scan"
                )
            digest.update(raw)
            if (same := hashlib.sha256(raw).digest()) in seen:
                continue
            seen.add(same)
            with _damage_explained(where):
                dataset, at = _parse(raw, where, whole=whole)
                frames += _frames(dataset, number, where)
                _check_pixels(dataset, raw, at, where)
            files[number] = _File(where, dataset, b"" if whole else raw, at)
    with _damage_explained(place):
        datasets = [file.dataset for file in files.values()]
        header, frames, notes = _lay_out(datasets, frames, place)
    copies = len(names) - len(files)
    if copies:
        notes = (*notes, f"{copies} files of the series were there twice")
    return Loaded(files, frames, header, of_zip or digest.hexdigest(), notes)


def _frames(dataset: Dataset, file: int, where: Path) -> list[_Frame]:
    """Where each image in a file is; of an enhanced file by its functional groups."""
    frames, count = [], _count(dataset)
    is_enhanced = "PerFrameFunctionalGroupsSequence" in dataset
    if count != (len(dataset.PerFrameFunctionalGroupsSequence) if is_enhanced else 1):
        raise IntegrityError("not a place for each frame", where=where, remedy=_REMAKE)
    for number in range(count):
        found = []
        for name, keyword in _PLACES:
            group = _group(dataset, number, name) if is_enhanced else dataset
            found.append(tuple(float(value) for value in _several(group.get(keyword))))
        position, cosines, spacing, slope, inter = found
        scaling = (*(slope or (1.0,)), *(inter or (0.0,)))
        numbers = (*position, *cosines, *spacing, *scaling)
        if [*map(len, found[:3])] != [3, 6, 2] or not np.isfinite(numbers).all():
            raise GeometryError(
                "its place, orientation or spacing is missing",
                where=where,
                remedy=_REMAKE,
            )
        frames.append(_Frame(file, number, position, cosines, spacing, scaling))
    return frames


def _group(dataset: Dataset, frame: int, name: str) -> Any:
    """The item of a functional group that holds for a frame; empty where there is none."""
    for kind, at in (("PerFrame", frame), ("Shared", 0)):
        items = dataset.get(f"{kind}FunctionalGroupsSequence") or ()
        if at < len(items) and items[at].get(f"{name}Sequence"):
            return items[at][f"{name}Sequence"].value[0]
    return {}


def _lay_out(
    datasets: list[Dataset], frames: list[_Frame], where: Path
) -> tuple[Header, list[_Frame], tuple[str, ...]]:
    """The header of the scan that the frames make, they in the order of its slices, and notes."""
    for keyword in _COMMON:
        if len({str(dataset.get(keyword)) for dataset in datasets}) > 1:
            raise GeometryError(
                f"{keyword} differs between its files", where=where, remedy=_REMAKE
            )
    first = datasets[0]
    if (
        first.get("SamplesPerPixel") != 1
        or first.PhotometricInterpretation != "MONOCHROME2"
    ):
        raise FormatError(
            "not grey values", where=where, remedy="give a T1-weighted scan"
        )
    bits = int(first.BitsAllocated)
    if bits not in (8, 16, 32):
        raise FormatError(f"voxels of {bits} bits", where=where, remedy=_REMAKE)
    shape = check_sides([int(first.Columns), int(first.Rows), len(frames)], where)
    ordered, affine, notes = _stack(frames, where)
    scalings = {frame.scaling for frame in frames}
    pads = any("PixelPaddingValue" in dataset for dataset in datasets)
    # Scaled slice by slice, where slices differ, or where padding must stay 0.
    is_even = len(scalings) == 1 and not (pads and scalings != {(1.0, 0.0)})
    slope, inter = ordered[0].scaling if is_even else (1.0, 0.0)
    kind = f"{'i' if first.PixelRepresentation else 'u'}{bits // 8}"
    form = Form(1, affine)
    zooms = check_zooms(np.linalg.norm(affine[:3, :3], axis=0), where)
    dtype = np.dtype(kind if is_even else np.float32)
    header = Header(shape, dtype, 0, slope, inter, zooms, form, form, affine)
    check_size(header, where)
    return header, ordered, notes


def _stack(
    frames: list[_Frame], where: Path
) -> tuple[list[_Frame], NDArray[np.float64], tuple[str, ...]]:
    """Frames along the normal of their plane; the affine, (column, row, slice) -> RAS mm; notes."""
    cosines = np.array([frame.cosines for frame in frames])
    if np.abs(cosines - cosines[0]).max() > _COSINES:
        raise GeometryError(
            "slices of several orientations", where=where, remedy="give one scan"
        )
    if len({frame.spacing for frame in frames}) > 1:
        raise GeometryError(
            "slices of several pixel sizes", where=where, remedy="give one scan"
        )
    row, column = cosines[0, :3], cosines[0, 3:]
    if np.abs([row @ row - 1, column @ column - 1, row @ column]).max() > MAX_SHEAR:
        raise GeometryError(
            "rows and columns are not at right angles", where=where, remedy=_REMAKE
        )
    normal = np.cross(row, column)
    ordered = sorted(frames, key=lambda frame: float(np.dot(frame.position, normal)))
    places = np.array([frame.position for frame in ordered])
    # The even grid that lies nearest to all slices.
    numbers = np.arange(len(places)) - (len(places) - 1) / 2
    step = numbers @ places / (numbers @ numbers)
    even = places.mean(axis=0) + np.outer(numbers, step)
    off = places - even
    along_mm = float(np.abs(off @ normal).max())
    gaps = np.diff(places @ normal)
    usual = float(np.median(gaps))
    slack = max(_POSITION_MM, usual * _UNEVEN)
    problem = ""
    if gaps.min() < _POSITION_MM:
        twice = int((gaps < _POSITION_MM).sum())
        problem = f"{twice} slices where another is: several echoes, times or parts in one series"
    elif along_mm > slack:
        problem = f"unequal spacing of slices, {gaps.min():.4g} to {gaps.max():.4g} mm"
        missing = np.rint(gaps / usual) - 1
        if np.abs(gaps - usual * (missing + 1)).max() <= slack:
            problem = f"slices are missing within it: {missing.sum():.0f}"
    elif np.abs(off).max() > slack:
        problem = "slices are not in a line"
    elif np.linalg.norm(step - normal * (step @ normal)) > MAX_SHEAR * usual:
        problem = "slices are shifted sideways (a tilted gantry)"
    if problem:
        raise GeometryError(problem, where=where, remedy=_REMAKE)
    affine = np.eye(4)
    rows_mm, columns_mm = ordered[0].spacing
    affine[:3] = np.column_stack([row * columns_mm, column * rows_mm, step, even[0]])
    # The patient's left and back are DICOM's positive directions. No zero is negative.
    affine[:2] *= -1
    affine += 0.0
    notes: tuple[str, ...] = ()
    if along_mm > _POSITION_MM:
        notes = (
            f"slices lie up to {along_mm:.2g} mm off an even spacing of {usual:.4g} mm",
        )
    return ordered, affine, notes


# Bytes --------------------------------------------------------------------------------------


@contextmanager
def _opened(
    place: Path,
) -> Iterator[tuple[Sequence[str], Callable[[str, int], bytes], str | None]]:
    """The members of a zip (of a folder: none), what reads one, the digest of the zip."""
    try:
        import pydicom  # noqa: F401
    except ImportError:
        raise FormatError(
            "DICOM needs more packages",
            where=place,
            remedy="pip install 'trinat[dicom]'",
        ) from None

    def read(name: str, limit: int) -> bytes:
        with open_regular(place / name) as file:
            # Not `limit` alone: as many bytes would be taken before one is read.
            return file.read(min(limit, os.fstat(file.fileno()).st_size))

    if place.is_dir():
        yield (), read, None
        return
    with open_regular(place) as file:
        digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        file.seek(max(0, size - 2**16 - 22))
        tail = file.read()
        contents = [
            tail[m.start() + 12 : m.start() + 16] for m in re.finditer(b"PK\5\6", tail)
        ]
        large = any(
            int.from_bytes(length, "little") > _MAX_CONTENTS for length in contents
        )
        if large or b"PK\6\7" in tail:
            raise FormatError(
                "too many files in a zip", where=place, remedy="pack one study"
            )
        try:
            with zipfile.ZipFile(file) as archive:
                members = [
                    member for member in archive.infolist() if not member.is_dir()
                ]
                refuse_bomb(sum(member.file_size for member in members), size, place)

                def unpack(name: str, limit: int) -> bytes:
                    with archive.open(name) as member:
                        return member.read(limit)

                yield [member.filename for member in members], unpack, digest
        except _ZIP_DAMAGE:
            raise IntegrityError(
                "a damaged or encrypted zip",
                where=place,
                remedy="pack it again, without password",
            ) from None


def _lists_files(raw: bytes) -> bool:
    """Whether it is a DICOMDIR, the table of contents of a disc."""
    return _DIRECTORY in raw[:1024]


def _has_magic(start: bytes) -> bool:
    return start[_MAGIC_AT : _MAGIC_AT + 4] == b"DICM"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep pydicom and highdicom from printing, in warnings and logs, what a header says."""
    from pydicom import config

    for name in ("pydicom", "highdicom"):
        logging.getLogger(name).disabled = True
    # One thread at a time: what is set here holds for all.
    with _QUIET, config.disable_value_validation(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _damage_explained(where: Path) -> Iterator[None]:
    """One line for whatever pydicom stumbles over: its own may quote the header."""
    try:
        with quiet():
            yield
    except (InputError, MemoryError):
        raise
    except Exception:
        raise IntegrityError(
            "damaged DICOM file", where=where, remedy=_REMAKE
        ) from None


def _parse(raw: bytes, where: Path, *, whole: bool = False) -> tuple[Dataset, int]:
    """A file's header, and where its pixels begin."""
    from pydicom import dcmread

    head = raw[:_MAX_HEADER]
    if not _has_magic(head):
        raise IntegrityError("no DICOM file", where=where, remedy=_REMAKE)
    if _lists_files(head):
        remedy = "give the folder that holds it"
        raise FormatError(
            "a list of files (DICOMDIR), no image", where=where, remedy=remedy
        )
    # pydicom unpacks it whole, to whatever size.
    if _DEFLATED in head or sum(map(head.count, _ITEMS)) > _MAX_ITEMS:
        raise FormatError(
            "its header is deflated or too large", where=where, remedy=_REMAKE
        )
    buffer = io.BytesIO(head)
    dataset = dcmread(
        buffer, stop_before_pixels=True, specific_tags=None if whole else _TAGS
    )
    return dataset, buffer.tell()


def _check_pixels(dataset: Dataset, raw: bytes, at: int, where: Path) -> None:
    """Refuse, before anything is decoded, pixels that are not there or that nothing decodes."""
    from pydicom.pixels.decoders.base import get_decoder

    if dataset.get("ModalityLUTSequence"):
        # No MR image has one by the standard, and it may turn dark into bright.
        raise FormatError(
            "its values are places in a table", where=where, remedy=_REMAKE
        )
    highest = int(dataset.BitsStored) - 1
    if int(dataset.get("HighBit", highest)) != highest:
        raise FormatError(
            "its values do not end at the lowest bit", where=where, remedy=_REMAKE
        )
    syntax = dataset.file_meta.TransferSyntaxUID
    if raw[at : at + 4] not in (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10"):
        raise IntegrityError("no pixels in it", where=where, remedy=_REMAKE)
    if syntax.is_compressed:
        try:
            known = get_decoder(syntax).is_available
        except NotImplementedError:  # a transfer syntax that pydicom has never heard of
            known = False
        if not known:
            raise FormatError(
                f"compressed ({syntax.name}), and no installed package decodes that",
                where=where,
                remedy="pip install python-gdcm, or export it uncompressed",
            )
        return
    voxels = int(dataset.Rows) * int(dataset.Columns) * _count(dataset)
    if len(raw) - at < voxels * int(dataset.BitsAllocated) // 8:
        raise IntegrityError(
            "truncated: its pixels end early", where=where, remedy=_REMAKE
        )


def _pixels(file: _File) -> NDArray[Any]:
    """All frames of a file, (frame, row, column)."""
    where, dataset, raw, at = file
    syntax = dataset.file_meta.TransferSyntaxUID
    start = at + (8 if syntax.is_implicit_VR else 12)
    length = int.from_bytes(
        raw[start - 4 : start], "little" if syntax.is_little_endian else "big"
    )
    undefined = length == 0xFFFFFFFF
    with _damage_explained(where):
        kind = "OW" if syntax.is_implicit_VR else raw[at + 4 : at + 6].decode("ascii")
        dataset.add_new(
            "PixelData", kind, raw[start:] if undefined else raw[start:][:length]
        )
        dataset["PixelData"].is_undefined_length = undefined
        pixels = dataset.pixel_array
        return pixels.reshape(_count(dataset), int(dataset.Rows), int(dataset.Columns))


def _count(dataset: Dataset) -> int:
    return int(dataset.get("NumberOfFrames") or 1)


def _several(value: Any) -> list[Any]:
    """The values of an element that may have none, one or more."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    try:
        return list(value)
    except TypeError:
        return [value]
