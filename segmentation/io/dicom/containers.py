"""What holds DICOM files, a folder, a zip or a file, and how their bytes are read."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.dicom.parsing import START_LENGTH, has_magic
from trinat.segmentation.io.files import open_regular
from trinat.segmentation.io.streams import refuse_bomb

# A zip's table of contents: some 40,000 files.
_MAX_CONTENTS = 4 * 2**20
# The record that ends a zip, and the longest comment that may follow it.
_ZIP_END_LENGTH = 22 + 2**16
_ZIP_END = b"PK\5\6"
_ZIP64_END = b"PK\6\7"
# Encrypted ones and unknown kinds of compression raise the last two.
_ZIP_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ValueError,
    RuntimeError,
)


class Container(NamedTuple):
    """A folder or a zip that is open.

    `members` are the names of the files in a zip; of a folder none are listed. `read` gives the
    bytes of a member up to a limit. `digest` is the SHA-256 of a zip.
    """

    members: Sequence[str]
    read: Callable[[str, int], bytes]
    digest: str | None


def is_dicom(path: Path) -> bool:
    """Whether a regular file begins as DICOM files do.

    Only the first bytes are read. False for a folder, a link to nothing, and a file that may not be
    read: nothing is raised.
    """
    try:
        with open_regular(path) as file:
            return has_magic(file.read(START_LENGTH))
    except (OSError, InputError):
        return False


def holds_dicom(path: Path) -> bool:
    """Whether a scan is looked for inside: a folder, a zip, a DICOM file."""
    return path.is_dir() or path.suffix.lower() == ".zip" or is_dicom(path)


@contextmanager
def opened(place: Path) -> Iterator[Container]:
    """A folder or a zip to read members of.

    Raises FormatError without pydicom and for a zip that unpacks to too much, IntegrityError for
    a damaged zip, also while its members are read.
    """
    try:
        import pydicom  # noqa: F401
    except ImportError:
        raise FormatError(
            "DICOM needs more packages",
            where=place,
            remedy="pip install 'trinat[dicom]'",
        ) from None
    if place.is_dir():
        yield _folder(place)
        return
    with open_regular(place) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        _refuse_long_contents(file, size, place)
        try:
            with zipfile.ZipFile(file) as archive:
                yield _zip(archive, size, digest, place)
        except _ZIP_DAMAGE:
            raise IntegrityError(
                "a damaged or encrypted zip",
                where=place,
                remedy="pack it again, without password",
            ) from None


def _folder(place: Path) -> Container:
    """A folder, whose files are opened one by one."""

    def read(name: str, limit: int) -> bytes:
        with open_regular(place / name) as file:
            # Not `limit` alone: as many bytes would be taken before one is read.
            size = os.fstat(file.fileno()).st_size
            return file.read(min(limit, size))

    return Container((), read, None)


def _zip(archive: zipfile.ZipFile, size: int, digest: str, place: Path) -> Container:
    """An open zip of `size` bytes; FormatError if it unpacks to far more than that."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    refuse_bomb(sum(member.file_size for member in members), size, place)

    def unpack(name: str, limit: int) -> bytes:
        with archive.open(name) as member:
            return member.read(limit)

    names = [member.filename for member in members]
    return Container(names, unpack, digest)


def _refuse_long_contents(file: BinaryIO, size: int, place: Path) -> None:
    """Refuse a zip whose table of contents is too long, before zipfile reads it whole."""
    file.seek(max(0, size - _ZIP_END_LENGTH))
    tail = file.read()
    is_long = _ZIP64_END in tail
    # What looks like the record may be part of a comment: none may announce too much.
    for record in re.finditer(_ZIP_END, tail):
        length = tail[record.start() + 12 : record.start() + 16]
        if int.from_bytes(length, "little") > _MAX_CONTENTS:
            is_long = True
    if is_long:
        raise FormatError(
            "too many files in a zip", where=place, remedy="pack one study"
        )
