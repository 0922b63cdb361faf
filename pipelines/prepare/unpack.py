"""Unpacking of a dataset's archives: every member is checked, and the needed ones are written.

Our own checks come on top of those of tarfile.
"""

from __future__ import annotations

import gzip
import io
import logging
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from natsort import natsorted

from trinat.pipelines.prepare.catalogue import ArchiveLimits, archives_of
from trinat.segmentation.data.sources.base import Source
from trinat.segmentation.data.sources.registry import SOURCES
from trinat.segmentation.errors import DatasetError, IntegrityError, TrinatError
from trinat.segmentation.io.files import open_regular
from trinat.segmentation.io.volume import Volume

_log = logging.getLogger(__name__)

# Between the contents of two files, a tar archive may have long names and attributes. tarfile holds
# them in memory, and if a record states a wrong length, several times: up to the square of their
# size.
_MOST_HEADER_BYTES = 32 << 10
_MOST_PADDING_BYTES = 16 << 20
_DRAIN_BYTES = 1 << 20


def unpack_archives(name: str, root: Path) -> None:
    """Unpack the needed members of each archive in `root` into a folder beside the archive.

    `name` is the dataset. An archive whose folder exists is skipped, and so are files that are no
    archives of the catalogue. DatasetError for an archive without a needed member.
    """
    source = SOURCES.get(name)
    limits = archives_of(name)
    if source is None or not root.is_dir():
        return
    for archive in natsorted(root.iterdir()):
        if archive.name not in limits:
            continue
        folder = archive.with_name(archive.name.partition(".tar")[0])
        if folder.exists():
            continue
        _log.info("unpacking %s", archive.name)
        extract(
            archive,
            folder,
            limits=limits[archive.name],
            wanted=source.wanted_member,
            received=partial(_convert_analyze, source=source),
        )


def _convert_analyze(path: Path, source: Source) -> None:
    """Replace an Analyze pair by a NIfTI file with its axes, once both halves are unpacked.

    `path` is one of the halves. A pair that cannot be read stays; the error is reported when its
    subject is prepared.
    """
    axes = source.member_axes(path)
    header = path.with_suffix(".hdr")
    voxels = path.with_suffix(".img")
    if axes is None or not (header.is_file() and voxels.is_file()):
        return
    is_labels = path.parent.name == "FSL_SEG"
    try:
        volume = Volume.read(header, axes=axes, labels=is_labels)
    except TrinatError:
        return
    volume.write(header.with_suffix(".nii.gz"), labels=is_labels)
    header.unlink()
    voxels.unlink()


