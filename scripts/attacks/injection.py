"""Fault injection: writes, syncs and renames that fail, or kill the process, at a chosen call."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

KINDS = ("write", "fsync", "rename", "mkdir")
FAILURES = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EACCES, errno.EROFS)


class Calls:
    """Counts this process's calls below a folder, and makes call `number` of a kind (from 1) fail.

    `failure` is an errno, or 0 to kill the process there; with `lasting` all later calls of
    that kind fail too, as on a full disk. The counts are written to `report` when the process
    ends.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "",
        number: int = 0,
        failure: int = 0,
        *,
        lasting: bool = False,
        report: Path | None = None,
    ) -> None:
        self.folder = os.path.realpath(folder)
        self.kind, self.number, self.failure, self.lasting = (
            kind,
            number,
            failure,
            lasting,
        )
        self.report = report
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        what = errno.errorcode[self.failure] if self.failure else "a kill"
        return (
            f"{what} at {self.kind} {self.number}{' and after' if self.lasting else ''}"
        )

    def install(self) -> None:
        """Patch this process for good."""
        sync, replace, rename, mkdir, end = (
            os.fsync,
            os.replace,
            os.rename,
            os.mkdir,
            os._exit,
        )
        opened, calls = io.open, self

        class Raw(io.FileIO):
            def write(self, data: Any, /) -> int:
                calls.note("write", self.name)
                return super().write(data) or 0

        def open_(
            file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any
        ) -> Any:
            path = file if isinstance(file, int) else os.fspath(file)
            if not set(mode) & set("wax+") or not calls.concerns(path):
                return opened(file, mode, buffering, *rest, **named)
            raw = Raw(
                file, mode.replace("b", "").replace("t", ""), named.get("closefd", True)
            )
            if buffering == 0:
                return raw
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return whole
            text = {
                k: v for k, v in named.items() if k in ("encoding", "errors", "newline")
            }
            return io.TextIOWrapper(whole, **text)

        def fsync(descriptor: Any) -> None:
            calls.note("fsync", descriptor)
            sync(descriptor)

        def renaming(do: Any) -> Any:
            def change(source: Any, target: Any, **named: Any) -> None:
                calls.note("rename", target)
                do(source, target, **named)

            return change

        def making(path: Any, *rest: Any, **named: Any) -> None:
            calls.note("mkdir", path)
            mkdir(path, *rest, **named)

        def leave(status: int) -> None:
            if calls.report:
                calls.report.write_text(json.dumps(calls.counts))
            end(status)

        io.open = builtins.open = open_
        os.fsync, os.mkdir, os._exit = fsync, making, leave  # type: ignore[assignment]
        os.replace, os.rename = renaming(replace), renaming(rename)

    def concerns(self, place: Any) -> bool:
        try:
            is_open = isinstance(place, int)
            path = Path(f"/proc/self/fd/{place}").readlink() if is_open else place
        except OSError:
            return False
        return os.path.realpath(os.fsdecode(path)).startswith(self.folder)

    def note(self, kind: str, place: Any) -> None:
        if not self.concerns(place):
            return
        self.counts[kind] += 1
        now = self.counts[kind]
        if (
            kind != self.kind
            or now < self.number
            or (now > self.number and not self.lasting)
        ):
            return
        if not self.failure:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self.failure, os.strerror(self.failure), None)
