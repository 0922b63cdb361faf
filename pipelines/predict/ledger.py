"""The ledger: one line of JSON for each input of each run, appended when its outcome is known.

The last line of a case is what holds. Between ledgers it is the last attempt: each run reads all
ledgers of its folder and numbers its attempts on from there, so no clock is asked. A line torn by a
power cut is ignored: its case counts as not done, and is done again. Before files are moved into
place a line says which, with their hashes: a file in the output folder that no line speaks of is
the user's, and is never replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter

from trinat.pipelines.common.naming import ASIDE, FOLD, LEFT_OUT
from trinat.pipelines.common.process import cpu_count
from trinat.segmentation.errors import InputError, IntegrityError, OutputError
from trinat.segmentation.io.files import (
    append_whole,
    open_regular,
    open_to_append,
    sha256_of,
)
from trinat.segmentation.timing import Spent

if TYPE_CHECKING:
    from trinat.pipelines.common.cases import Case
    from trinat.pipelines.predict.outputs import RunSettings

Status = Literal["done", "failed", "skipped", "writing"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Entry:
    """What became of one input. Paths are relative: `input` to the input's root, others to the
    output folder."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    case: str
    status: Status
    input: str = ""
    reason: str = ""
    input_sha256: str = ""
    scan: str = ""  # where the input is
    model: str = ""  # empty: refused before any model was asked
    settings: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)  # path -> sha256
    # What earlier attempts had written and this one has not: path -> where it was moved.
    aside: Mapping[str, str] = field(default_factory=dict)
    # Everything the tables are made of: volumes, quality, notes.
    result: Mapping[str, Any] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    worker: str = ""
    # Which attempt at this case it is, over all ledgers of the folder. 0: before they were counted.
    attempt: int = 0
    finished: str = field(default_factory=_now)
    # Not in the file: where the outputs are until they are moved into place, where the time of
    # the process went since its entry before, and whether it failed since the disk is full.
    staged: str = ""
    spent: Spent = field(default_factory=dict)
    no_room: bool = False

    @classmethod
    def of(
        cls, case: Case, settings: RunSettings, status: Status, **fields: Any
    ) -> Entry:
        """What a run with these settings made of a case."""
        model, digest = settings.model_sha256, settings.output.digest()
        # As seen from the output, so that no path of this machine is told.
        scan = os.path.relpath(case.path, settings.out.resolve())
        return cls(
            *(case.id, status, case.shown),
            scan=scan,
            model=model,
            settings=digest,
            **fields,
        )

    @classmethod
    def failed(cls, case: Case, settings: RunSettings, reason: str) -> Entry:
        return cls.of(case, settings, "failed", reason=reason)

    @property
    def is_kept(self) -> bool:
        """Skipped since its result was changed after a run had written it."""
        return self.status == "skipped" and bool(self.model)

    @property
    def is_left_out(self) -> bool:
        """Of what was given, a part that is no scan to segment: a localiser, say."""
        return self.status == "skipped" and self.reason.startswith(LEFT_OUT)

    @property
    def is_withdrawn(self) -> bool:
        """Refused once, and not given any more: no table tells it."""
        return self.status == "skipped" and not self.model and not self.is_left_out

    def is_current(self, case: Case, settings: RunSettings) -> bool:
        """Done from the same input, model and settings, and its outputs still what was written."""
        now = (settings.model_sha256, settings.output.digest())
        if self.status != "done" or (self.model, self.settings) != now:
            return False
        # The scan comes last: where anything else has changed it is not read.
        return (
            self.is_written(settings.out) and _digest(*case.files) == self.input_sha256
        )

    def digest_of_scan(self, folder: Path) -> str | None:
        """SHA-256 of the scan as it is now; None where it is not there, or in many files."""
        from trinat.pipelines.common.cases import Case

        path = folder.resolve() / self.scan
        if not self.scan or not path.is_file():
            return None
        return _digest(*Case(self.case, path, self.input).files)

    def is_written(self, folder: Path) -> bool:
        """Whether its outputs are there, and are what was written."""
        return all(
            _digest(folder / path) == digest for path, digest in self.outputs.items()
        )


class _Result(BaseModel):
    """What the tables take from an entry's result, where it is there."""

    grade: str = ""
    reasons: list[str] = []
    notes: list[str] = []
    structure_grades: dict[str, str] = {}
    total_brain_mm3: FiniteFloat = 0
    mean_agreement: FiniteFloat | None = None
    volumes_mm3: dict[str, FiniteFloat] = {}
    agreement: dict[str, float | None] = {}
    iou: dict[str, float | None] = {}
    pairwise_dice: dict[str, float | None] = {}
    volume_cv: dict[str, float | None] = {}
    picture: str = ""


_ENTRY = TypeAdapter(Entry)
# So far up the ledger of a result is looked for.
_FOLDERS_ABOVE = 4


class ChangedError(OutputError):
    """A file in the place of an output is one that a run wrote, and that was changed since."""


