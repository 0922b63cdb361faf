"""The ledger: one line of JSON for each input of each run, appended when its outcome is known.

The last line of a case is what holds. A line torn by a power cut is ignored: its case counts as
not done, and is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from segmentation.errors import IntegrityError

__all__ = ["Entry", "Ledger", "Status", "digest_files", "ledgers_in", "read_entries"]

Status = Literal["done", "failed", "skipped"]


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
    finished: str = ""

    def is_current(self, folder: Path, input_sha256: str, model: str, settings: str) -> bool:
        """Done from the same input, model and settings, and its outputs still what was written."""
        return (
            self.status == "done"
            and (self.input_sha256, self.model, self.settings) == (input_sha256, model, settings)
            and all(
                _digest_or_none(folder / path) == digest for path, digest in self.outputs.items()
            )
        )


class Ledger:
    """Appends entries to one file, each on the disk before `add` returns."""

    def __init__(self, path: Path) -> None:
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

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of all runs and shards in an output folder."""
    return sorted(folder.glob("run*.jsonl"))


def read_entries(
    paths: Iterable[Path],
    cases: Collection[str] | None = None,
    known: Mapping[str, Entry] | None = None,
) -> dict[str, Entry]:
    """The entry that holds for each case, or each of `cases` and what was refused: the last, by
    time, over all ledgers.

    `known` are those of ledgers read before. A ledger of 100,000 cases takes a gigabyte as entries:
    who needs a part asks for that alone.
    """
    newest = dict(known or {})
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                entry = _parse(line.rstrip(b"\n"), path, number)
                if entry is None:
                    continue
                if cases is not None and entry.case not in cases and entry.model:
                    continue
                before = newest.get(entry.case)
                if before is None or before.finished <= entry.finished:
                    newest[entry.case] = entry
    return newest


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


def digest_files(paths: Iterable[Path]) -> str:
    """SHA-256 over the files' bytes, one after the other; a header and its image are one scan."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest_files([path])
    except OSError:
        return None
