"""The hidden folder in an output folder: locks of runs, and what is on its way into place."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trinat.pipelines.common.lock import refuse_held, run_lock
from trinat.pipelines.predict.request import Shard
from trinat.segmentation.errors import OutputError

# The name of the whole work, where a part has a name of its own.
_WHOLE = ".all"


@contextmanager
def held(folder: Path, part: str) -> Iterator[None]:
    """Hold an output folder for the whole work ("" as `part`), or for a part of it.

    `folder` is its work folder; a link in its place is an OutputError. LockedError where another
    run is at work that may not be at work beside this one: two runs that have scans in common would
    refuse each other's results as a user's files.
    """
    if folder.is_symlink():
        # What is in it is deleted, wherever that is.
        raise OutputError("is a link", where=folder, remedy="remove it")
    with contextlib.ExitStack() as stack:
        if not part:
            # `merge` holds the same one: it may be done beside parts, but not beside this.
            stack.enter_context(run_lock(folder / "lock"))
        own = part or _WHOLE
        stack.enter_context(run_lock(folder / f"lock{own}"))
        # Each has taken its own lock by now: of two that begin at once, one sees the other.
        for lock in sorted(folder.glob("lock.*")):
            other = lock.name.removeprefix("lock")
            if not _may_be_beside(own, other):
                refuse_held(lock)
        yield


def _may_be_beside(part: str, other: str) -> bool:
    """Whether two parts may be done at once.

    Shards of one division may, and jobs of participants, each with its own.
    """
    if part == other:
        return True
    if _WHOLE in (part, other):
        return False
    own_shard = Shard.of_part(part)
    other_shard = Shard.of_part(other)
    if own_shard is not None and other_shard is not None:
        return own_shard.of == other_shard.of
    return own_shard is None and other_shard is None


@contextmanager
def emptied(staging: Path) -> Iterator[None]:
    """Empty a folder for what is on its way into place, before the block and after it.

    Only a killed run leaves files there.
    """
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def make_tables_folder(staging: Path) -> Path:
    """Where the run's own files wait, on the disk of the output."""
    folder = staging / "tables"
    folder.mkdir(parents=True)
    return folder
