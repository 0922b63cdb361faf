"""Locks on output folders, also across machines that share a disk; and marks of ownership.

On one machine the kernel's file lock decides: it ends with its process, whatever the cause. Between
machines, where such locks often have no effect, the holder touches the file periodically.

A folder whose files a command replaces on every run carries a mark, so that no other folder is
overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from trinat.segmentation.errors import LockedError, OutputError
from trinat.segmentation.io.files import (
    not_written,
    read_bytes,
    remove_leftovers,
    write_whole,
)

_BEAT_S = 15.0
# Interval between attempts to acquire a lock.
_ASK_S = 0.2
# A holder on another machine that has not touched its lock for this long is considered dead.
_SILENT_S = 4 * _BEAT_S
_MARK = ".trinat"
_TEXT = "Files of this folder are replaced when the command runs again.\n"


@dataclass(frozen=True)
class _Holder:
    """Holder of a lock, as written in the lock file."""

    host: str
    pid: int
    # Containers may share a host name but have separate process numbers.
    namespace: str


@contextmanager
def run_lock(path: Path, *, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock `path` while the block runs.

    Raises LockedError, with the holder, if it is taken; a taken lock is retried for
    `patience_s`. Folders created for the lock are removed afterwards if they are empty.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    try:
        end = time.monotonic() + patience_s
        while True:
            try:
                descriptor = _acquire(path)
                break
            except LockedError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_ASK_S)
    except BaseException:
        _remove_empty(path.parent, *made)
        raise
    stop = threading.Event()
    beat = threading.Thread(
        target=_beat,
        args=(descriptor, stop),
        daemon=True,
        name="lock",
    )
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join()
        with contextlib.suppress(OSError):
            path.unlink()
            _remove_empty(path.parent, *made)
        os.close(descriptor)


def _remove_empty(*folders: Path) -> None:
    """Remove folders that are empty, so that a refused run leaves none behind."""
    with contextlib.suppress(OSError):
        for folder in dict.fromkeys(folders):
            folder.rmdir()


def _acquire(path: Path) -> int:
    """Acquire the lock and return its open file, with our name in it; or raise LockedError."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            # A run that just ended has removed the folder, which was empty.
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            what = "is a symbolic link"
            raise OutputError(what, where=path, remedy="remove it") from None
        try:
            if _take(path, descriptor):
                return descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)


def _take(path: Path, descriptor: int) -> bool:
    """Lock an open file and write our name into it; return False if it is no longer at its path."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _locked(path, _read_patiently(descriptor)) from None
    # The previous holder may have removed the file between our opening and locking it.
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not os.path.samestat(os.fstat(descriptor), found):
        return False
    _refuse_living(path, descriptor)
    name = json.dumps(asdict(_myself()))
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, name.encode(), 0)
        os.fsync(descriptor)
    except OSError as error:
        path.unlink()  # our file, still without a name
        raise not_written(path, error) from error
    return True


def refuse_held(path: Path) -> None:
    """Raise LockedError, with the holder, if `path` is locked now; the lock is not acquired.

    A file that does not exist is not locked. A lock whose holder on another machine is still alive
    is refused, too.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        _refuse_living(path, descriptor)
    except BlockingIOError:
        raise _locked(path, _read_patiently(descriptor)) from None
    finally:
        os.close(descriptor)


def _refuse_living(path: Path, descriptor: int) -> None:
    """Raise LockedError if a machine without our kernel's locks has touched the file."""
    holder = _read(descriptor)
    if holder is None:
        return
    me = _myself()
    if (holder.host, holder.namespace) == (me.host, me.namespace):
        return
    # Measure its age with the clock of the disk, which may differ from ours.
    probe = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        probe.touch()
        now = probe.stat().st_mtime
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    silent = now - os.fstat(descriptor).st_mtime
    if silent < 0:
        # Dated in the future: reset it, so that only a live holder touches it from now on.
        os.utime(descriptor)
    if silent < _SILENT_S:
        raise _locked(path, holder)


def _beat(descriptor: int, stop: threading.Event) -> None:
    """Touch the lock periodically until `stop` is set."""
    while not stop.wait(_BEAT_S):
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _read(descriptor: int) -> _Holder | None:
    """Return the holder written in the lock file; None if there is none or it is incomplete."""
    try:
        return _Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _read_patiently(descriptor: int) -> _Holder | None:
    """Read the holder of a lock, with retries: it may be about to write its name."""
    for _ in range(20):
        holder = _read(descriptor)
        if holder:
            return holder
        time.sleep(0.02)
    return None


def _myself() -> _Holder:
    """Return this process as a holder."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return _Holder(socket.gethostname(), os.getpid(), namespace)


def _locked(path: Path, holder: _Holder | None) -> LockedError:
    """Return the error for a lock that is taken, with its holder if known."""
    who = "another process"
    if holder:
        who = f"process {holder.pid} on {holder.host}"
    remedy = "wait for it, stop it, or choose another folder"
    return LockedError(
        f"{who} is already working in this folder", where=path.parent, remedy=remedy
    )


def keep_only(folder: Path, names: Iterable[str], written: Collection[str]) -> None:
    """Remove files and folders of these `names` from earlier runs, except for the `written`."""
    for name in set(names) - set(written):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def refuse_foreign(folder: Path, names: Iterable[str]) -> None:
    """Raise OutputError for a folder that has files of these names but no mark of a command.

    This prevents a command from replacing files of other origin. An empty or missing folder is
    accepted; a path that is not a folder is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError("is no folder", where=folder, remedy="give another --out")
    if not _is_marked(folder):
        refuse_existing(folder, [_MARK, *names])


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise OutputError for a folder that has files of these names, marked or not."""
    for name in names:
        if os.path.lexists(folder / name):
            what = "was not written by this command, so it is not replaced"
            raise OutputError(what, where=folder / name, remedy="give another --out")


def _is_marked(folder: Path) -> bool:
    mark = folder / _MARK
    return mark.is_file() and read_bytes(mark) == _TEXT.encode()


@contextmanager
def claimed(
    folder: Path,
    names: Iterable[str],
    *,
    within: Iterable[str] = (),
) -> Iterator[None]:
    """Lock a folder whose files this command replaces, and mark it before the first write.

    The mark lets a killed run be repeated; its unfinished files, also in the folders `within`,
    are removed. A folder without a mark that has files of these `names` is refused
    (OutputError).
    """
    refuse_foreign(folder, names)
    with run_lock(folder / ".lock"):
        remove_leftovers(folder, *(folder / name for name in within))
        if not _is_marked(folder):
            write_whole(folder / _MARK, _TEXT)
        yield
