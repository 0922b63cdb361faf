"""A slice store: a folder with one HDF5 file a subject, and what they have in common.

store.json         scheme, views and settings; of every subject its fingerprint, the hash of its
                   file, and the files that it was made from
split.json         who trains, validates and tests, once `trinat split` was run
participants.tsv   person, session, family, age, sex of every subject: yours to complete
ledger.tsv         every subject that the source named: done, failed or skipped, and why
subjects/<id>.h5   the slices
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.sources.base import Subject, read_participants
from trinat.segmentation.data.sources.registry import SOURCES
from trinat.segmentation.data.splits import (
    Part,
    Participant,
    Split,
    make_folds,
    make_published_split,
    make_split,
    read_split,
)
from trinat.segmentation.errors import DatasetError, IntegrityError
from trinat.segmentation.io.files import (
    atomic_text,
    read_rows,
    read_text,
    sha256_of,
    write_tsv,
)
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.scheme import Label, LabelScheme
from trinat.segmentation.space.views import View

# Of store.json. Files of subjects have their own (slices.py), so that they need not be made anew.
FORMAT: Literal[3] = 3
SPLIT = "split.json"

_PARTICIPANT_COLUMNS = ("participant_id", "person", "session", "family", "age", "sex")
_LEDGER_COLUMNS = ("subject", "status", "reason")


# Names become file names: those of a store that came from elsewhere too.
_SubjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileStamp(_Strict):
    """The content of a file, and by what it is taken as unchanged without being read."""

    sha256: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        state = path.stat()
        return cls(
            sha256=sha256_of(path), size=state.st_size, mtime_ns=state.st_mtime_ns
        )

    def renewed(self, path: Path) -> FileStamp | None:
        """Of the file as it is, read only if its size or time changed; None if its content did."""
        state = path.stat()
        if (state.st_size, state.st_mtime_ns) == (self.size, self.mtime_ns):
            return self
        now = FileStamp.of(path)
        return now if now.sha256 == self.sha256 else None


class Original(_Strict):
    """A file that a subject was made from."""

    path: Path
    sha256: str  # of an Analyze pair, of header and image in a row
    axes: str | None = None  # where the dataset vouches for axes that the header lacks


class Pseudo(_Strict):
    """The model that made a subject's labels, which are no truth."""

    model: str
    sha256: str  # of its model.yaml
    not_predicted: tuple[str, ...] = ()  # classes that no voxel can have

    def __str__(self) -> str:
        return f"pseudo-labels of {self.model} ({self.sha256[:12]})"


class StoredSubject(_Strict):
    fingerprint: str
    file: FileStamp
    has_image: bool
    has_labels: bool
    # None of what was made from pictures.
    image: Original | None = None
    labels: Original | None = None
    extra: Mapping[int, int] = {}  # number in the label map -> FreeSurfer number
    ignore: tuple[int, ...] = ()  # numbers that are background
    pseudo: Pseudo | None = None
    licence: str = ""


