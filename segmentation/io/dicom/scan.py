"""Reader of a scan from the DICOM files of one series: first the header, then the voxels."""

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
    convert_errors,
    frame_count,
    parse,
)
from trinat.segmentation.io.dicom.series import only_scan, opened
from trinat.segmentation.io.headers import Form, Header, check_size
from trinat.segmentation.io.limits import MAX_BYTES, check_sides, check_zooms

if TYPE_CHECKING:
    from pydicom import Dataset

# Elements that must be equal in all files.
_EQUAL_IN_ALL_FILES = (
    "Rows",
    "Columns",
    "BitsAllocated",
    "PixelRepresentation",
    "FrameOfReferenceUID",
    "SamplesPerPixel",
    "PhotometricInterpretation",
)
_UNSCALED = (1.0, 0.0)

# First bytes of the pixel element, in either byte order.
_PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
# Value for an unknown length of the pixel element: its pixels are compressed, in pieces.
_UNDEFINED_LENGTH = 0xFFFFFFFF


class Loaded(NamedTuple):
    """Files of a scan and its frames in the order of slices, before voxels are read.

    The keys of `files` are the file numbers in the frames. `digest` is the SHA-256 of the zip, or
    of the files in the order of their names. `notes` are sentences on unusual properties.
    """

    files: dict[int, DicomFile]
    frames: list[Frame]
    header: Header
    digest: str
    notes: tuple[str, ...]


def read_series(
    place: Path, names: Sequence[str] = (), *, any_contrast: bool = False
) -> tuple[Header, NDArray[Any], str, tuple[str, ...]]:
    """Read header, voxels (column, row, slice), SHA-256 and notes of a scan.

    `place` is a folder or a zip, and `names` are the files in it; without names, those of the only
    T1-weighted series, or with `any_contrast` of the only anatomical one. If the header has no
    common scaling, the scaling of each slice is applied here. Voxels of padding are set to 0.
    """
    files, frames, header, digest, notes = load(place, names, any_contrast=any_contrast)
    voxels = np.empty(header.shape, header.dtype, order="F")
    padding = 0
    slices: dict[int, list[int]] = defaultdict(list)
    for at, frame in enumerate(frames):
        slices[frame.file].append(at)
    for number, places in slices.items():
        # Release each file once it has been read, to free its memory.
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


def load(
    place: Path,
    names: Sequence[str],
    *,
    any_contrast: bool = False,
    whole: bool = False,
) -> Loaded:
    """Load the files of a scan, parse and check their headers, and sort their frames.

    `place`, `names` and `any_contrast` are those of `read_series`. With `whole`, headers are
    complete, including the patient's name, and the bytes of the files, with their pixels, are
    dropped. Raises an InputError if the files are no scan.
    """
    if not names:
        place, names = only_scan(place, any_contrast=any_contrast)
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
            with convert_errors(where):
                dataset, pixels_at = parse(raw, where, whole=whole)
                file = DicomFile(where, dataset, raw, pixels_at)
                frames += frames_of(dataset, number, where)
                _check_pixels(file)
            files[number] = file._replace(raw=b"") if whole else file
    with convert_errors(place):
        datasets = [file.dataset for file in files.values()]
        header, slices = _header_and_slices(datasets, frames, place)
    notes = slices.notes
    copies = len(names) - len(files)
    if copies:
        notes = (*notes, f"{copies} files of the series were there twice")
    digest_of_scan = container.digest or digest.hexdigest()
    return Loaded(files, slices.frames, header, digest_of_scan, notes)


def _header_and_slices(
    datasets: list[Dataset], frames: list[Frame], where: Path
) -> tuple[Header, Stack]:
    """Return the header of the scan that the frames of these files form, and its sorted slices.

    If all slices have the same scaling, voxels keep the type in the files and the header scales
    them. Otherwise they are float32, and the header does not scale them. Raises an InputError if
    the files are not one scan.
    """
    for keyword in _EQUAL_IN_ALL_FILES:
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
    # Values are scaled slice by slice if slices have different scalings, or if padding must stay 0.
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
    # The same form for qform and sform, so that the two cannot disagree.
    form = Form(1, affine)
    header = Header(shape, dtype, 0, slope, intercept, zooms, form, form, affine)
    check_size(header, where)
    return header, slices


def _stored_type(dataset: Dataset, where: Path) -> np.dtype[Any]:
    """Return the type of a file's stored values; raise FormatError if they are not grey values."""
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
    """DICOM file with its parsed header.

    `raw` are the bytes of the whole file, so that no file stays open; `pixels_at` is the offset of
    the pixels in them. `where` is its path, for messages only.
    """

    where: Path
    dataset: Dataset
    raw: bytes
    pixels_at: int


def _check_pixels(file: DicomFile) -> None:
    """Check, before decoding, that the pixels of a file are complete and can be decoded.

    Raises FormatError for an unsupported storage of pixels, and IntegrityError for a file that ends
    early. The length of compressed pixels cannot be checked.
    """
    where, dataset, raw, at = file
    if dataset.get("ModalityLUTSequence"):
        # No MR image has one by the standard, and it may turn dark into bright.
        raise FormatError(
            "its values are indices into a lookup table", where=where, remedy=REMAKE
        )
    highest_bit = int(dataset.BitsStored) - 1
    if int(dataset.get("HighBit", highest_bit)) != highest_bit:
        raise FormatError(
            "its pixel values do not use the lowest bit", where=where, remedy=REMAKE
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
    """Raise FormatError if no installed package can decode a compression.

    `syntax` is the transfer syntax of the file `where`.
    """
    from pydicom.pixels.decoders.base import get_decoder

    try:
        is_known = get_decoder(syntax).is_available
    # pydicom has no list of decoders for video.
    except NotImplementedError:
        is_known = False
    if not is_known:
        raise FormatError(
            f"compressed ({syntax.name}), and no installed package decodes that",
            where=where,
            remedy="pip install python-gdcm, or export it uncompressed",
        )


def decode(file: DicomFile) -> NDArray[Any]:
    """Decode the pixels of all frames of a file, (frame, row, column), without scaling them.

    The file must have passed `_check_pixels`. Raises IntegrityError if it is damaged.
    """
    where, dataset, raw, at = file
    syntax = dataset.file_meta.TransferSyntaxUID
    order: Literal["little", "big"] = "little" if syntax.is_little_endian else "big"
    # The pixel element begins with its tag and its length and, unless the syntax is implicit, its
    # value representation.
    start = at + (8 if syntax.is_implicit_VR else 12)
    length = int.from_bytes(raw[start - 4 : start], order)
    is_undefined = length == _UNDEFINED_LENGTH
    with convert_errors(where):
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
    """Return a mask of the padding in stored values, by PixelPaddingValue and its range limit.

    It has the shape of `stored`, and is False everywhere if the header defines no padding.
    """
    first = dataset.get("PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, np.bool_)
    last = dataset.get("PixelPaddingRangeLimit")
    if last is None:
        last = first
    # Some writers give a signed value without its sign, so compare the bits.
    ends = np.array([int(first), int(last)]).astype(stored.dtype)
    return np.asarray((stored >= ends.min()) & (stored <= ends.max()))
