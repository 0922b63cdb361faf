"""The pixels of a DICOM file: checked before anything is decoded, then decoded by pydicom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import FormatError, IntegrityError
from trinat.segmentation.io.dicom.parsing import REMAKE, damage_explained, frame_count

if TYPE_CHECKING:
    from pydicom import Dataset

# How the element of pixels begins, in files of either byte order.
_PIXEL_TAGS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
# An element's length where it is not known: its pixels are compressed, in pieces.
_UNDEFINED_LENGTH = 0xFFFFFFFF


class DicomFile(NamedTuple):
    """A file whose header is parsed; `pixels_at` is where in its bytes the pixels begin.

    `raw` holds the whole file, so that nothing is open. `where` is for messages only.
    """

    where: Path
    dataset: Dataset
    raw: bytes
    pixels_at: int


def check_pixels(file: DicomFile) -> None:
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

    The file must have passed `check_pixels`.
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
