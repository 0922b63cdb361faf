"""Label maps with their ledger entries (the rows of their scans in a run's ledger), read once.

`Results.unfit` names the label maps that are no longer the result of their scan as it is now.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.corrections import correction_of
from trinat.pipelines.study.discovery import absolute, walk
from trinat.pipelines.study.entry import Entry, digest_of
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.study.ledger import (
    LEDGERS,
    LedgerContents,
    ledgers_in,
    read_ledgers,
    with_folds,
)
from trinat.segmentation.errors import IntegrityError
from trinat.segmentation.labels import Csf

# Number of folders above a file that are searched for the ledger of its result.
_FOLDERS_ABOVE = 4


class Results:
    """Label maps below a path, and the entries of the ledgers next to them.

    `place` is an output folder, a folder that has output folders in it, or a folder or file inside
    an output folder. In the last case only the entries with an output at `place` are used. Label
    maps of other programs have no entries. `folders` maps each output folder to its ledger entries.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ledgers = dict(_ledgers_of(place))
        self.folders: dict[Path, list[Entry]] = {}
        here = absolute(place)
        for folder, contents in self._ledgers.items():
            is_in_place = absolute(folder).is_relative_to(here)
            self.folders[folder] = [
                entry
                for entry in contents.entries.values()
                if is_in_place
                or any(
                    absolute(folder / name).is_relative_to(here)
                    for name in entry.outputs
                )
            ]

    @cached_property
    def entries(self) -> list[Entry]:
        """Ledger entries of all scans, over all output folders."""
        return [entry for entries in self.folders.values() for entry in entries]

    def find(self, *, parcels: bool = False, corrected: bool = True) -> list[ScanFile]:
        """Return the label maps as `find_files` does, each with its ledger entry if there is one.

        With `parcels`, maps of cortical parcels are preferred. Without `corrected`, label maps are
        returned as they were before correction by hand.
        """
        entries = {
            absolute(folder / name): entry
            for folder, of_folder in self.folders.items()
            for entry in of_folder
            for name in entry.outputs
        }
        return find_files(
            self.place, parcels=parcels, corrected=corrected, entries=entries
        )

    @property
    def models(self) -> set[str]:
        """Hashes of the models that made the results, as far as they are known."""
        done = [entry for entry in self.entries if entry.status == "done"]
        return {entry.model for entry in done if entry.model}

    @property
    def structures(self) -> set[str]:
        """Names of the structures that have a volume in any result."""
        return {name for entry in self.entries for name in entry.result.volumes_mm3}

    @property
    def parcels(self) -> set[str]:
        """Names of the parcels that have a volume in any result."""
        return {name for entry in self.entries for name in entry.result.parcels}

    @property
    def csf(self) -> Csf | None:
        """Meaning of CSF in the results: "intracranial" (all fluid) if any model means that.

        Otherwise "region", or None if no entry says it.
        """
        meanings = {entry.result.csf for entry in self.entries} - {None}
        if "intracranial" in meanings:
            return "intracranial"
        return next(iter(meanings), None)

    def unfit(self, files: Sequence[ScanFile]) -> dict[Path, str]:
        """Return the label maps that are no longer valid results of their scans, with the reasons.

        Keys are the paths of the results (`ScanFile.result`). A label map is unfit if its scan has
        changed since, or if a later run has failed or was not finished. A label map that the user
        has changed or added is never unfit. A corrected label map is unfit if its correction was
        made on another scan, or if `Correction.why_unfit` finds it wrong.
        """
        with ThreadPoolExecutor(cpu_count()) as pool:
            reasons = list(pool.map(self._why_unfit, files))
        return {
            file.result: reason
            for file, reason in zip(files, reasons, strict=True)
            if reason
        }

    def _why_unfit(self, file: ScanFile) -> str:
        """Return why a label map is no longer a valid result of its scan; "" if it is valid."""
        scan = ""
        for folder, contents in self._ledgers.items():
            name = os.path.relpath(file.result, folder)
            if name not in contents.writers:
                continue
            entry = contents.entries.get(contents.writers[name])
            scan = "" if entry is None else entry.input_sha256
            digest = str(digest_of(folder / name))
            if (name, digest) in contents.written:
                reason = _why_outdated(entry, name, digest, folder)
                if reason:
                    return reason
        if file.corrects is None:
            return ""
        correction = correction_of(file.result)
        return correction.why_unfit(scan) if correction else ""


def _ledgers_of(place: Path) -> Iterator[tuple[Path, LedgerContents]]:
    """Yield each output folder that belongs to a path, with the joint content of its ledgers.

    Ledgers that cannot be parsed are skipped, unless they are in the given folder itself.
    """
    for folder in _output_folders(place):
        try:
            contents = read_ledgers(ledgers_in(folder))
        except IntegrityError:
            if ledgers_in(place):
                raise
            continue  # a file of another program
        yield folder, contents


def _output_folders(place: Path) -> list[Path]:
    """Return the output folders that belong to a path: folders that contain a ledger.

    These are the folder itself with the folders of its folds; else all folders below it; else the
    nearest folder above it, up to four levels.
    """
    if ledgers_in(place):
        return with_folds(place)
    if place.is_dir():
        ledgers = walk(place, wanted=lambda path: path.match(LEDGERS))
        below = sorted({path.parent for path in ledgers})
        if below:
            return below
    for above in absolute(place).parents[:_FOLDERS_ABOVE]:
        if ledgers_in(above):
            return [above]
    return []


def _why_outdated(entry: Entry | None, name: str, digest: str, folder: Path) -> str:
    """Return why a file of a run is no longer the result of its scan; "" if it still is.

    `entry` is the case's ledger entry, None without a finished run; `name` is the path of the file
    below the output folder `folder`, and `digest` its present SHA-256.
    """
    not_of_last_run = (
        "is not of the last run that was finished: run trinat predict again"
    )
    if entry is None:
        return not_of_last_run
    if entry.status == "done" and entry.outputs.get(name) != digest:
        return not_of_last_run
    if entry.status != "done":
        return f"is an old result: its scan has failed since ({entry.reason})"
    now = entry.digest_of_scan(folder)
    if now is not None and now != entry.input_sha256:
        return "is an old result: its scan was changed since; run trinat predict again"
    return ""
