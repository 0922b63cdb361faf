"""Ledger of a run: one line of JSON for each input, appended when its outcome is known.

The last line of a case is the valid one. Across ledgers it is the last attempt: each run reads all
ledgers of its folder and continues the numbering of attempts, so no clock is needed. A line that is
incomplete because of a power cut is ignored: its case counts as not done, and is done again.

Before files are moved into place, a line lists them with their hashes. A file in the output folder
whose present hash is in no line belongs to the user: it is replaced only with `overwrite`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from io import FileIO
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import TypeAdapter

from trinat.pipelines.study.discovery import suffix_of_results
from trinat.pipelines.study.entry import Entry, digest_of, digests_of
from trinat.pipelines.study.naming import FOLD, LEDGERS
from trinat.segmentation.errors import IntegrityError, OutputError
from trinat.segmentation.io.files import (
    append_whole,
    is_broken_link,
    not_written,
    open_regular,
    open_to_append,
    sha256_of,
)

# Fields of an entry that exist only during the run.
_NOT_IN_FILE = ("staged", "spent", "no_room")


class Ledger:
    """File to which a run appends the outcome of each input; it also moves outputs into place.

    `entries` maps each case to its valid entry, and is updated by `add`. Each entry is on the disk
    before `add` returns. `contents` is the content of the ledgers of earlier runs.
    """

    def __init__(
        self,
        path: Path,
        contents: LedgerContents | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        """Create the ledger of a run; the file `path` is opened with the first entry.

        With `overwrite`, outputs may replace files that belong to the user.
        """
        self.contents = LedgerContents() if contents is None else contents
        self.entries = self.contents.entries
        self._written = self.contents.written
        self._overwrite = overwrite
        self._path = path
        self._folder = path.parent
        self._file: FileIO | None = None

    @classmethod
    def resume(
        cls,
        path: Path,
        own_files: Iterable[str],
        cases: Collection[str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Self:
        """Return the ledger of a run, with the results of all earlier runs in its folder.

        `path` is the ledger file. `own_files` are the paths of the tables and other files that the
        run writes for the whole folder: OutputError is raised if one of them belongs to the user.
        With `cases` only the entries of these cases and of refused inputs are read.
        """
        # Hash before reading the ledgers: a parallel job lists its files before it writes them.
        current = digests_of(path.parent, own_files)
        contents = read_ledgers(ledgers_in(path.parent), cases)
        ledger = cls(path, contents, overwrite=overwrite)
        ledger.refuse(current)
        return ledger

    def add(self, entry: Entry) -> None:
        """Append an entry to the file; an entry without an attempt number gets the next number.

        The line is on the disk when this returns; after a failure the file is unchanged. The file
        is opened with the first entry and stays open until the ledger is closed.
        """
        if entry.status != "writing" and not entry.attempt:
            before = self.entries.get(entry.case)
            attempt = 1 if before is None else before.attempt + 1
            entry = replace(entry, attempt=attempt)
        if self._file is None:
            if is_broken_link(self._path):
                raise OutputError(
                    "is a broken symbolic link", where=self._path, remedy="remove it"
                )
            file = open_to_append(self._path)
            # End an incomplete last line, so that the new entry starts on a line of its own.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    append_whole(file, b"\n", self._path)
            self._file = file
        content = {
            each.name: getattr(entry, each.name)
            for each in fields(entry)
            if each.name not in _NOT_IN_FILE
        }
        content["result"] = entry.result.as_json()
        line = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        append_whole(self._file, line.encode() + b"\n", self._path)
        if entry.status != "writing":
            self.entries[entry.case] = entry

    def refuse(self, current: Mapping[str, str | None]) -> None:
        """Raise OutputError if an existing file is in no ledger, and so may be the user's.

        `current` maps the paths of existing files to their present SHA-256, None if a path is not a
        regular file. With `overwrite` no file is refused.
        """
        if self._overwrite:
            return
        ours = {name for name, _ in self._written}
        for name, digest in current.items():
            if (name, digest) in self._written:
                continue
            what = f"{name} is there, but in no ledger ({LEDGERS}) of this folder"
            remedy = (
                "move it away, or give --overwrite; if you joined two folders, "
                "restore the ledger of each"
            )
            if name in ours:
                what = f"{name} was changed since trinat wrote it"
                remedy = "move it away, or give --overwrite"
            raise OutputError(what, where=self._folder, remedy=remedy)

    def move_in(self, staged: Path, entry: Entry | None = None) -> None:
        """Move all files below the folder `staged` to the output folder; list them in the ledger.

        They are the outputs of `entry`, or files of the whole run if it is None. An existing file
        with the same bytes stays. A file that a run has written is replaced, and with `overwrite`
        any other file, too. The ledger lists the files before the first of them appears. If moving
        fails, all outputs of the entry that were moved are deleted, and OutputError is raised.
        """
        known: Mapping[str, str] = {} if entry is None else entry.outputs
        sources: dict[str, Path] = {}
        digests: dict[str, str] = {}
        for path in sorted(staged.rglob("*")):
            if path.is_file():
                name = path.relative_to(staged).as_posix()
                sources[name] = path
                digests[name] = known[name] if name in known else sha256_of(path)
        current = digests_of(self._folder, digests)
        changed = {
            name: digest for name, digest in current.items() if digest != digests[name]
        }
        self.refuse(changed)
        self._announce(digests, entry)
        placed: list[Path] = []
        try:
            for name in sorted(sources):
                if name in current and name not in changed:
                    continue
                final = self._folder / name
                final.parent.mkdir(parents=True, exist_ok=True)
                sources[name].replace(final)
                placed.append(final)
        except OSError as error:
            # Remove the partial result of a case.
            if entry is not None:
                for whole in placed:
                    whole.unlink(missing_ok=True)
            raise not_written(final, error) from error
        shutil.rmtree(staged)

    def _announce(self, digests: Mapping[str, str], entry: Entry | None) -> None:
        """Add a line to the ledger with the files that are about to be written.

        `digests` maps their paths to their SHA-256; `entry` is the outcome of the case that they
        belong to, None for files of the whole folder. The latter get a line without a case: jobs
        that work on other cases read that line, but not the lines of this job's cases. Files that
        the ledger lists already get no line.
        """
        of_case: dict[str, str] = {}
        of_folder: dict[str, str] = {}
        for name in sorted(digests):
            if entry is not None and name in entry.outputs:
                of_case[name] = digests[name]
            else:
                of_folder[name] = digests[name]
        lines = []
        if entry is not None:
            lines.append(
                Entry(entry.case, "writing", model=entry.model, outputs=of_case)
            )
        lines.append(Entry("", "writing", outputs=of_folder))
        for line in lines:
            if not self._written.issuperset(line.outputs.items()):
                self.add(line)
                self._written.update(line.outputs.items())

    def remove(self, name: str) -> None:
        """Delete a file of the output folder, if it is still as a run has written it.

        A file that is reached through a link is not in the folder, and stays.
        """
        path = self._folder / name
        home = self._folder.resolve()
        is_own = not path.is_symlink() and path.parent.resolve().is_relative_to(home)
        if is_own and (name, digest_of(path)) in self._written:
            path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def ledgers_in(folder: Path) -> list[Path]:
    """Return the ledgers of all runs and shards in an output folder."""
    return sorted(folder.glob(LEDGERS))


def with_folds(folder: Path) -> list[Path]:
    """Return the output folder, followed by the folders of the folds of a cross-validation."""
    folds = sorted(folder.glob(FOLD.format("*")))
    return [folder, *folds]


@dataclass
class LedgerContents:
    """Joint content of several ledgers.

    `entries` maps each case to its valid entry: the last one in a ledger, and across ledgers the
    one that `_is_later` chooses, in general that with the highest attempt number. `written` has a
    pair (path, SHA-256) for each file that the ledgers list. `writers` maps the path of each file
    to its case. If only the entries of some cases are read, `other_suffixes` has the BIDS suffixes
    of the scans of the other cases, such as T1w; None for scans outside of BIDS.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    written: set[tuple[str, str]] = field(default_factory=set)
    writers: dict[str, str] = field(default_factory=dict)
    other_suffixes: set[str | None] = field(default_factory=set)

    def read(self, path: Path, cases: Collection[str] | None = None) -> None:
        """Add the content of the ledger `path`.

        With `cases`, only the entries of these cases and of refused inputs are added. The entries
        of 100,000 cases take a gigabyte, so callers should request only the cases that they need.
        IntegrityError is raised if a line is not a valid entry.
        """
        last: dict[str, Entry] = {}
        for entry in _lines_of(path):
            if cases is not None and entry.case not in cases and not entry.is_refusal:
                self.other_suffixes.add(suffix_of_results(entry.outputs))
                continue
            self.written.update(entry.outputs.items())
            if entry.case:
                for name in entry.outputs:
                    self.writers[name] = entry.case
            if entry.status != "writing":
                last[entry.case] = entry
        for case, entry in last.items():
            known = self.entries.get(case)
            if known is None or _is_later(entry, known, path.parent):
                self.entries[case] = entry


