"""Fetching a large file whole: under its own name it is complete and checked, or not there.

Checksums of files whose publishers state none are remembered beside them, for later runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.prepare.catalogue import RemoteFile
from trinat.pipelines.prepare.transfer import Policy, Progress, Transfer, verified
from trinat.segmentation.errors import DownloadError, LockedError
from trinat.segmentation.io.files import read_text, write_whole

CHECKSUMS = "checksums.json"
_USUAL = Policy()


@dataclass(frozen=True)
class Fetched:
    """A file that is there; `checksum` is "md5 ..." or "sha256 ...".

    `published` says whether the checksum had been known beforehand, `was_there` whether nothing
    had to be fetched.
    """

    path: Path
    checksum: str
    published: bool
    was_there: bool


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    policy: Policy = _USUAL,
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """Bring `remote` to `folder` under its own name, complete and checked, or raise.

    What has come of it stays in a hidden file, from which the next call goes on.
    `progress(done, total)` is called with bytes, and None for a total that is not known.

    LockedError where another process fetches it; DownloadError for all that is wrong with
    servers, the network, the disk, or a file that is there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / remote.name
    expected = _expected(remote, folder)
    if target.exists():
        return _found(target, remote, expected)
    # One name per source and folder, so that the next run finds it; the lock keeps it ours.
    addresses = "\n".join(remote.urls)
    digest = hashlib.sha256(addresses.encode()).hexdigest()
    key = digest[:12]
    part = folder / f".{remote.name}.{key}.part"
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another process is downloading this file"
            raise LockedError(what, where=folder) from None
        if target.exists():  # another process finished between the look and the lock
            part.unlink()
            return _found(target, remote, expected)
        transfer = Transfer(remote, part, stream, expected, policy, progress)
        checksum = transfer.from_any_mirror()
        os.fsync(stream.fileno())
        part.replace(target)
        transfer.validator.unlink(missing_ok=True)
    if remote.md5 is None:
        _record(folder, remote.name, checksum)
    return Fetched(target, checksum, remote.md5 is not None, was_there=False)


def _found(target: Path, remote: RemoteFile, expected: str | None) -> Fetched:
    """A file that was there already, once it is checked."""
    remedy = "move it away and run this again"
    checksum = verified(target, remote, expected, remedy=remedy)
    return Fetched(target, checksum, remote.md5 is not None, was_there=True)


def _expected(remote: RemoteFile, folder: Path) -> str | None:
    """The checksum by the catalogue, else by an earlier download; None where neither has one."""
    if remote.md5:
        return f"md5 {remote.md5}"
    return _recorded(folder).get(remote.name)


def _recorded(folder: Path) -> dict[str, str]:
    """The checksums of earlier downloads to a folder, by the names of the files."""
    path = folder / CHECKSUMS
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise DownloadError(
            "is no list of checksums", where=path, remedy="move it away"
        )
    return content


def _record(folder: Path, name: str, checksum: str) -> None:
    """Remember a checksum that no publisher states."""
    known = _recorded(folder)
    known[name] = checksum
    text = json.dumps(known, indent=2, sort_keys=True)
    write_whole(folder / CHECKSUMS, text + "\n")
