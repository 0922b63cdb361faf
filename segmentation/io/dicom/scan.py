"""A scan of the DICOM files of one series: its header first, then its voxels."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError
from trinat.segmentation.io.dicom.frames import Frame, Stack, frames_of, stack
from trinat.segmentation.io.dicom.parsing import (
    MAX_HEADER,
    REMAKE,
    damage_explained,
    frame_count,
    parse,
)
from trinat.segmentation.io.dicom.series import only_scan, opened
from trinat.segmentation.io.headers import Form, Header, check_size
from trinat.segmentation.io.limits import MAX_BYTES, check_sides, check_zooms

if TYPE_CHECKING:
    from pydicom import Dataset

# What must be the same in all files.
_COMMON = (
    "Rows",
    "Columns",
    "BitsAllocated",
    "PixelRepresentation",
    "FrameOfReferenceUID",
    "SamplesPerPixel",
    "PhotometricInterpretation",
)
_UNSCALED = (1.0, 0.0)

# How the element of pixels begins, in files of either byte order.
_PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
# An element's length where it is not known: its pixels are compressed, in pieces.
_UNDEFINED_LENGTH = 0xFFFFFFFF


class Loaded(NamedTuple):
    """The files of a scan, its slices in their order, and what is known before voxels are read.

    Files have the numbers by which frames name them. `digest` is the SHA-256 of the zip, or of
    the files in the order of their names.
    """

    files: dict[int, DicomFile]
    frames: list[Frame]
    header: Header
    digest: str
    notes: tuple[str, ...]


def read_series(
    place: Path, names: Sequence[str] = ()
) -> tuple[Header, NDArray[Any], str, tuple[str, ...]]:
    """Header, voxels (column, row, slice), digest and notes of the scan that these files are.

    `names` are files in `place`, a folder or a zip; see `load`. What the header does not scale is
    scaled here, slice by slice, and voxels of padding are set to 0.
    """
    files, frames, header, digest, notes = load(place, names)
    voxels = np.empty(header.shape, header.dtype, order="F")
    padding = 0
    slices: dict[int, list[int]] = defaultdict(list)
    for at, frame in enumerate(frames):
        slices[frame.file].append(at)
    for number, places in slices.items():
        # What was read is let go of, file by file.
        file = files.pop(number)
        pixels = decode(file)
        for at in places:
            frame = frames[at]
            stored = pixels[frame.number].T
            values = stored
            if header.dtype.kind == "f":
                slope, intercept = frame.scaling
                values = stored * slope + intercept
            padded = is_padding(file.dataset, stored)
            padding += int((padded & (values != 0)).sum())
            voxels[..., at] = np.where(padded, 0, values)
    if padding:
        notes = (*notes, f"{padding} voxels of padding are set to 0")
    return header, voxels, digest, notes


def load(place: Path, names: Sequence[str] = (), *, whole: bool = False) -> Loaded:
    """The files of a scan, checked; without names, of the only T1-weighted series in `place`.

    `whole`: with all that their headers say, the patient's name among it, and without pixels.
    Raises an InputError for whatever is no scan.
    """
    if not names:
        place, names = only_scan(place)
    files: dict[int, DicomFile] = {}
    frames: list[Frame] = []
    seen: set[bytes] = set()
    digest = hashlib.sha256()
    bytes_left = MAX_BYTES + MAX_HEADER
    with opened(place) as container:
        for number, name in enumerate(names):
            where = place / name
            raw = container.read(name, bytes_left + 1)
            bytes_left -= len(raw)
            if bytes_left < 0:
                raise FormatError(
                    "more than 2 GiB of files", where=place, remedy="give one scan"
                )
            digest.update(raw)
            file_digest = hashlib.sha256(raw).digest()
            if file_digest in seen:
                continue
            seen.add(file_digest)
            with damage_explained(where):
                dataset, pixels_at = parse(raw, where, whole=whole)
                file = DicomFile(where, dataset, raw, pixels_at)
                frames += frames_of(dataset, number, where)
                _check_pixels(file)
            files[number] = file._replace(raw=b"") if whole else file
    with damage_explained(place):
        datasets = [file.dataset for file in files.values()]
        header, slices = _lay_out(datasets, frames, place)
    notes = slices.notes
    copies = len(names) - len(files)
    if copies:
        notes = (*notes, f"{copies} files of the series were there twice")
    digest_of_scan = container.digest or digest.hexdigest()
    return Loaded(files, slices.frames, header, digest_of_scan, notes)


def _lay_out(
    datasets: list[Dataset], frames: list[Frame], where: Path
) -> tuple[Header, Stack]:
    """The header of the scan that the frames of these files make, and its slices.

    Voxels keep the type in the files and the header scales them, if one scaling is for all. Else
    they are float32, and unscaled by the header. Raises an InputError if they are no one scan.
    """
    for keyword in _COMMON:
        if len({str(dataset.get(keyword)) for dataset in datasets}) > 1:
            raise GeometryError(
                f"{keyword} differs between its files", where=where, remedy=REMAKE
            )
    first = datasets[0]
    stored_type = _stored_type(first, where)
    dims = [int(first.Columns), int(first.Rows), len(frames)]
    shape = check_sides(dims, where)
    slices = stack(frames, where)
    affine = slices.affine
    # Scaled slice by slice, where slices differ, or where padding must stay 0.
    scalings = {frame.scaling for frame in frames}
    pads = any("PixelPaddingValue" in dataset for dataset in datasets)
    is_even = len(scalings) == 1 and not (pads and scalings != {_UNSCALED})
    if is_even:
        dtype = stored_type
        slope, intercept = slices.frames[0].scaling
    else:
        dtype = np.dtype(np.float32)
        slope, intercept = _UNSCALED
    lengths = np.linalg.norm(affine[:3, :3], axis=0)
    zooms = check_zooms(lengths, where)
    # One statement stands for both forms: they cannot disagree.
    form = Form(1, affine)
    header = Header(shape, dtype, 0, slope, intercept, zooms, form, form, affine)
    check_size(header, where)
    return header, slices


def _stored_type(dataset: Dataset, where: Path) -> np.dtype[Any]:
    """The type of a file's values; FormatError if they are no grey values."""
    is_grey = dataset.get("SamplesPerPixel") == 1
    if not is_grey or dataset.PhotometricInterpretation != "MONOCHROME2":
        raise FormatError(
            "not grey values", where=where, remedy="give a T1-weighted scan"
        )
    bits = int(dataset.BitsAllocated)
    if bits not in (8, 16, 32):
        raise FormatError(f"voxels of {bits} bits", where=where, remedy=REMAKE)
    kind = "i" if dataset.PixelRepresentation else "u"
    return np.dtype(f"{kind}{bits // 8}")


