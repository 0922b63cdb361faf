"""Locks on output folders, also across machines that share a disk; and marks of ownership.

On one machine the kernel's file lock decides: it is released when its process ends, for whatever
reason. Between machines, where such locks often have no effect, the holder touches the file
periodically.

If a command replaces the files of its output folder on every run, it marks the folder with a file,
so that it never overwrites another folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
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
# Errors of disks without file locks: Lustre, NFS without a lock service, some others.
_NO_FILE_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_MARK = ".trinat"
_TEXT = "Files of this folder are replaced when the command runs again.\n"


@dataclass(frozen=True)
class _Holder:
    """Process that holds a lock, as written in the lock file."""

    host: str
    pid: int
    # Machines that were copied from one image share a host name, but not the id of their boot.
    boot: str
    # Containers may share a host name but have separate process numbers.
    namespace: str

    @property
    def kernel(self) -> tuple[str, str, str]:
        """Key of the processes that the kernel's locks reach."""
        return self.host, self.boot, self.namespace


@contextmanager
def run_lock(path: Path, *, patience_s: float = 0.0) -> Iterator[Callable[[], None]]:
    """Hold the lock file `path` while the block runs.

    If another process holds it, this tries again for `patience_s` seconds, then raises LockedError,
    which names the holder. Folders that were created for the lock are removed afterwards if they
    are empty. If this process stood still for so long that another one took the lock, the block is
    interrupted as by Ctrl-C, and LockedError is raised at its end. Yields a function that raises
    it at once.
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
    # Do not compare with `_myself()` later: the name of a host may change.
    own = _read_holder(descriptor)
    stop = threading.Event()
    beat = threading.Thread(
        target=_touch_periodically,
        args=(descriptor, own, stop),
        daemon=True,
        name="lock",
    )
    beat.start()

    def refuse_lost() -> None:
        other = _read_other_holder(descriptor, own)
        if other is not None:
            raise _locked(path, other)

    try:
        yield refuse_lost
    finally:
        stop.set()
        beat.join()
        try:
            refuse_lost()
            with contextlib.suppress(OSError):
                path.unlink()
                _remove_empty(path.parent, *made)
        finally:
            os.close(descriptor)


def _remove_empty(*folders: Path) -> None:
    """Remove folders if they are empty; stop at the first that is not."""
    with contextlib.suppress(OSError):
        for folder in dict.fromkeys(folders):
            folder.rmdir()


def _acquire(path: Path) -> int:
    """Lock the file `path`, creating it if it is missing; return its file descriptor.

    LockedError is raised if another process holds the lock, OutputError if the path is a symbolic
    link.
    """
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
            if _lock_and_sign(path, descriptor):
                return descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_and_sign(path: Path, descriptor: int) -> bool:
    """Lock an open file and write this process into it as the holder.

    Returns False if the file is no longer at `path`, because the previous holder has removed it.
    Raises LockedError if another process holds it.
    """
    _lock_file(path, descriptor, fcntl.LOCK_EX)
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


def _lock_file(path: Path, descriptor: int, kind: int) -> None:
    """Lock an open file, exclusively (LOCK_EX) or shared (LOCK_SH).

    LockedError is raised if another process holds it, OutputError if its disk has no file locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _locked(path, _read_patiently(descriptor)) from None
    except OSError as error:
        if error.errno not in _NO_FILE_LOCKS:
            raise
        if not os.fstat(descriptor).st_size:
            path.unlink(missing_ok=True)  # our file, still without a name
        raise OutputError(
            f"its disk has no file locks ({error.strerror})",
            where=path.parent,
            remedy="mount the disk with locks (Lustre: -o flock), or choose a folder elsewhere",
        ) from error


