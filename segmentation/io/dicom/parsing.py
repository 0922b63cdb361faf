"""Parser of DICOM headers, limited in memory and without output of patient data."""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trinat.segmentation.errors import FormatError, InputError, IntegrityError

if TYPE_CHECKING:
    from pydicom import Dataset

# Limits on a header. An enhanced header of 1,500 frames has a few MB. pydicom takes up to 50 bytes
# of memory for each byte of a header, and a kilobyte for each item, which may be empty.
MAX_HEADER = 8 * 2**20
_MAX_ITEMS = 100_000
# First bytes of an item, in either byte order.
_ITEM_STARTS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
# Offset of the DICOM magic, after a preamble of 128 bytes.
_MAGIC_AT = 128
_MAGIC = b"DICM"
START_LENGTH = _MAGIC_AT + len(_MAGIC)
_DEFLATED_UID = b"1.2.840.10008.1.2.1.99"
_DIRECTORY_UID = b"1.2.840.10008.1.3.10"
REMAKE = "export the series again"

# Elements that are read from a header.
_TAGS = [
    # Kind of file, and its series.
    "SOPClassUID",
    "SOPInstanceUID",
    "Modality",
    "ImageType",
    "SeriesInstanceUID",
    "PatientID",
    "SeriesNumber",
    "SeriesDescription",
    "ProtocolName",
    "FrameOfReferenceUID",
    # Acquisition.
    "ScanningSequence",
    "MRAcquisitionType",
    "AngioFlag",
    "EchoTime",
    "AcquisitionContrast",
    "EchoPlanarPulseSequence",
    # Storage of pixels.
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "NumberOfFrames",
    "PlanarConfiguration",
    # Geometry.
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    # Scaling and meaning of values.
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    # The same elements, for the frames of an enhanced file.
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
]
_PYDICOM_SETTINGS = threading.RLock()


def has_magic(start: bytes) -> bool:
    """Return True if `start`, the first bytes of a file, are those of a DICOM file."""
    return start[_MAGIC_AT:START_LENGTH] == _MAGIC


def lists_files(raw: bytes) -> bool:
    """Return True if a file is a DICOMDIR, the table of contents of a disc.

    `raw` are at least its first 1,024 bytes.
    """
    return _DIRECTORY_UID in raw[:1024]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep pydicom and highdicom from printing header content in warnings and logs.

    In the block, values that violate the standard are accepted.
    """
    from pydicom import config

    for name in ("pydicom", "highdicom"):
        logging.getLogger(name).disabled = True
    # One thread at a time, because these settings are global.
    with (
        _PYDICOM_SETTINGS,
        config.disable_value_validation(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def convert_errors(where: Path) -> Iterator[None]:
    """Convert any exception of pydicom in the block to an IntegrityError with a fixed text.

    The text of pydicom's exception may quote the header, and with it the patient's name. InputError
    and MemoryError are not converted. `where` is the file that the message names.
    """
    try:
        with quiet():
            yield
    except (InputError, MemoryError):
        raise
    except Exception:
        raise IntegrityError("damaged DICOM file", where=where, remedy=REMAKE) from None


def parse(raw: bytes, where: Path, *, whole: bool = False) -> tuple[Dataset, int]:
    """Parse the header of a file; return it, and the offset at which the file's pixels begin.

    `raw` are the bytes of the file, or at least its first MAX_HEADER bytes. With `whole` the result
    is the complete header, including the patient's name, else only the elements that are used. An
    InputError is raised if the file is no image, or if the header would take too much memory.
    Exceptions of pydicom for damaged files are not converted: call this within `convert_errors`.
    """
    from pydicom import dcmread

    head = raw[:MAX_HEADER]
    if not has_magic(head):
        raise IntegrityError("no DICOM file", where=where, remedy=REMAKE)
    if lists_files(head):
        raise FormatError(
            "a list of files (DICOMDIR), no image",
            where=where,
            remedy="give the folder that holds it",
        )
    # pydicom decompresses a deflated header completely, whatever its size.
    is_deflated = _DEFLATED_UID in head
    items = sum(head.count(start) for start in _ITEM_STARTS)
    if is_deflated or items > _MAX_ITEMS:
        raise FormatError(
            "its header is deflated or too large", where=where, remedy=REMAKE
        )
    buffer = io.BytesIO(head)
    tags = None if whole else _TAGS
    dataset = dcmread(buffer, stop_before_pixels=True, specific_tags=tags)
    return dataset, buffer.tell()


def frame_count(dataset: Dataset) -> int:
    """Return the number of images in a file; 1 if the header has none, as in classic files."""
    return int(dataset.get("NumberOfFrames") or 1)


def functional_group(dataset: Dataset, frame: int, name: str) -> Any:
    """Return the item of a functional group that applies to a frame of an enhanced file.

    `name` is the name of the group, such as PlanePosition. The frame's own item takes precedence
    over the item that all frames share. Without either, the result is an empty dictionary.
    """
    for kind, number in (("PerFrame", frame), ("Shared", 0)):
        items = dataset.get(f"{kind}FunctionalGroupsSequence") or ()
        if number < len(items) and items[number].get(f"{name}Sequence"):
            return items[number][f"{name}Sequence"].value[0]
    return {}


def several(value: Any) -> list[Any]:
    """Return the values of an element as a list, whatever form pydicom gives them.

    pydicom gives None or an empty text for no value, the value itself for a single value, and a
    list for several.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [value] if value else []
    try:
        return list(value)
    except TypeError:
        return [value]