class DicomFile(NamedTuple):
    """A file whose header is parsed; `pixels_at` is where in its bytes the pixels begin.

    `raw` holds the whole file, so that nothing is open. `where` is for messages only.
    """

    where: Path
    dataset: Dataset
    raw: bytes
    pixels_at: int


def _check_pixels(file: DicomFile) -> None:
    """Refuse, before anything is decoded, pixels that are not there or that nothing decodes.

    Raises FormatError for what is stored in another way than we read, IntegrityError for a file
    that ends early. How many bytes compressed pixels must have is not known.
    """
    where, dataset, raw, at = file
    if dataset.get("ModalityLUTSequence"):
        # No MR image has one by the standard, and it may turn dark into bright.
        raise FormatError(
            "its values are places in a table", where=where, remedy=REMAKE
        )
    highest_bit = int(dataset.BitsStored) - 1
    if int(dataset.get("HighBit", highest_bit)) != highest_bit:
        raise FormatError(
            "its values do not end at the lowest bit", where=where, remedy=REMAKE
        )
    syntax = dataset.file_meta.TransferSyntaxUID
    if raw[at : at + 4] not in _PIXEL_TAGS:
        raise IntegrityError("no pixels in it", where=where, remedy=REMAKE)
    if syntax.is_compressed:
        _require_decoder(syntax, where)
        return
    voxels = int(dataset.Rows) * int(dataset.Columns) * frame_count(dataset)
    if len(raw) - at < voxels * int(dataset.BitsAllocated) // 8:
        raise IntegrityError(
            "truncated: its pixels end early", where=where, remedy=REMAKE
        )


def _require_decoder(syntax: Any, where: Path) -> None:
    """Refuse a compression that no installed package decodes."""
    from pydicom.pixels.decoders.base import get_decoder

    try:
        is_known = get_decoder(syntax).is_available
    # For films, pydicom has no list of decoders at all.
    except NotImplementedError:
        is_known = False
    if not is_known:
        raise FormatError(
            f"compressed ({syntax.name}), and no installed package decodes that",
            where=where,
            remedy="pip install python-gdcm, or export it uncompressed",
        )


def decode(file: DicomFile) -> NDArray[Any]:
    """All frames of a file, (frame, row, column), as stored; IntegrityError if it is damaged.

    The file must have passed `_check_pixels`.
    """
    where, dataset, raw, at = file
    syntax = dataset.file_meta.TransferSyntaxUID
    order: Literal["little", "big"] = "little" if syntax.is_little_endian else "big"
    # Before the pixels stand tag and length, and unless it is implicit their kind.
    start = at + (8 if syntax.is_implicit_VR else 12)
    length = int.from_bytes(raw[start - 4 : start], order)
    is_undefined = length == _UNDEFINED_LENGTH
    with damage_explained(where):
        kind = "OW"
        if not syntax.is_implicit_VR:
            kind = raw[at + 4 : at + 6].decode("ascii")
        end = len(raw) if is_undefined else start + length
        dataset.add_new("PixelData", kind, raw[start:end])
        dataset["PixelData"].is_undefined_length = is_undefined
        pixels = dataset.pixel_array
        return pixels.reshape(
            frame_count(dataset), int(dataset.Rows), int(dataset.Columns)
        )


def is_padding(dataset: Dataset, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which stored values stand for no measurement, by PixelPaddingValue and its range limit.

    A mask of the shape of `stored`; nothing is set where the header names no padding.
    """
    first = dataset.get("PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, np.bool_)
    last = dataset.get("PixelPaddingRangeLimit")
    if last is None:
        last = first
    # Some writers give the number of a signed value without its sign: its bits count.
    ends = np.array([int(first), int(last)]).astype(stored.dtype)
    return np.asarray((stored >= ends.min()) & (stored <= ends.max()))
