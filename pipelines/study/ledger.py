"""The ledger: one line of JSON for each input of each run, appended when its outcome is known.

The last line of a case is the one that holds. Between ledgers it is the last attempt: each run
reads all ledgers of its folder and numbers its attempts on from there, so no clock is needed. A
line that a power cut tore is ignored: its case counts as not done, and is done again.

Before files are moved into place, a line lists them with their hashes. A file in the output folder
that no line lists with its present hash is the user's: it is replaced with `overwrite` alone.

`unfit_results` says which files are no longer the result of their scan as it is now.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import TypeAdapter

from trinat.pipelines.jobs.process import cpu_count
from trinat.pipelines.study.corrections import correction_of
from trinat.pipelines.study.discovery import absolute, walk
from trinat.pipelines.study.entry import Entry, digest_of, digests_of
from trinat.pipelines.study.naming import FOLD
from trinat.segmentation.errors import IntegrityError, OutputError
from trinat.segmentation.io.files import (
    append_whole,
    open_regular,
    open_to_append,
    sha256_of,
)

_LEDGERS = "run*.jsonl"
# How many folders above a file are searched for the ledger of its result.
_FOLDERS_ABOVE = 4
# Fields of an entry that are for the run alone.
_NOT_IN_FILE = ("staged", "spent", "no_room", "of_scans")


class Ledger:
    """Appends entries to one file, each on the disk before `add` returns; moves outputs into place.

    `entries` is what holds for each case: what was known before, and what is added. `written` is
    each file (path, sha256) that a run before has written to the folder, or was about to write.
    With `overwrite`, outputs replace files of the user.
    """

    def __init__(
        self,
        path: Path,
        known: Mapping[str, Entry] | None = None,
        written: Collection[tuple[str, str]] = (),
        *,
        overwrite: bool = False,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        if known is not None:
            self.entries.update(known)
        self._written = set(written)
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
        """The ledger of a run, which knows what all runs before have done in its folder.

        With `cases` it knows of these alone, and of refused inputs. `own_files` are what the run
        writes for the whole folder: OutputError if one is there as a user's.
        """
        # Before the ledgers are read: a job beside this one lists what it writes before it does.
        there = digests_of(path.parent, own_files)
        before = read_ledgers(ledgers_in(path.parent), cases)
        ledger = cls(path, before.entries, before.written, overwrite=overwrite)
        ledger.refuse(there)
        return ledger

    def add(self, entry: Entry) -> None:
        """Append an entry; one without a number is the attempt after the one that held so far.

        The line is on the disk when this returns; after a failure the file is as it was. The file
        is opened with the first entry and stays open until the ledger is closed.
        """
        if entry.status != "writing" and not entry.attempt:
            before = self.entries.get(entry.case)
            attempt = 1 if before is None else before.attempt + 1
            entry = replace(entry, attempt=attempt)
        if self._file is None:
            if self._path.is_symlink() and not self._path.exists():
                raise OutputError(
                    "is a link to nothing", where=self._path, remedy="remove it"
                )
            file = open_to_append(self._path)
            # A torn last line must not swallow the next one.
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

    def refuse(self, there: Mapping[str, str | None]) -> None:
        """Raise OutputError if one of these files is not as a run has written it.

        `there` maps the paths of files to their SHA-256. With `overwrite` nothing is refused.
        """
        if self._overwrite:
            return
        ours = {name for name, _ in self._written}
        for name, digest in there.items():
            if (name, digest) in self._written:
                continue
            what = f"{name} is there and was not written by trinat"
            if name in ours:
                what = f"{name} was changed since trinat wrote it"
            raise OutputError(
                what, where=self._folder, remedy="move it away, or give --overwrite"
            )

    def move_in(self, staged: Path, entry: Entry | None = None) -> None:
        """Move all files below `staged` into the folder: an entry's outputs, or the run's own.

        A file that is there with the same bytes stays; one that a run has written is replaced,
        and with `overwrite` any other. The ledger lists what follows
        before the first file appears. After an OSError no output of the entry is left.
        """
        known: Mapping[str, str] = {} if entry is None else entry.outputs
        sources: dict[str, Path] = {}
        digests: dict[str, str] = {}
        for path in sorted(staged.rglob("*")):
            if path.is_file():
                name = path.relative_to(staged).as_posix()
                sources[name] = path
                digests[name] = known[name] if name in known else sha256_of(path)
        there = digests_of(self._folder, digests)
        changed = {
            name: digest for name, digest in there.items() if digest != digests[name]
        }
        self.refuse(changed)
        self._announce(digests, entry)
        placed: list[Path] = []
        try:
            for name in sorted(sources):
                if name in there and name not in changed:
                    continue
                final = self._folder / name
                final.parent.mkdir(parents=True, exist_ok=True)
                sources[name].replace(final)
                placed.append(final)
        except OSError:
            # Half of a case's result is none.
            if entry is not None:
                for final in placed:
                    final.unlink(missing_ok=True)
            raise
        shutil.rmtree(staged)

    def _announce(self, digests: Mapping[str, str], entry: Entry | None) -> None:
        """Say in the ledger which files are about to be written.

        Files of the whole folder have a line apart: jobs that do other parts of the work read
        that one, and not those of this job's cases.
        """
        of_case: dict[str, str] = {}
        of_folder: dict[str, str] = {}
        for name in sorted(digests):
            if entry is not None and name in entry.outputs:
                of_case[name] = digests[name]
            else:
                of_folder[name] = digests[name]
        if entry is not None:
            self._add_writing(entry.case, entry.model, of_case)
        self._add_writing("", "", of_folder)

    def _add_writing(self, case: str, model: str, outputs: Mapping[str, str]) -> None:
        """A line for files (path -> sha256) that are about to be written, if it is news."""
        if not self._written.issuperset(outputs.items()):
            self.add(Entry(case, "writing", model=model, outputs=outputs))
            self._written.update(outputs.items())

    def remove(self, name: str) -> None:
        """Delete a file if it is there as a run has written it."""
        for found, digest in digests_of(self._folder, [name]).items():
            if (found, digest) in self._written and self._is_own(name):
                (self._folder / name).unlink()

    def _is_own(self, name: str) -> bool:
        """Whether a file is in the folder itself, and no link leads elsewhere on the way."""
        path = self._folder / name
        home = self._folder.resolve()
        return not path.is_symlink() and path.parent.resolve().is_relative_to(home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of all runs and shards in an output folder."""
    return sorted(folder.glob(_LEDGERS))