class StoreInfo(_Strict):
    """store.json."""

    format: Literal[3] = FORMAT
    source: str
    scheme: dict[str, Any]
    views: tuple[View, ...]
    # How originals are read.
    trust_affine: TrustAffine | None = None
    fill_nonfinite: bool = False
    fold: FoldingTable | None = (
        None  # the numbering of all label maps; None: FreeSurfer's
    )
    subjects: dict[_SubjectName, StoredSubject]

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
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetError(
                "not a slice store (no store.json)",
                where=root,
                remedy="run `trinat prepare`; where it was stopped, the same command resumes it",
            ) from None
        except (ValidationError, UnicodeDecodeError):
            raise DatasetError(
                "store.json is damaged, or of another version of trinat",
                where=root,
                remedy="run `trinat prepare` again",
            ) from None

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.info.subjects)

    @property
    def views(self) -> tuple[View, ...]:
        return self.info.views

    @cached_property
    def scheme(self) -> LabelScheme:
        """Of whole volumes; slices of a view have the classes that are `seen_in` it."""
        labels = TypeAdapter(tuple[Label, ...]).validate_python(
            self.info.scheme["labels"]
        )
        return LabelScheme(self.info.scheme["name"], labels)

    @property
    def scheme_name(self) -> str:
        """What `load_scheme` finds the scheme by: a shipped one's name, or a table in the store."""
        own = self.root / f"{self.scheme.name}.tsv"
        return str(own) if own.is_file() else self.scheme.name

    def part(self, name: Part, split: Path | None = None) -> tuple[str, ...]:
        """The subjects of one part of a split, after checking that the split fits this store."""
        path = split or self.root / SPLIT
        assignment = read_split(path)
        assignment.check(self.participants, self.fingerprint, where=str(path))
        if not (subjects := assignment.part(name)):
            raise DatasetError(f"the part {name!r} is empty", where=path)
        return subjects

    @property
    def folds(self) -> tuple[Path, ...]:
        """The splits of a cross-validation."""
        most = _paths_of_folds(self.root / SPLIT, len(self.subjects))
        paths = [path for path in most if path.is_file()]
        if not paths or paths != most[: len(paths)]:
            raise DatasetError(
                "has no splits for cross-validation, or lacks one of them",
                where=self.root,
                remedy=f"run `trinat split {self.root} --kfold 5`",
            )
        return tuple(paths)

    def tested(self) -> tuple[str, ...]:
        """The subjects of all folds' test parts: everyone with labels, once."""
        return tuple(
            subject for fold in self.folds for subject in self.part("test", fold)
        )

    def check(self, subjects: Iterable[str]) -> None:
        """Refuse a subject whose file is not what `trinat prepare` left."""
        for subject in subjects:
            path = subject_path(self.root, subject)
            if not path.is_file() or not self.info.subjects[subject].file.renewed(path):
                raise IntegrityError(
                    "is missing, or was changed since the store was made",
                    where=path,
                    remedy="run the same `trinat prepare` again",
                )

    def pseudo_labels(self, subjects: Iterable[str]) -> str:
        """Which models made labels of these subjects; empty where none did."""
        found = {
            str(entry.pseudo)
            for s in subjects
            if (entry := self.info.subjects[s]).pseudo
        }
        return "; ".join(sorted(found))

    def file(self, subject: str) -> SubjectFile:
        if subject not in self.info.subjects:
            raise DatasetError(f"has no subject {subject!r}", where=self.root)
        return SubjectFile(subject_path(self.root, subject))

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any subject's inputs or settings; a split belongs to one fingerprint."""
        parts = sorted(
            (name, entry.fingerprint) for name, entry in self.info.subjects.items()
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def participants(self) -> tuple[Participant, ...]:
        """One entry a subject, from participants.tsv as it stands now."""
        table = self.root / "participants.tsv"
        facts = read_participants(table)
        rows = read_rows(table, required=_PARTICIPANT_COLUMNS[:2])
        people = {row["participant_id"]: row["person"] for row in rows}
        missing = [subject for subject in self.subjects if not people.get(subject)]
        if missing:
            raise DatasetError(
                f"subject {missing[0]} has no person",
                where=table,
                remedy="complete the table",
            )
        known = ((s, people[s], facts[s]) for s in self.subjects)
        return tuple(
            Participant(s, person, f.family, f.age, f.sex) for s, person, f in known
        )

    @property
    def labelled(self) -> list[Participant]:
        """Who can train, validate and test."""
        return [
            p for p in self.participants if self.info.subjects[p.subject].has_labels
        ]

    @property
    def ledger(self) -> tuple[LedgerRow, ...]:
        path = self.root / "ledger.tsv"
        rows = read_rows(path, required=_LEDGER_COLUMNS)
        return tuple(LedgerRow.model_validate(row) for row in rows)


def _paths_of_folds(path: Path, count: int) -> list[Path]:
    return [path.with_stem(f"{path.stem}-{index}") for index in range(count)]


def subject_path(root: Path, subject: str) -> Path:
    return root / "subjects" / f"{subject}.h5"


def write_participants(root: Path, subjects: Sequence[Subject]) -> None:
    """Write participants.tsv; what a reader has filled in where we know nothing stays."""
    path = root / "participants.tsv"
    rows = read_rows(path, required=("participant_id",)) if path.is_file() else ()
    known = {row["participant_id"]: row for row in rows}

    def row(subject: Subject) -> list[str | None]:
        age = None if subject.age is None else f"{subject.age:g}"
        ours = (subject.person, subject.session, subject.family, age, subject.sex)
        theirs = map(known.get(subject.id, {}).get, _PARTICIPANT_COLUMNS[1:])
        return [
            subject.id,
            *(a or b or None for a, b in zip(ours, theirs, strict=True)),
        ]

    write_tsv(path, _PARTICIPANT_COLUMNS, [row(subject) for subject in subjects])


def write_ledger(root: Path, rows: Sequence[LedgerRow]) -> None:
    write_tsv(
        root / "ledger.tsv",
        _LEDGER_COLUMNS,
        [(r.subject, r.status, r.reason) for r in rows],
    )


def _published_training(store: Store) -> tuple[str, ...]:
    """The subjects that train by the division that the store's dataset was published with."""
    name = store.info.source
    training = SOURCES[name].published_training if name in SOURCES else ()
    if not training:
        raise DatasetError(
            f"{name} has no published split",
            where=store.root,
            remedy="use --ratios or --kfold without --published",
        )
    return training


def split_store(
    root: Path,
    *,
    ratios: tuple[float, float, float] = (8, 1, 1),
    folds: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    exclude: Collection[str] = (),
    published: bool = False,
    validation: int = 0,
) -> list[tuple[Path, Split]]:
    """Write split.json, or split-0.json and so on for folds, and return what stands in them.

    The subjects of `exclude` stand in no part. With `published` the dataset's own division counts:
    `validation` of its training persons validate, or its training part alone makes the folds.
    """
    store = Store(root)
    training = _published_training(store) if published else ()
    if unknown := set(exclude) - set(store.subjects):
        raise DatasetError(f"has no subject {min(unknown)!r} to exclude", where=root)
    people = [person for person in store.labelled if person.subject not in exclude]
    path = out or root / SPLIT
    if published and folds is not None:
        people = [person for person in people if person.subject in training]
    if published and folds is None:
        ours = make_published_split(
            people, training, validation=validation, seed=seed, store=store.fingerprint
        )
        splits, paths = [ours], [path]
    elif folds is None:
        splits = [make_split(people, ratios, seed=seed, store=store.fingerprint)]
        paths = [path]
    else:
        splits = make_folds(people, folds, seed=seed, store=store.fingerprint)
        paths = _paths_of_folds(path, folds)
        if (
            out is None
        ):  # more folds of an earlier call would be taken for some of these
            for old in _paths_of_folds(path, len(store.subjects))[folds:]:
                old.unlink(missing_ok=True)
    for each, split in zip(paths, splits, strict=True):
        split.write(each)
    return list(zip(paths, splits, strict=True))
