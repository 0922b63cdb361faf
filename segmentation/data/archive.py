"""Unpacking a downloaded archive: our own checks on every member, on top of tarfile's."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from segmentation.errors import DatasetError, IntegrityError
from segmentation.io.files import open_regular

__all__ = ["ArchiveLimits", "extract"]

_DRAIN_BYTES = 1 << 20


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may hold at most, as declared before it is opened."""

    members: int
    bytes: int


def extract(
    archive: Path,
    destination: Path,
    *,
    limits: ArchiveLimits,
    wanted: Callable[[str], bool] = lambda name: True,
    received: Callable[[Path], None] = lambda path: None,
) -> list[Path]:
    """Write the wanted files of a tar archive under `destination`, one at a time, each atomically.

    Every member is checked, wanted or not: one bad name or type refuses the whole archive.
    `received` is told of each file once it is there, and may replace it by another.
    """
    destination.mkdir(parents=True, exist_ok=True)
    root = destination.resolve()
    written: list[Path] = []
    # Inside the destination, so that the final rename stays on one file system.
    scratch = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root))
    try:
        with _opened(archive) as tar:
            for member in _checked_members(tar, archive, limits):
                if member.isdir() or not wanted(member.name):
                    continue
                target = root / PurePosixPath(member.name)
                if target in written:
                    raise DatasetError(f"holds {member.name} twice", where=archive)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.parent.resolve().is_relative_to(root):
                    raise DatasetError(
                        f"{member.name} would be written through a link out of the folder",
                        where=archive,
                        remedy=f"remove the link under {destination}",
                    )
                tar.extract(member, scratch, filter="data")
                (scratch / PurePosixPath(member.name)).replace(target)
                written.append(target)
                received(target)
    except Exception:
        # What is wrong may show itself only at the end; then no file is to be trusted.
        for path in written:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return written


def _checked_members(
    tar: tarfile.TarFile, archive: Path, limits: ArchiveLimits
) -> Iterator[tarfile.TarInfo]:
    """The members in order; raises before it yields one that must not be written."""
    total_bytes = 0
    for count, member in enumerate(tar, start=1):
        total_bytes += member.size
        if count > limits.members:
            raise _refused(archive, f"holds more than the {limits.members} members declared")
        if total_bytes > limits.bytes:
            raise _refused(archive, f"holds more than the {limits.bytes} bytes declared")
        name = member.name
        if name.startswith(("/", "\\")) or PurePosixPath(name).is_absolute():
            raise _refused(archive, f"member {name!r} has an absolute name")
        if ".." in PurePosixPath(name.replace("\\", "/")).parts:
            raise _refused(archive, f"member {name!r} climbs out of the folder")
        if member.issym() or member.islnk():
            raise _refused(archive, f"member {name!r} is a link")
        if not (member.isreg() or member.isdir()):
            raise _refused(archive, f"member {name!r} is neither a file nor a folder")
        yield member


def _refused(archive: Path, what: str) -> DatasetError:
    return DatasetError(what, where=archive, remedy="do not unpack it; download it again")


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar stream whose end is reached, so that gzip's checksum has been compared."""
    try:
        with ExitStack() as stack:
            stream: IO[bytes] | gzip.GzipFile = stack.enter_context(open_regular(archive))
            if archive.name.endswith("gz"):
                # tarfile's own "r|gz" never looks at the checksum behind the last member.
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream, mode="rb"))
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                yield tar
            while stream.read(_DRAIN_BYTES):
                pass
    except (tarfile.ReadError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise IntegrityError(
            f"the archive is damaged ({error})", where=archive, remedy="download it again"
        ) from error
    except tarfile.FilterError as error:
        raise _refused(archive, str(error)) from error