def extract(
    archive: Path,
    folder: Path,
    *,
    limits: ArchiveLimits,
    wanted: Callable[[str], bool] = lambda name: True,
    received: Callable[[Path], None] = lambda path: None,
) -> None:
    """Unpack the wanted files of a tar archive to a new folder, which appears whole or not at all.

    `wanted` is called with the name of each member. Every member is checked, wanted or not: one
    unsafe name or type refuses the whole archive. `received` is called with the path of each file
    once it is there, and may replace the file by another. DatasetError for an archive without a
    wanted file.
    """
    # The files are known to be good only after the archive was read to its end and its checksum.
    unpacked = folder.with_name(f".{folder.name}.unpacking")
    # A killed process may have left it.
    shutil.rmtree(unpacked, ignore_errors=True)
    names: set[PurePosixPath] = set()
    try:
        unpacked.mkdir(parents=True)
        with _open_tar(archive) as (tar, stream):
            for member in _checked_members(tar, stream, archive, limits):
                if member.isdir() or not wanted(member.name):
                    continue
                name = PurePosixPath(member.name)
                if name in names:
                    raise DatasetError(f"holds {name} twice", where=archive)
                names.add(name)
                tar.extract(member, unpacked, filter="data")
                received(unpacked / name)
        if not names:
            raise DatasetError("holds nothing that this source uses", where=archive)
        unpacked.rename(folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


class _Tar(tarfile.TarFile):
    """Tar archive that holds one member in memory at a time.

    Any invalid header raises a TarError.
    """

    def next(self) -> tarfile.TarInfo | None:
        """Return the next member; None at the end."""
        # Forget the members before it and the attributes that the archive sets for all members:
        # tarfile keeps both, and a hostile archive could fill the memory with them.
        self.members: list[tarfile.TarInfo] = []
        self.pax_headers = {}
        try:
            return super().next()
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise tarfile.ReadError("has an invalid tar header") from error


class _Unpacked(io.BufferedIOBase):
    """Stream of the unpacked bytes of a tar archive, which raises if it is read beyond `end`.

    `end` is a position in bytes, the limit for the next read. It moves with the files in the
    archive: to the end of the current file, plus some room for the next header. So a hostile
    archive cannot unpack to endless bytes between its files.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, archive: Path) -> None:
        self._stream = stream
        self._archive = archive
        self._position = 0
        self.end = _MOST_HEADER_BYTES

    def read(self, count: int | None = -1, /) -> bytes:
        """Return the next `count` bytes, or all for None or a negative number.

        DatasetError if the stream is read beyond `end`.
        """
        if count is None:
            count = -1
        block = self._stream.read(count)
        self._position += len(block)
        if self._position > self.end:
            raise _unsafe_archive(self._archive, "has too many bytes between its files")
        return block


def _checked_members(
    tar: tarfile.TarFile,
    stream: _Unpacked,
    archive: Path,
    limits: ArchiveLimits,
) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar archive in order; raise DatasetError at the first unsafe one.

    A member is unsafe if its name leads out of the folder, if it is no file or folder, or if the
    archive exceeds its `limits` with it. `stream` has the bytes that `tar` reads; its limit is
    moved from member to member.
    """
    count = 0
    content_bytes = 0
    while True:
        member = tar.next()
        if member is None:
            return
        # `offset` is where the next header starts. A sparse file is larger than its content in the
        # archive.
        stream.end = tar.offset + _MOST_HEADER_BYTES
        count += 1
        content_bytes += member.size
        if count > limits.members:
            raise _unsafe_archive(
                archive, f"holds more than the {limits.members} members declared"
            )
        if max(content_bytes, tar.offset) > limits.bytes:
            raise _unsafe_archive(
                archive, f"holds more than the {limits.bytes} bytes declared"
            )
        problem = _problem_of(member)
        if problem:
            raise _unsafe_archive(archive, f"member {member.name!r} {problem}")
        yield member


def _problem_of(member: tarfile.TarInfo) -> str:
    """Return the reason to refuse a member, or "" if it is safe."""
    name = member.name
    if "\0" in name:
        return "has no possible name"
    if name.startswith(("/", "\\")) or PurePosixPath(name).is_absolute():
        return "has an absolute name"
    if ".." in PurePosixPath(name.replace("\\", "/")).parts:
        return "leads out of the folder"
    if member.issym() or member.islnk():
        return "is a link"
    if not (member.isreg() or member.isdir()):
        return "is neither a file nor a folder"
    return ""


def _unsafe_archive(archive: Path, what: str) -> DatasetError:
    """Return the error for an archive that must not be unpacked."""
    return DatasetError(
        what, where=archive, remedy="do not unpack it; download it again"
    )


@contextmanager
def _open_tar(archive: Path) -> Iterator[tuple[tarfile.TarFile, _Unpacked]]:
    """Open a tar archive, with or without gzip, to read its members one after the other.

    Yields the archive, and the stream of unpacked bytes below it, on which the caller sets the
    position beyond which nothing may be read. At the end the stream is read completely, so that
    gzip compares its checksum. IntegrityError for a damaged archive, DatasetError for one that is
    not safe.
    """
    try:
        with ExitStack() as stack:
            stream: IO[bytes] | gzip.GzipFile = stack.enter_context(
                open_regular(archive)
            )
            if archive.name.endswith("gz"):
                # tarfile's own "r|gz" never looks at the checksum behind the last member.
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb"))
            unpacked = _Unpacked(stream, archive)
            with _Tar.open(fileobj=unpacked, mode="r|") as tar:
                yield tar, unpacked
            unpacked.end += _MOST_PADDING_BYTES
            while unpacked.read(_DRAIN_BYTES):
                pass
    except tarfile.FilterError as error:
        raise _unsafe_archive(archive, str(error)) from error
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise IntegrityError(
            f"the archive is damaged ({error})",
            where=archive,
            remedy="download it again",
        ) from error
