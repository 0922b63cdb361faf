"""A DICOM file's header, parsed by pydicom without what could fill the memory or print a name."""

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

# An enhanced header of 1,500 frames has a few MB. pydicom makes up to 50 bytes in memory of each
# byte, and of an item, which may be empty, a kilobyte.
MAX_HEADER = 8 * 2**20
_MAX_ITEMS = 100_000
# How an item begins, in files of either byte order.
_ITEM_STARTS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
# After a preamble of 128 bytes every DICOM file says what it is.
_MAGIC_AT = 128
_MAGIC = b"DICM"
START_LENGTH = _MAGIC_AT + len(_MAGIC)
_DEFLATED_UID = b"1.2.840.10008.1.2.1.99"
_DIRECTORY_UID = b"1.2.840.10008.1.3.10"
REMAKE = "export the series again"

# All that is read of a header.
_TAGS = [
    # What it is, and of which series.
    "SOPClassUID",
    "SOPInstanceUID",
    "Modality",
    "ImageType",
    "SeriesInstanceUID",
    "SeriesNumber",
    "SeriesDescription",
    "ProtocolName",
    "FrameOfReferenceUID",
    # How it was acquired.
    "ScanningSequence",
    "MRAcquisitionType",
    "AngioFlag",
    "EchoTime",
    "AcquisitionContrast",
    "EchoPlanarPulseSequence",
    # How its pixels are stored.
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
    # Where it is.
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    # What its values mean.
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    # All of this once more, for the frames of an enhanced file.
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
]
_PYDICOM_SETTINGS = threading.RLock()


def has_magic(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a DICOM file."""
    return start[_MAGIC_AT:START_LENGTH] == _MAGIC


def lists_files(raw: bytes) -> bool:
    """Whether it is a DICOMDIR, the table of contents of a disc."""
    return _DIRECTORY_UID in raw[:1024]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep pydicom and highdicom from printing, in warnings and logs, what a header says.

    Values that break the standard's rules are taken as they are in the meantime.
    """
    from pydicom import config

    for name in ("pydicom", "highdicom"):
        logging.getLogger(name).disabled = True
    # One thread at a time: what is set here holds for all.
    with (
        _PYDICOM_SETTINGS,
        config.disable_value_validation(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def damage_explained(where: Path) -> Iterator[None]:
    """One line for whatever pydicom stumbles over: its own may quote the header.

    Our own errors about a file come through, and so does a lack of memory.
    """
    try:
        with quiet():
            yield
    except (InputError, MemoryError):
        raise
    except Exception:
        raise IntegrityError("damaged DICOM file", where=where, remedy=REMAKE) from None


def parse(raw: bytes, where: Path, *, whole: bool = False) -> tuple[Dataset, int]:
    """A file's header, and where in the file its pixels begin.

    With `whole` all of the header, the patient's name among it, else what we use of it. `raw` are
    the bytes of the file, or as many of its first as a header may have. Raises an InputError for
    what is no image, and for a header that would take too much memory. What pydicom raises for
    damage comes through: call it within `damage_explained`.
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
    # pydicom unpacks a deflated header whole, to whatever size.
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
    """How many images a file holds; a classic one does not say that it is one."""
    return int(dataset.get("NumberOfFrames") or 1)


def functional_group(dataset: Dataset, frame: int, name: str) -> Any:
    """The item of an enhanced file's functional group that holds for a frame.

    A frame's own goes before the one that all frames share. Empty where there is none.
    """
    for kind, number in (("PerFrame", frame), ("Shared", 0)):
        items = dataset.get(f"{kind}FunctionalGroupsSequence") or ()
        if number < len(items) and items[number].get(f"{name}Sequence"):
            return items[number][f"{name}Sequence"].value[0]
    return {}


def several(value: Any) -> list[Any]:
    """The values of an element that may have none, one or more.

    pydicom gives None or an empty text for none, the value itself for one, and a list for more.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [value] if value else []
    try:
        return list(value)
    except TypeError:
        return [value]