def read_ledgers(
    paths: Iterable[Path], cases: Collection[str] | None = None
) -> LedgerContents:
    """Return the joint content of ledgers: entries of cases, and hashes of the files written.

    With `cases`, it has the entries only of these cases and of refused inputs.
    """
    contents = LedgerContents()
    for path in paths:
        contents.read(path, cases)
    return contents


def read_entries(paths: Iterable[Path]) -> dict[str, Entry]:
    """Return the valid ledger entry of each case: its outcome in the last attempt."""
    return read_ledgers(paths).entries


_ENTRY = TypeAdapter(Entry)


def _lines_of(path: Path) -> Iterator[Entry]:
    """Yield the entries of a ledger in the order of its lines.

    Lines that are incomplete because writing was interrupted are skipped. IntegrityError is raised
    for any other invalid line.
    """
    with open_regular(path) as file:
        for number, text in enumerate(file, start=1):
            line = text.rstrip(b"\n")
            if not line:
                continue
            try:
                entry: Entry = _ENTRY.validate_python(json.loads(line))
                # Check paths: a ledger may come from another machine, and trinat may delete the
                # files that it lists.
                for name in entry.outputs:
                    listed = PurePosixPath(name)
                    if listed.is_absolute() or ".." in listed.parts or not listed.parts:
                        raise ValueError(f"{name} is not in the folder")
            except (ValueError, RecursionError) as error:
                # Tolerate only interrupted writes: the last line, or a line before a rerun.
                if line.endswith(b"}") or not line.startswith((b"{", b"\0")):
                    what = f"line {number} is no entry of a ledger"
                    remedy = (
                        "restore the file, or remove it and give --overwrite to do "
                        "everything again"
                    )
                    raise IntegrityError(what, where=path, remedy=remedy) from error
                continue
            yield entry