def with_folds(folder: Path) -> list[Path]:
    """An output folder, and the folders of its folds where it is one of a cross-validation."""
    folds = sorted(folder.glob(FOLD.format("*")))
    return [folder, *folds]


def entries_in(folder: Path) -> Iterator[tuple[Path, Entry]]:
    """What holds for each case of an output folder or of its folds, and in which of these it is."""
    for each in with_folds(folder):
        for entry in read_entries(ledgers_in(each)).values():
            yield each, entry


def entries_for(place: Path) -> Iterator[tuple[Path, Entry]]:
    """What holds for each case of label maps, and in which output folder it is.

    `place` is an output folder, one with several of them in it, or a folder or file in one. Of the
    last, only the cases with files in `place` count.
    """
    here = absolute(place)
    for folder, contents in _ledgers_of(place):
        is_in_place = absolute(folder).is_relative_to(here)
        for entry in contents.entries.values():
            files = (absolute(folder / name) for name in entry.outputs)
            if is_in_place or any(file.is_relative_to(here) for file in files):
                yield folder, entry


def _ledgers_of(place: Path) -> Iterator[tuple[Path, LedgerContents]]:
    """Each output folder of label maps, and what its ledgers say."""
    for folder in _output_folders(place):
        try:
            contents = read_ledgers(ledgers_in(folder))
        except IntegrityError:
            if ledgers_in(place):
                raise
            continue  # a file of another program
        yield folder, contents


def _output_folders(place: Path) -> list[Path]:
    """Where the ledgers of label maps are: here and in folds, else in folders below, else above."""
    if ledgers_in(place):
        return with_folds(place)
    if place.is_dir():
        ledgers = walk(place, wanted=lambda path: path.match(_LEDGERS))
        below = sorted({path.parent for path in ledgers})
        if below:
            return below
    for above in absolute(place).parents[:_FOLDERS_ABOVE]:
        if ledgers_in(above):
            return [above]
    return []