class Ledger:
    """Appends entries to one file, each on the disk before `add` returns; moves outputs into place.

    `entries` is what holds for each case: what was known before, and what is added. `written` is
    each file (path, sha256) that a run before has written to the folder, or was about to.
    """

    def __init__(
        self,
        path: Path,
        known: Mapping[str, Entry] | None = None,
        written: Collection[tuple[str, str]] = (),
        *,
        overwrite: bool = False,
    ) -> None:
        self.entries = dict(known or {})
        self._written = set(written)
        self._overwrite = overwrite
        self._path, self._folder = path, path.parent
        self._file: FileIO | None = None

    def add(self, entry: Entry) -> None:
        """Append; what has no number is the attempt after the one that held until now."""
        if entry.status != "writing" and not entry.attempt:
            before = self.entries.get(entry.case)
            entry = replace(entry, attempt=before.attempt + 1 if before else 1)
        if self._file is None:
            self._file = self._open()
        fields = asdict(entry)
        del fields["staged"], fields["spent"], fields["no_room"]
        line = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
        append_whole(self._file, line.encode() + b"\n", self._path)
        if entry.status != "writing":
            self.entries[entry.case] = entry

    def refuse(self, there: Mapping[str, str | None]) -> None:
        """OutputError if one of these files (path -> sha256) was not written by any run; else
        ChangedError if one is not as it was written."""
        strange = [
            name
            for name, digest in there.items()
            if (name, digest) not in self._written
        ]
        if strange and not self._overwrite:
            ours = {name for name, _ in self._written}
            name = next((name for name in strange if name not in ours), strange[0])
            kind, what = OutputError, "is there and was not written by trinat"
            if name in ours:
                kind, what = ChangedError, "was changed since trinat wrote it"
            remedy = "move it away, or give --overwrite, which keeps a copy beside it"
            raise kind(f"{name} {what}", where=self._folder, remedy=remedy)

    def place(self, staged: Path, entry: Entry | None = None) -> None:
        """Move all files below `staged` into the folder, an entry's outputs or the run's own.

        Same bytes stay; what a run has written is replaced; what is the user's is refused, or with
        `overwrite` renamed. Which files follow is in the ledger before the first appears.
        """
        known = entry.outputs if entry else {}
        paths = [path for path in sorted(staged.rglob("*")) if path.is_file()]
        names = {path.relative_to(staged).as_posix(): path for path in paths}
        files = {
            name: known.get(name) or sha256_of(path) for name, path in names.items()
        }
        there = digests_of(self._folder, files)
        changed = {name: there[name] for name in there if there[name] != files[name]}
        self.refuse(changed)
        strange = [
            name for name in changed if (name, changed[name]) not in self._written
        ]
        # Files of the whole folder apart: other parts of the work hear of them, not of this case's.
        for case, model, said in (
            (
                entry.case if entry else "",
                entry.model if entry else "",
                files.keys() & known,
            ),
            ("", "", files.keys() - known),
        ):
            outputs = {name: files[name] for name in sorted(said)}
            if not self._written.issuperset(outputs.items()):
                self.add(Entry(case, "writing", model=model, outputs=outputs))
                self._written.update(outputs.items())
        placed = []
        try:
            for name in sorted(files.keys() - (there.keys() - changed.keys())):
                final = self._folder / name
                final.parent.mkdir(parents=True, exist_ok=True)
                if name in strange:
                    final.rename(_kept_name(final))
                names[name].replace(final)
                placed.append(final)
        except OSError:
            # Half of a case's result is none: it is not even an old one to be set aside.
            if entry is not None:
                for final in placed:
                    final.unlink(missing_ok=True)
            raise
        shutil.rmtree(staged)

    def set_aside(self, names: Iterable[str]) -> dict[str, str]:
        """Move those of these files that a run has written to where nothing looks for results.

        What is the user's stays.
        """
        moved = {}
        for name, digest in digests_of(self._folder, names).items():
            if (name, digest) not in self._written:
                continue
            target = self._folder / ASIDE / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target = _kept_name(target)
            (self._folder / name).rename(target)
            moved[name] = target.relative_to(self._folder).as_posix()
        return moved

    def remove(self, name: str) -> None:
        """Delete a file if a run has written it as it is."""
        if set(digests_of(self._folder, [name]).items()) & self._written:
            (self._folder / name).unlink()

    def _open(self) -> FileIO:
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
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _kept_name(path: Path) -> Path:
    """Another name beside a file, which is nobody's yet and no scan's."""
    number = 1
    while True:
        beside = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        if not os.path.lexists(beside):
            return beside
        number += 1


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of all runs and shards in an output folder."""
    return sorted(folder.glob("run*.jsonl"))


def read_entries(
    paths: Iterable[Path],
    cases: Collection[str] | None = None,
    known: Mapping[str, Entry] | None = None,
    written: set[tuple[str, str]] | None = None,
    writers: dict[str, str] | None = None,
) -> dict[str, Entry]:
    """The entry that holds for each case, or each of `cases` and what was refused.

    In a ledger that is the last one, between ledgers the one with the highest number; no clock is
    asked. Of equal numbers (ledgers of two folders were put together) see `_standing`.
    `known` are those of ledgers read before; `written` gets all files that they speak of, `writers`
    for each file the case that it is of. A ledger of 100,000 cases takes a gigabyte as entries: who
    needs a part asks for that alone.
    """
    newest = dict(known or {})
    for path in paths:
        last: dict[str, Entry] = {}
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                entry = _parse(line.rstrip(b"\n"), path, number)
                if not entry or (
                    cases is not None and entry.case not in cases and entry.model
                ):
                    continue
                if written is not None:
                    written.update(entry.outputs.items())
                if writers is not None and entry.case:
                    writers.update(dict.fromkeys(entry.outputs, entry.case))
                if entry.status != "writing":
                    last[entry.case] = entry
        for case, entry in last.items():
            if case not in newest or _holds(entry, newest[case], path.parent):
                newest[case] = entry
    return newest


def _holds(entry: Entry, other: Entry, folder: Path) -> bool:
    """Whether an entry is of a later attempt than one of another ledger."""
    if entry.attempt != other.attempt:
        return entry.attempt > other.attempt
    # A ledger that was joined has the same entries as its parts.
    if entry == other:
        return False
    return (_standing(entry, folder), entry.reason) > (
        _standing(other, folder),
        other.reason,
    )


def _standing(entry: Entry, folder: Path) -> int:
    """How well an entry fits what is there now, where numbers of attempts do not tell.

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


