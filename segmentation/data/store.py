"""A slice store: a folder with one HDF5 file a subject, and what they have in common.

store.json         scheme, views and settings; every subject with its fingerprint
participants.tsv   person, session, family, age, sex of every subject: yours to complete
ledger.tsv         every subject that the source named: done, failed or skipped, and why
subjects/<id>.h5   the slices
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from segmentation.data.slices import FORMAT, SubjectFile
from segmentation.data.sources.base import Subject, read_participants
from segmentation.data.splits import Participant, Split, make_folds, make_split
from segmentation.errors import DatasetError
from segmentation.io.files import atomic_text, read_rows, read_text, write_tsv
from segmentation.labels.scheme import Label, LabelScheme
from segmentation.space.views import View

__all__ = [
    "LedgerRow",
    "Store",
    "StoreInfo",
    "StoredSubject",
    "split_store",
    "subject_path",
    "write_participants",
]

PARTICIPANT_COLUMNS = ("participant_id", "person", "session", "family", "age", "sex")
LEDGER_COLUMNS = ("subject", "status", "reason")


# Names become file names: those of a store that came from elsewhere too.
SubjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoredSubject(_Strict):
    fingerprint: str
    has_image: bool
    has_labels: bool
    licence: str = ""


class StoreInfo(_Strict):
    """store.json."""

    format: int = FORMAT
    source: str
    scheme: dict[str, Any]
    views: tuple[View, ...]
    subjects: dict[SubjectName, StoredSubject]

    def write(self, root: Path) -> None:
        with atomic_text(root / "store.json") as file:
            file.write(json.dumps(self.model_dump(mode="json"), indent=1) + "\n")


class LedgerRow(_Strict):
    subject: str
    status: Literal["done", "failed", "skipped"]
    reason: str = ""


class Store:
    """A store opened for reading."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self.info = StoreInfo.model_validate_json(read_text(root / "store.json"))
        except FileNotFoundError:
            raise DatasetError(
                "not a slice store (no store.json)",
                where=root,
                remedy="run `trinat prepare`; where it was stopped, the same command resumes it",
            ) from None
        except (ValidationError, UnicodeDecodeError):
            raise DatasetError(
                "store.json cannot be understood", where=root, remedy="run `trinat prepare` again"
            ) from None
        if self.info.format != FORMAT:
            raise DatasetError(
                f"has store format {self.info.format}, this version reads {FORMAT}",
                where=root,
                remedy="run `trinat prepare` again",
            )

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.info.subjects)

    @property
    def views(self) -> tuple[View, ...]:
        return self.info.views

    @cached_property
    def scheme(self) -> LabelScheme:
        """Of whole volumes; slices of a view have the classes that are `seen_in` it."""
        return scheme_from_table(self.info.scheme)

    def file(self, subject: str) -> SubjectFile:
        if subject not in self.info.subjects:
            raise DatasetError(f"has no subject {subject!r}", where=self.root)
        return SubjectFile(subject_path(self.root, subject))

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any subject's inputs or settings; a split belongs to one fingerprint."""
        parts = sorted((name, entry.fingerprint) for name, entry in self.info.subjects.items())
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def participants(self) -> tuple[Participant, ...]:
        """One entry a subject, from participants.tsv as it stands now."""
        table = self.root / "participants.tsv"
        facts = read_participants(table)
        rows = read_rows(table, required=PARTICIPANT_COLUMNS[:2])
        people = {row["participant_id"]: row["person"] for row in rows}
        missing = [subject for subject in self.subjects if not people.get(subject)]
        if missing:
            raise DatasetError(
                f"subject {missing[0]} has no person", where=table, remedy="complete the table"
            )
        return tuple(
            Participant(
                subject,
                people[subject],
                facts[subject].family,
                facts[subject].age,
                facts[subject].sex,
            )
            for subject in self.subjects
        )

    @property
    def ledger(self) -> tuple[LedgerRow, ...]:
        path = self.root / "ledger.tsv"
        rows = read_rows(path, required=LEDGER_COLUMNS)
        return tuple(LedgerRow.model_validate(row) for row in rows)


def subject_path(root: Path, subject: str) -> Path:
    return root / "subjects" / f"{subject}.h5"


def scheme_from_table(table: dict[str, Any]) -> LabelScheme:
    labels = TypeAdapter(tuple[Label, ...]).validate_python(table["labels"])
    return LabelScheme(table["name"], labels)


def write_participants(root: Path, subjects: Sequence[Subject]) -> None:
    """Write participants.tsv; what a reader has filled in where we know nothing stays."""
    path = root / "participants.tsv"
    known = {}
    if path.is_file():
        known = {
            row["participant_id"]: row for row in read_rows(path, required=("participant_id",))
        }
    rows = []
    for subject in subjects:
        ours = {
            "person": subject.person,
            "session": subject.session,
            "family": subject.family,
            "age": None if subject.age is None else f"{subject.age:g}",
            "sex": subject.sex,
        }
        theirs = known.get(subject.id, {})
        rows.append(
            [
                subject.id,
                *(ours[name] or theirs.get(name) or None for name in PARTICIPANT_COLUMNS[1:]),
            ]
        )
    write_tsv(path, PARTICIPANT_COLUMNS, rows)


def write_ledger(root: Path, rows: Sequence[LedgerRow]) -> None:
    write_tsv(root / "ledger.tsv", LEDGER_COLUMNS, [(r.subject, r.status, r.reason) for r in rows])


def split_store(
    root: Path,
    *,
    ratios: tuple[float, float, float] = (8, 1, 1),
    folds: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> list[tuple[Path, Split]]:
    """Write split.json, or split-0.json and so on for folds, and return what stands in them."""
    store = Store(root)
    people = [p for p in store.participants if store.info.subjects[p.subject].has_labels]
    path = out or root / "split.json"
    if folds is None:
        splits = [make_split(people, ratios, seed=seed, store=store.fingerprint)]
        paths = [path]
    else:
        splits = make_folds(people, folds, seed=seed, store=store.fingerprint)
        paths = [path.with_stem(f"{path.stem}-{index}") for index in range(folds)]
    for each, split in zip(paths, splits, strict=True):
        split.write(each)
    return list(zip(paths, splits, strict=True))