class LedgerContents:
    """What ledgers say, which are read one after the other.

    `entries` is the entry that holds for each case. In one ledger that is the last one, between
    ledgers the one with the highest number; no clock is needed. Of equal numbers (ledgers of two
    folders were put together) see `_standing`.

    `written` is each file (path, sha256) that the ledgers list, `writers` the case that each file
    is of, by its path.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.written: set[tuple[str, str]] = set()
        self.writers: dict[str, str] = {}

    def read(self, path: Path, cases: Collection[str] | None = None) -> None:
        """Add what a ledger says, or only what it says of `cases` and of refused inputs.

        A ledger of 100,000 cases takes a gigabyte as entries: who needs a part asks for that alone.
        IntegrityError if a line is no entry.
        """
        last: dict[str, Entry] = {}
        for entry in _lines_of(path):
            if cases is not None and entry.case not in cases and not entry.is_refusal:
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
    """What these ledgers say together; with `cases`, only of these and of refused inputs."""
    contents = LedgerContents()
    for path in paths:
        contents.read(path, cases)
    return contents


def read_entries(paths: Iterable[Path]) -> dict[str, Entry]:
    """The entry that holds for each case in these ledgers."""
    return read_ledgers(paths).entries


_ENTRY = TypeAdapter(Entry)


def _lines_of(path: Path) -> Iterator[Entry]:
    """The entries of a ledger, in its order, without lines that were torn.

    IntegrityError if a line is no entry.
    """
    with open_regular(path) as file:
        for number, text in enumerate(file, start=1):
            line = text.rstrip(b"\n")
            if not line:
                continue
            try:
                entry: Entry = _ENTRY.validate_python(json.loads(line))
                # A ledger may come from elsewhere, and what it lists is replaced and deleted.
                for name in entry.outputs:
                    listed = PurePosixPath(name)
                    if listed.is_absolute() or ".." in listed.parts or not listed.parts:
                        raise ValueError(f"{name} is not in the folder")
            except (ValueError, RecursionError) as error:
                # Only a write that was cut short may be broken: the last, or one before a rerun.
                if line.endswith(b"}") or not line.startswith((b"{", b"\0")):
                    what = f"line {number} is no entry of a ledger"
                    remedy = "restore the file, or remove it to do everything again"
                    raise IntegrityError(what, where=path, remedy=remedy) from error
                continue
            yield entry


def _is_later(entry: Entry, other: Entry, folder: Path) -> bool:
    """Whether an entry is of a later attempt than one of another ledger."""
    if entry.attempt != other.attempt:
        return entry.attempt > other.attempt
    # A ledger that was joined has the same entries as its parts.
    if entry == other:
        return False
    own_standing = _standing(entry, folder)
    other_standing = _standing(other, folder)
    if own_standing != other_standing:
        return own_standing > other_standing
    # Nothing says which is later. The same one holds in whatever order ledgers are read.
    return entry.reason > other.reason


def _standing(entry: Entry, folder: Path) -> int:
    """How well an entry fits what is there now, for entries whose attempts have equal numbers.

    A result of the scan as it is now counts most. A failure counts more than a result of a scan
    that is another one now, or of which nothing is known.
    """
    if entry.status != "done":
        return 2
    if not entry.is_written(folder):
        return 0
    now = entry.digest_of_scan(folder)
    if now is None:
        return 1
    return 3 if now == entry.input_sha256 else 0


def unfit_results(
    folder: Path, files: Collection[Path], corrected: Collection[Path] = ()
) -> dict[Path, str]:
    """Return which files are not the result of their scan as it is now, and why.

    `folder` is one of `entries_for`, with these files. A result that the user has changed or added
    is never unfit. `corrected` are the files whose corrections count in their place: these are
    unfit if they are of another scan, or cannot be right.
    """
    unfit: dict[Path, str] = {}
    # The hash of the scan that each file is the result of.
    scans: dict[Path, str] = {}
    for each, contents in _ledgers_of(folder):
        ours: dict[str, Path] = {}
        for file in files:
            name = os.path.relpath(file, each)
            if name in contents.writers:
                ours[name] = file
                entry = contents.entries.get(contents.writers[name])
                scans[file] = "" if entry is None else entry.input_sha256
        unfit.update(_unfit_in(each, contents, ours))

    def judge(file: Path) -> str:
        correction = correction_of(file)
        return correction.why_unfit(scans.get(file, "")) if correction else ""

    fit = [file for file in corrected if file not in unfit]
    with ThreadPoolExecutor(cpu_count()) as pool:
        reasons = list(pool.map(judge, fit))
    judged = zip(fit, reasons, strict=True)
    return unfit | {file: reason for file, reason in judged if reason}


def _unfit_in(
    folder: Path, contents: LedgerContents, ours: Mapping[str, Path]
) -> dict[Path, str]:
    """Return which of the files (by their names in the ledger of a folder) are unfit, and why."""

    def judge(name: str) -> str:
        digest = str(digest_of(folder / name))
        if (name, digest) not in contents.written:
            return ""
        entry = contents.entries.get(contents.writers[name])
        return _why_unfit(entry, name, digest, folder)

    # Threads, since these are hashes of large files.
    with ThreadPoolExecutor(cpu_count()) as pool:
        reasons = list(pool.map(judge, ours))
    judged = zip(ours.values(), reasons, strict=True)
    return {file: reason for file, reason in judged if reason}


def _why_unfit(entry: Entry | None, name: str, digest: str, folder: Path) -> str:
    """Why a file that a run has written is unfit; empty where it is the result of its scan."""
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
