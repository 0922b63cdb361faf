"""Small disks in memory that only this process and its children see.

Root is not needed if the kernel lets users have mount namespaces.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_PRIVATE, _REMOUNT = (1 << 18) | (1 << 14), 1 << 5
_DETACH = 2
_C = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> bool:
    """Give this process a mount namespace of its own; return False if that is not allowed.

    The process must have only one thread.
    """
    user, group = os.getuid(), os.getgid()
    flags = _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USERS
    if not hasattr(_C, "unshare") or _C.unshare(flags):
        return False
    if user:
        # Become root of a user namespace, where mounting is allowed.
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(line)
    return not _C.mount(None, b"/", None, _PRIVATE, None)


def may_have_mounts() -> bool:
    """Return True if a process may have a mount namespace of its own."""
    pid = os.fork()
    if not pid:
        may = False
        try:
            may = own_mounts() and not _C.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)
        finally:
            os._exit(not may)
    return os.waitpid(pid, 0)[1] == 0


class Disk:
    """Disk in a new folder with room for this many bytes and files; 0 is practically no limit."""

    def __init__(self, folder: Path, size: int = 0, files: int = 0) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount(size, files, 0)

    def resize(self, size: int = 0, files: int = 0) -> None:
        self._mount(size, files, _REMOUNT)

    def leave_room(self, size: int) -> None:
        """Resize the disk so that this many bytes are free."""
        state = os.statvfs(self.folder)
        self.resize((state.f_blocks - state.f_bfree) * state.f_frsize + size)

    def leave_files(self, files: int) -> None:
        """Resize the disk so that this many files can be created, of any size."""
        state = os.statvfs(self.folder)
        self.resize(files=state.f_files - state.f_ffree + files)

    def remove(self) -> None:
        _C.umount2(bytes(self.folder), _DETACH)

    def _mount(self, size: int, files: int, flags: int) -> None:
        options = f"size={size or 1 << 28},nr_inodes={files or 1 << 20}".encode()
        if _C.mount(b"tmpfs", bytes(self.folder), b"tmpfs", flags, options):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self.folder))
