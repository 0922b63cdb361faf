"""Scan files as byte streams: regular, decompressed, bounded, and verified to the last checksum."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from trinat.segmentation.errors import FormatError, InputError, IntegrityError
from trinat.segmentation.io.files import is_broken_link, open_regular
from trinat.segmentation.timing import stage

if TYPE_CHECKING:
    from hashlib import _Hash as _Digest

    from _typeshed import WriteableBuffer

# All suffixes of scans that are read. A suffix comes before any other that is its own ending.
SCAN_SUFFIXES = (".nii.gz", ".nii", ".mgh.gz", ".mgz", ".mgh", ".hdr", ".img")
_ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar")

NO_CHECKSUM = (
    "its format has no checksum, and --require-checksum is given: compress it (gzip)"
)

# No Deflate stream has a larger compression ratio than this.
_DEFLATE_LIMIT = 1032
# FreeSurfer's 32-bit label maps have compression ratios of up to 190. A large file with more than
# 500 is a decompression bomb.
_BOMB_RATIO = 500
_BOMB_BYTES = 256 * 2**20
_PIECE = 2**20
_FETCH_AGAIN = "fetch or make it again"


def is_archive(path: Path) -> bool:
    """Return True if the name has the suffix of an archive, such as .tar.gz or .7z.

    A zip is no archive here, because it may hold DICOM files.
    """
    return path.name.lower().endswith(_ARCHIVE_SUFFIXES)


def remedy_for_format(path: Path) -> str:
    """Return the remedy to show for a file that is not in a supported format."""
    if is_archive(path):
        return "unpack the archive and give the folder"
    return f"give one of {', '.join(SCAN_SUFFIXES)}"


def has_checksum(path: Path) -> bool:
    """Return True if the format of a file, by its name, has a checksum.

    Compressed files have one; .nii, .mgh, pairs and DICOM files have none.
    """
    return path.name.lower().endswith((".gz", ".mgz", ".zip"))


def refuse_bomb(unpacked: int, packed: int, where: Path) -> None:
    """Raise a FormatError if a file unpacks to more bytes than any scan or array of scans does.

    `unpacked` and `packed` are the sizes in bytes. Small files pass at any ratio. `where` names the
    file in the message.
    """
    if unpacked > max(_BOMB_BYTES, _BOMB_RATIO * packed):
        raise FormatError(
            f"unpacks to {unpacked // packed} times its size, which no scan does",
            where=where,
            remedy="unpack it with gunzip if you trust it",
        )


class ScanStream:
    """A scan file that is opened once and read from front to back.

    The bytes that are checked are therefore the bytes that are used. If `packed`, the file is
    decompressed with gzip. `position` is the number of decompressed bytes read so far, and `size`
    the size on disk. `digest` is the SHA-256 of the bytes on disk that have been read; pass the
    digest of another file to continue it. Any fault of the file raises an InputError.
    """

    def __init__(
        self,
        path: Path,
        *,
        packed: bool,
        digest: _Digest | None = None,
    ) -> None:
        self.path = path
        self.position = 0
        raw = _open(path)
        self._file = raw
        self._packed = packed
        try:
            self.size = os.fstat(raw.fileno()).st_size
            self._check_start(raw)
            self.digest = hashlib.sha256() if digest is None else digest
            hashed = _Hashed(raw, self.digest)
            self._bytes: io.BufferedIOBase | io.RawIOBase = hashed
            if packed:
                self._bytes = gzip.GzipFile(fileobj=cast(BinaryIO, hashed))
        except BaseException:
            raw.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, count: int) -> bytes:
        """Return the next `count` decompressed bytes."""
        buffer = bytearray(count)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def fill(self, buffer: memoryview) -> None:
        """Read exactly as many bytes as the buffer holds.

        Raises an IntegrityError if there are fewer bytes, or if they cannot be decompressed.
        """
        filled = 0
        with damage_explained(self.path):
            while filled < len(buffer):
                count = self._bytes.readinto(buffer[filled : filled + _PIECE])
                if not count:
                    raise IntegrityError(
                        f"truncated: ends after {self.position + filled} bytes where "
                        f"{self.position + len(buffer)} were announced",
                        where=self.path,
                        remedy=_FETCH_AGAIN,
                    )
                filled += count
        self.position += filled

    def announce(self, end: int) -> None:
        """Raise an error if a header says that there are more data than the file can hold.

        It is called before memory is allocated. `end` is where the data end, in decompressed bytes
        from the start of the file. Raises an IntegrityError if the file is too short even at the
        best compression ratio of gzip, and a FormatError at a ratio that no scan reaches.
        """
        most = self.size
        if self._packed:
            most *= _DEFLATE_LIMIT
        if end > most:
            raise IntegrityError(
                f"truncated: {self.size} bytes cannot hold the {end} that the header announces",
                where=self.path,
                remedy=_FETCH_AGAIN,
            )
        refuse_bomb(end, self.size, self.path)

    def drain(self, *, limit: int, zeros: bool) -> None:
        """Read to the end of the file, where gzip has its checksums.

        Raises an IntegrityError if more than `limit` bytes follow, or, with `zeros`, a byte that is
        not 0.
        """
        rest = bytearray(_PIECE)
        found = 0
        with damage_explained(self.path):
            while count := self._bytes.readinto(rest):
                found += count
                is_padding = not zeros or not any(memoryview(rest)[:count])
                if found > limit or not is_padding:
                    raise IntegrityError(
                        "holds more data than its header announces",
                        where=self.path,
                        remedy="its header or its data are wrong; make it again",
                    )

    def _check_start(self, raw: BinaryIO) -> None:
        """Raise an error for an empty file, and for one whose compression contradicts its name."""
        if self.size == 0:
            raise IntegrityError("empty, 0 bytes", where=self.path, remedy=_FETCH_AGAIN)
        start = os.pread(raw.fileno(), 4, 0)
        is_gzip = start[:3] == b"\x1f\x8b\x08"
        if self._packed and not is_gzip:
            raise IntegrityError(
                "not gzip, though its name says so",
                where=self.path,
                remedy="fetch it again, or rename it if it is not compressed",
            )
        # RFC 1952 requires a reader to refuse these bits; Python's gzip ignores them.
        if self._packed and len(start) == 4 and start[3] & 0xE0:
            raise IntegrityError(
                "damaged gzip header", where=self.path, remedy=_FETCH_AGAIN
            )
        if is_gzip and not self._packed:
            raise FormatError(
                "gzip inside, though its name does not say so",
                where=self.path,
                remedy="add .gz to its name (.mgh becomes .mgz)",
            )


class _Hashed(io.RawIOBase):
    """Raw file that adds the bytes read from it to a digest."""

    def __init__(self, file: BinaryIO, digest: _Digest) -> None:
        self._file = cast(io.FileIO, file)
        self._digest = digest

    def readable(self) -> bool:
        """Return True, because gzip asks for it."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read once into the buffer and return the number of bytes; they may not fill it."""
        count = self._file.readinto(buffer) or 0
        with stage("checksum"):
            self._digest.update(memoryview(buffer)[:count])
        return count


def _open(path: Path) -> BinaryIO:
    """Open a scan for unbuffered reading; raise an InputError if that fails."""
    try:
        return cast(BinaryIO, open_regular(path).detach())
    except FileNotFoundError:
        what, remedy = "no such file", "check the path"
        if is_broken_link(path):
            what = "is a link to a missing file"
            remedy = "get its content, of a DataLad dataset by datalad get"
        raise InputError(what, where=path, remedy=remedy) from None
    except OSError as error:
        raise InputError(
            f"cannot be opened ({error.strerror})",
            where=path,
            remedy="check its permissions",
        ) from error


@contextlib.contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Convert errors of gzip, zlib and the disk in the block to an InputError about the file."""
    try:
        yield
    except EOFError:
        problem = "truncated: its gzip stream ends early"
    except gzip.BadGzipFile as error:
        problem = "gzip checksum failed"
        if "Not a gzipped file" in str(error):
            problem = "garbage after its gzip stream"
    except zlib.error:
        problem = "damaged gzip stream"
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror or error})",
            where=path,
            remedy="check its disk",
        ) from error
    else:
        return
    raise IntegrityError(problem, where=path, remedy=_FETCH_AGAIN)