def _parse(line: bytes, path: Path, number: int) -> Entry | None:
    if not line:
        return None
    try:
        entry: Entry = _ENTRY.validate_python(json.loads(line))
        _Result.model_validate(entry.result)
        return entry
    except (ValueError, RecursionError) as error:
        # Only a write that was cut short may be broken: the last, or one before a rerun.
        if line.endswith(b"}") or not line.startswith((b"{", b"\0")):
            what = f"line {number} is no entry of a ledger"
            remedy = "restore the file, or remove it to do everything again"
            raise IntegrityError(what, where=path, remedy=remedy) from error
        return None


def entries_in(folder: Path) -> Iterator[tuple[Path, Entry]]:
    """What holds for each case of an output folder or of its folds, and in which of these it is."""
    for place in (folder, *sorted(folder.glob(FOLD.format("*")))):
        for entry in read_entries(ledgers_in(place)).values():
            yield place, entry


def unfit_results(folder: Path, files: Collection[Path]) -> dict[Path, str]:
    """Of files of an output folder, or below one: which are no result of the last attempt at their
    scan as it is now, and why. What the user has changed or added is the user's."""
    places = [folder, *sorted(folder.glob(FOLD.format("*")))]
    unfit = {}
    for place in places:
        unfit.update(_unfit_in(place, files))
    above = folder.absolute().parents[:_FOLDERS_ABOVE]
    home = next((place for place in above if ledgers_in(place)), None)
    if home and not ledgers_in(folder):
        # There it may be a file of another program.
        with suppress(IntegrityError):
            unfit.update(_unfit_in(home, files))
    return unfit


def _unfit_in(place: Path, files: Collection[Path]) -> dict[Path, str]:
    written: set[tuple[str, str]] = set()
    writers: dict[str, str] = {}
    entries = read_entries(ledgers_in(place), written=written, writers=writers)
    names = {os.path.relpath(file, place): file for file in files}
    ours = [name for name in names if name in writers]

    def judged(name: str) -> str:
        digest = _digest(place / name)
        if (name, str(digest)) not in written:
            return ""
        return _why_unfit(entries.get(writers[name]), name, str(digest), place)

    # Hashes of large files: threads do not wait for one another.
    with ThreadPoolExecutor(cpu_count()) as pool:
        reasons = pool.map(judged, ours)
        return {
            names[name]: why for name, why in zip(ours, reasons, strict=True) if why
        }


def _why_unfit(entry: Entry | None, name: str, digest: str, place: Path) -> str:
    """Of a file as a run has written it; empty where it is the result of its scan."""
    if entry is None or (entry.status == "done" and entry.outputs.get(name) != digest):
        return "is not of the last run that was finished: run trinat predict again"
    if entry.is_kept:
        return ""
    if entry.status != "done":
        return f"is an old result: its scan has failed since ({entry.reason})"
    now = entry.digest_of_scan(place)
    if now is not None and now != entry.input_sha256:
        return "is an old result: its scan was changed since; run trinat predict again"
    return ""


def taught_by_models(entries: Iterable[Entry]) -> list[str]:
    """What every report says of models that learnt labels which other models had made."""
    results = (entry.result for entry in entries if entry.result.get("pseudo_labels"))
    return sorted(
        {f"{r['model']} was trained with {r['pseudo_labels']}." for r in results}
    )


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str | None]:
    """SHA-256 of those of these files that are in the folder; None for what is not a file."""
    return {
        name: _digest(folder / name) for name in names if os.path.lexists(folder / name)
    }


def _digest(*paths: Path) -> str | None:
    try:
        return sha256_of(*paths)
    except (InputError, OSError):
        return None