def _is_later(entry: Entry, other: Entry, folder: Path) -> bool:
    """Return True if `entry` is to be used in place of `other`, an entry of the same case.

    It is if it has the higher attempt number, or, for equal numbers, if it fits the present files
    better. If two folders were put together, and only the files of the lower number are there, that
    is used. The entries are from two ledgers; `folder` is the output folder.
    """
    if entry.attempt != other.attempt:
        earlier, later = sorted((entry, other), key=attrgetter("attempt"))
        are_results = earlier.status == later.status == "done"
        if are_results and earlier.outputs != later.outputs:
            is_gone = earlier.is_written(folder) and not later.is_written(folder)
            later = earlier if is_gone else later
        return later is entry
    # Equal entries occur if a ledger was merged from others that are still in the folder.
    if entry == other:
        return False
    own_standing = _fit_to_files(entry, folder)
    other_standing = _fit_to_files(other, folder)
    if own_standing != other_standing:
        return own_standing > other_standing
    # Nothing says which is later: choose independently of the order in which ledgers are read.
    return entry.reason > other.reason


def _fit_to_files(entry: Entry, folder: Path) -> int:
    """Return how well a ledger entry fits the present files, from 0 to 3.

    It is used to choose between two attempts with equal numbers. 3: the entry is a result of the
    scan as it is now. 2: the segmentation failed. 1: it is a result of a scan that cannot be read.
    0: it is a result whose scan or outputs have changed.
    """
    if entry.status != "done":
        return 2
    if not entry.is_written(folder):
        return 0
    now = entry.digest_of_scan(folder)
    if now is None:
        return 1
    return 3 if now == entry.input_sha256 else 0
