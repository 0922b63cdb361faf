"""A file's bytes from one opening: regular, unpacked, in bounds, verified to the last checksum."""

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
from trinat.segmentation.io.files import open_regular
from trinat.segmentation.timing import stage

if TYPE_CHECKING:
    from hashlib import _Hash as _Digest

    from _typeshed import WriteableBuffer

# Every kind of scan that is read; of two that end a name, the longer comes first.
SCAN_SUFFIXES = (".nii.gz", ".nii", ".mgh.gz", ".mgz", ".mgh", ".hdr", ".img")
_ARCHIVE_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar")

NO_CHECKSUM = (
    "its format has no checksum, and --require-checksum is given: compress it (gzip)"
)

# Deflate cannot pack better than this.
_DEFLATE_LIMIT = 1032
# FreeSurfer's 32-bit label maps reach 190; more than 500 in something large is a bomb.
_BOMB_RATIO = 500
_BOMB_BYTES = 256 * 2**20
_PIECE = 2**20
_FETCH_AGAIN = "fetch or make it again"


def is_archive(path: Path) -> bool:
    """Whether a file is a packed folder, by its name. A zip is none: it may have DICOM files."""
    return path.name.lower().endswith(_ARCHIVE_SUFFIXES)


def what_to_give(path: Path) -> str:
    """What to do in place of giving a file that is no known kind of scan."""
    if is_archive(path):
        return "unpack the archive and give the folder"
    return f"give one of {', '.join(SCAN_SUFFIXES)}"


def has_checksum(path: Path) -> bool:
    """Whether a scan's format has one: compressed files do, .nii, .mgh, pairs and DICOM do not."""
    return path.name.lower().endswith((".gz", ".mgz", ".zip"))


def refuse_bomb(unpacked: int, packed: int, where: Path) -> None:
    """FormatError for more bytes than any scan, or array of scans, packs into as few.

    Both counts are in bytes. Small files pass at any ratio; `where` names the file in the message.
    """
    if unpacked > max(_BOMB_BYTES, _BOMB_RATIO * packed):
        raise FormatError(
            f"unpacks to {unpacked // packed} times its size, as no scan does",
            where=where,
            remedy="unpack it with gunzip if you trust it",
        )


class ScanStream:
    """A scan file, opened once and read from front to back, so what is checked is what is used.

    With `packed` it is unpacked by gzip. `digest` takes in the bytes as they are on disk, as far as
    they have been read. Whatever is wrong with the file raises an InputError.
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
        """Read the next `count` bytes."""
        buffer = bytearray(count)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def fill(self, buffer: memoryview) -> None:
        """Read exactly as many bytes as the buffer holds; IntegrityError if there are fewer.

        `position` moves on by the length of the buffer. IntegrityError also for bytes that cannot
        be unpacked.
        """
        filled = 0
        with _damage_explained(self.path):
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
        """Refuse, before anything is allocated, a header that announces more than can be there.

        `end` is in unpacked bytes from the start of the file. IntegrityError if the file is too
        short for it, even at the best ratio of gzip; FormatError if no scan packs as well.
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
        """Read to the end: only there the gzip checksums stand. Refuse what is not padding.

        At most `limit` bytes may follow, and with `zeros` none but zeros.
        """
        rest = bytearray(_PIECE)
        found = 0
        with _damage_explained(self.path):
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
        """Refuse an empty file, and gzip or its absence where the name says otherwise."""
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
        # RFC 1952 demands that these bits are refused; Python's gzip does not look.
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
    """A file that computes the digest of what is read from it."""

    def __init__(self, file: BinaryIO, digest: _Digest) -> None:
        self._file = cast(io.FileIO, file)
        self._digest = digest

    def readable(self) -> bool:
        """It is, as gzip wants to know."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer as far as the file goes at once; how many bytes were read."""
        count = self._file.readinto(buffer) or 0
        with stage("checksum"):
            self._digest.update(memoryview(buffer)[:count])
        return count


def _open(path: Path) -> BinaryIO:
    """Open a scan for unbuffered reading; InputError where that is not possible."""
    try:
        return cast(BinaryIO, open_regular(path).detach())
    except FileNotFoundError:
        raise InputError("no such file", where=path, remedy="check the path") from None
    except OSError as error:
        raise InputError(
            f"cannot be opened ({error.strerror})",
            where=path,
            remedy="check its permissions",
        ) from error


@contextlib.contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turn what gzip, zlib and the disk may raise into one line about the file."""
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