def refuse_held(path: Path) -> None:
    """Raise LockedError, which names the holder, if `path` is locked now; do not acquire it.

    A file that does not exist is not locked. A lock counts as held, too, if its holder on another
    machine is still alive.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        _lock_file(path, descriptor, fcntl.LOCK_SH)
        _refuse_living(path, descriptor)
    finally:
        os.close(descriptor)


def _refuse_living(path: Path, descriptor: int) -> None:
    """Raise LockedError if a process on another machine holds a lock and is still alive.

    It is if it has touched the lock file within the last minute. `descriptor` is that of the open
    lock file `path`. The kernel's locks do not reach other machines, nor some containers.
    """
    holder = _read_holder(descriptor)
    if holder is None:
        return
    me = _myself()
    if holder.kernel == me.kernel:
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
        # The time is in the future: set it to now, so that it shows whether the holder is alive.
        os.utime(descriptor)
    if silent < _SILENT_S:
        raise _locked(path, holder)


def _touch_periodically(
    descriptor: int, own: _Holder | None, stop: threading.Event
) -> None:
    """Set the time of the lock file to now every 15 seconds, until `stop` is set.

    If another process than `own` has taken the lock, interrupt the main thread instead.
    """
    while not stop.wait(_BEAT_S):
        if _read_other_holder(descriptor, own) is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return
        with contextlib.suppress(OSError):
            os.utime(descriptor)


def _read_other_holder(descriptor: int, own: _Holder | None) -> _Holder | None:
    """Return the process that has taken over an open lock file from `own`; None if none has."""
    with contextlib.suppress(OSError):
        holder = _read_holder(descriptor)
        if holder != own:
            return holder
    return None


def _read_holder(descriptor: int) -> _Holder | None:
    """Return the process that is written in the lock file as its holder.

    `descriptor` is that of the open lock file. None if the file has no holder or an incomplete one.
    """
    try:
        return _Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None


def _read_patiently(descriptor: int) -> _Holder | None:
    """Return the holder written in the lock file, waiting 0.4 s if it is not yet there."""
    for _ in range(20):
        holder = _read_holder(descriptor)
        if holder:
            return holder
        time.sleep(0.02)
    return None


def _myself() -> _Holder:
    """Return this process as the holder of a lock."""
    boot = namespace = ""
    # Only Linux has these files.
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return _Holder(socket.gethostname(), os.getpid(), boot, namespace)


def _locked(path: Path, holder: _Holder | None) -> LockedError:
    """Return the error for the folder of a lock file `path` that another process holds.

    `holder` is that process; None if unknown.
    """
    who = "another process"
    if holder:
        who = f"process {holder.pid} on {holder.host}"
    remedy = "wait for it, stop it, or choose another folder"
    return LockedError(
        f"{who} is already working in this folder", where=path.parent, remedy=remedy
    )


def keep_only(folder: Path, names: Iterable[str], written: Collection[str]) -> None:
    """Remove what earlier runs have written to a folder and this run has not.

    `names` are all files and folders that a run may write to `folder`, `written` those that this
    run has written.
    """
    for name in set(names) - set(written):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def refuse_foreign(folder: Path, names: Iterable[str]) -> None:
    """Raise OutputError if a folder has any files of these names but was not made by a command.

    Commands mark their folders by the file .trinat. This prevents a command from replacing files of
    other origin. An empty or missing folder is accepted; a path that is not a folder is refused.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError("is no folder", where=folder, remedy="give another --out")
    if not _is_marked(folder):
        refuse_existing(folder, [_MARK, *names])


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise OutputError if a folder has any files of these names, whatever their origin."""
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

    `names` are the files that the command writes. OutputError is raised if the folder has any of
    them but no mark. Because of the mark, a run that was killed can be repeated; its unfinished
    files, in the folder and in its subfolders `within`, are removed.
    """
    refuse_foreign(folder, names)
    with run_lock(folder / ".lock"):
        remove_leftovers(folder, *(folder / name for name in within))
        if not _is_marked(folder):
            write_whole(folder / _MARK, _TEXT)
        yield
