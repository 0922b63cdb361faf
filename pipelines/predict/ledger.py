"""The ledger: one line of JSON for each input of each run, appended when its outcome is known.

The last line of a case is what holds. A line torn by a power cut is ignored: its case counts as
not done, and is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from segmentation.errors import InputError, IntegrityError
from segmentation.io.files import open_regular, sha256_of

if TYPE_CHECKING:
    from pipelines.common.discovery import Case
    from pipelines.predict.settings import RunSettings

__all__ = ["Entry", "Ledger", "Status", "ledgers_in", "read_entries"]

Status = Literal["done", "failed", "skipped"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Entry:
    """What became of one input. Paths are relative: to the input's root, to the output folder."""

    case: str
    status: Status
    input: str = ""
    reason: str = ""
    input_sha256: str = ""
    model: str = ""  # empty: refused before any model was asked
    settings: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)  # path -> sha256
    # Everything the tables are made of: volumes, quality, notes.
    result: Mapping[str, Any] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    worker: str = ""
    finished: str = field(default_factory=_now)

    @classmethod
    def of(cls, case: Case, settings: RunSettings, status: Status, **fields: Any) -> Entry:
        """What a run with these settings made of a case."""
        model, digest = settings.model_sha256, settings.output.digest()
        return cls(case.id, status, case.shown, model=model, settings=digest, **fields)

    @classmethod
    def failed(cls, case: Case, settings: RunSettings, reason: str) -> Entry:
        return cls.of(case, settings, "failed", reason=reason)

    def is_current(self, case: Case, settings: RunSettings) -> bool:
        """Done from the same input, model and settings, and its outputs still what was written."""
        now = (settings.model_sha256, settings.output.digest())
        if self.status != "done" or (self.model, self.settings) != now:
            return False
        # The scan comes last: where anything else has changed it is not read.
        return self.is_written(settings.out) and _digest(*case.files) == self.input_sha256

    def is_written(self, folder: Path) -> bool:
        """Whether its outputs are there, and are what was written."""
        return all(_digest(folder / path) == digest for path, digest in self.outputs.items())


class Ledger:
    """Appends entries to one file, each on the disk before `add` returns.

    `entries` is what holds for each case: what was known before, and what is added.
    """

    def __init__(self, path: Path, known: Mapping[str, Entry] | None = None) -> None:
        self.entries = dict(known or {})
        self._file = path.open("a+b")
        # A torn last line must not swallow the next one.
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def add(self, entry: Entry) -> None:
        line = json.dumps(asdict(entry), ensure_ascii=True, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries[entry.case] = entry

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of all runs and shards in an output folder."""
    return sorted(folder.glob("run*.jsonl"))


def read_entries(
    paths: Iterable[Path],
    cases: Collection[str] | None = None,
    known: Mapping[str, Entry] | None = None,
) -> dict[str, Entry]:
    """The entry that holds for each case, or each of `cases` and what was refused.

    In a ledger that is the last one, whatever the clock said; between ledgers the one whose outputs
    are there, else the latest.
    `known` are those of ledgers read before. A ledger of 100,000 cases takes a gigabyte as entries:
    who needs a part asks for that alone.
    """
    newest = dict(known or {})
    for path in paths:
        last: dict[str, Entry] = {}
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                entry = _parse(line.rstrip(b"\n"), path, number)
                if entry and (cases is None or entry.case in cases or not entry.model):
                    last[entry.case] = entry
        for case, entry in last.items():
            if case not in newest or _is_later(entry, newest[case], path.parent):
                newest[case] = entry
    return newest


def _is_later(entry: Entry, other: Entry, folder: Path) -> bool:
    """By what is written there; where that does not tell, by the clock."""
    if entry.status == other.status == "done" and entry.outputs != other.outputs:
        written = entry.is_written(folder)
        if written != other.is_written(folder):
            return written
    return entry.finished >= other.finished


def _parse(line: bytes, path: Path, number: int) -> Entry | None:
    if not line:
        return None
    try:
        return Entry(**json.loads(line))
    except (ValueError, TypeError) as error:
        # Only a write that was cut short may be broken: the last, or one before a rerun.
        if line.endswith(b"}"):
            raise IntegrityError(
                f"line {number} is no entry of a ledger",
                where=path,
                remedy="restore the file, or remove it to do everything again",
            ) from error
        return None


def _digest(*paths: Path) -> str | None:
    try:
        return sha256_of(*paths)
    except (InputError, OSError):
        return None
