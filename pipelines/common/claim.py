"""Folders whose files a command replaces on every run carry a mark, so that no other is taken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.common.lock import run_lock
from segmentation.errors import OutputError
from segmentation.io.files import atomic_text, remove_leftovers

__all__ = ["claimed", "refuse_foreign"]

_MARK = ".trinat"


def refuse_foreign(folder: Path, names: Iterable[str], *, or_mark: str = _MARK) -> None:
    """Refuse a folder that has files of these names and no mark."""
    if (folder / _MARK).is_file() or (folder / or_mark).is_file():
        return
    for name in names:
        if os.path.lexists(folder / name):
            raise OutputError(
                "was not written by this command and would be replaced",
                where=folder / name,
                remedy="give another --out",
            )


@contextmanager
def claimed(
    folder: Path, names: Iterable[str], *, within: Iterable[str] = (), or_mark: str = _MARK
) -> Iterator[None]:
    """Hold a folder and mark it before its first file, so that a run that was killed can be done
    again; what that was writing, also in the folders `within`, goes."""
    refuse_foreign(folder, names, or_mark=or_mark)
    with run_lock(folder / ".lock"):
        remove_leftovers(folder, *(folder / name for name in within))
        if not (folder / _MARK).is_file():
            with atomic_text(folder / _MARK) as file:
                file.write("Files of this folder are replaced when the command runs again.\n")
        yield
