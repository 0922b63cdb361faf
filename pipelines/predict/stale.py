"""Which files of an output folder are no longer the result of their scan as it is now."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from trinat.pipelines.common.process import cpu_count
from trinat.pipelines.predict.entry import Entry, digest_of
from trinat.pipelines.predict.ledger import ledgers_in, read_ledgers, with_folds
from trinat.segmentation.errors import IntegrityError

# How many folders above a file are searched for the ledger of its result.
_FOLDERS_ABOVE = 4


def unfit_results(folder: Path, files: Collection[Path]) -> dict[Path, str]:
    """Which files are no result of the last attempt at their scan as it is now, and why.

    `files` are in an output folder, or `folder` is below one. What the user has changed or added
    is the user's own, and never unfit.
    """
    unfit = {}
    for place in with_folds(folder):
        unfit.update(_unfit_in(place, files))
    if ledgers_in(folder):
        return unfit
    for above in folder.absolute().parents[:_FOLDERS_ABOVE]:
        if ledgers_in(above):
            # There it may be a file of another program.
            with suppress(IntegrityError):
                unfit.update(_unfit_in(above, files))
            break
    return unfit


def _unfit_in(place: Path, files: Collection[Path]) -> dict[Path, str]:
    """As `unfit_results`, by the ledgers of one folder."""
    contents = read_ledgers(ledgers_in(place))
    ours: dict[str, Path] = {}
    for file in files:
        name = os.path.relpath(file, place)
        if name in contents.writers:
            ours[name] = file

    def judge(name: str) -> str:
        digest = str(digest_of(place / name))
        if (name, digest) not in contents.written:
            return ""
        entry = contents.entries.get(contents.writers[name])
        return _why_unfit(entry, name, digest, place)

    # Threads, since these are hashes of large files.
    with ThreadPoolExecutor(cpu_count()) as pool:
        reasons = list(pool.map(judge, ours))
    judged = zip(ours.values(), reasons, strict=True)
    return {file: reason for file, reason in judged if reason}


def _why_unfit(entry: Entry | None, name: str, digest: str, place: Path) -> str:
    """Why a file that a run has written is unfit; empty where it is the result of its scan."""
    not_of_last_run = (
        "is not of the last run that was finished: run trinat predict again"
    )
    if entry is None:
        return not_of_last_run
    if entry.status == "done" and entry.outputs.get(name) != digest:
        return not_of_last_run
    if entry.is_kept:
        return ""
    if entry.status != "done":
        return f"is an old result: its scan has failed since ({entry.reason})"
    now = entry.digest_of_scan(place)
    if now is not None and now != entry.input_sha256:
        return "is an old result: its scan was changed since; run trinat predict again"
    return ""
