"""Folders whose files a command replaces on every run carry a mark, so that no other is taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.common.lock import run_lock
from segmentation.errors import OutputError
from segmentation.io.files import atomic_text, read_bytes, remove_leftovers

_MARK = ".trinat"
_TEXT = "Files of this folder are replaced when the command runs again.\n"


def refuse_foreign(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder that has files of these names and no mark."""
    if _is_marked(folder):
        return
    for name in (_MARK, *names):
        if os.path.lexists(folder / name):
            raise OutputError(
                "was not written by this command and would be replaced",
                where=folder / name,
                remedy="give another --out",
            )


def _is_marked(folder: Path) -> bool:
    mark = folder / _MARK
    return mark.is_file() and read_bytes(mark) == _TEXT.encode()


@contextmanager
def claimed(
    folder: Path, names: Iterable[str], *, within: Iterable[str] = (), is_known: bool = False
) -> Iterator[None]:
    """Hold a folder and mark it before its first file, so that a run that was killed can be done
    again; what that was writing, also in the folders `within`, goes."""
    if not is_known:
        refuse_foreign(folder, names)
    with run_lock(folder / ".lock"):
        remove_leftovers(folder, *(folder / name for name in within))
        if not _is_marked(folder):
            with atomic_text(folder / _MARK) as file:
                file.write(_TEXT)
        yield
