"""Slice store: a folder with one HDF5 file per subject, and the files that they share.

store.json         scheme, views and settings; for each subject its fingerprint, the hash of its
                   file, and the files that it was made from
split.json         subjects that train, validate and test, written by `trinat split`
participants.tsv   participant, session, family, age, sex of every subject; users may complete it
ledger.tsv         every subject that the source listed: done, failed or skipped, and the reason
subjects/<id>.h5   the slices
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.splits import (
    PARTS,
    Part,
    Split,
    SubjectMetadata,
    read_split,
)
from trinat.segmentation.errors import DatasetError, IntegrityError, summarise
from trinat.segmentation.io.cells import MISSING, NO_NAME, age_in, composed, sex_in
from trinat.segmentation.io.files import (
    read_table,
    read_text,
    sha256_of,
    spreadsheet_safe,
    write_json,
    write_tsv,
)
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.label import Label
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View

# Version of store.json. Subjects' files have their own version (slices.py), and stay valid when
# this one changes.
FORMAT: Literal[3] = 3
SPLIT = "split.json"

_PARTICIPANT_COLUMNS = (
    "participant_id",
    "participant",
    "session",
    "family",
    "age",
    "sex",
)
_LEDGER_COLUMNS = ("subject", "status", "reason")


# Names of subjects become file names, so names in a store from elsewhere must be safe, too.
_SubjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]


class _Strict(BaseModel):
    """Base of immutable records that forbid unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileStamp(_Strict):
    """Hash, size and modification time of a file, to detect whether it has changed.

    `size` is in bytes, `mtime_ns` in nanoseconds since 1970.
    """

    sha256: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Return hash, size and time of a file in its present state; this reads the whole file."""
        state = path.stat()
        digest = sha256_of(path)
        return cls(sha256=digest, size=state.st_size, mtime_ns=state.st_mtime_ns)

    def renewed(self, path: Path) -> FileStamp | None:
        """Return hash, size and time of the file as it is now, or None if its content has changed.

        The file is read only if its time differs from this stamp and its size does not, and once
        in each process. The result then has the old hash and the new time. Raises OSError if the
        file is missing.
        """
        state = path.stat()
        if state.st_size != self.size:
            return None
        if state.st_mtime_ns == self.mtime_ns:
            return self
        if _hash_at(path, state.st_size, state.st_mtime_ns) != self.sha256:
            return None
        return self.model_copy(update={"mtime_ns": state.st_mtime_ns})


@cache
def _hash_at(path: Path, size: int, mtime_ns: int) -> str:
    """Return the SHA-256 of a file; it is computed once for each size and modification time.

    A store that was copied without its times is opened many times in a training run.
    """
    return sha256_of(path)


class Original(_Strict):
    """A file that a subject was made from.

    For an Analyze pair, `sha256` is the hash of header and image concatenated. `axes` are the voxel
    axes (such as ASL) if the dataset's documentation defines them and the header lacks them.
    """

    path: Path
    sha256: str
    axes: str | None = None


class Pseudo(_Strict):
    """Model that made a subject's labels, which are then pseudo-labels and not ground truth.

    `sha256` is the hash of its model.yaml. `not_predicted` names the classes that the model never
    predicts, so that no voxel has them.
    """

    model: str
    sha256: str
    not_predicted: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"pseudo-labels of {self.model} ({self.sha256[:12]})"


class StoredSubject(_Strict):
    """Entry of a subject in store.json.

    `fingerprint` is the hash of all settings and inputs. `file` has hash, size and time of the
    subject's slice file. With `has_mask`, some voxels are not used in training. `image` and
    `labels` are the original files; None where there is no such file. `extra` maps numbers of the
    label map to FreeSurfer numbers; numbers in `ignore` are background. `pseudo` is the model that
    made the labels; None if no model did. `participant` is the participant that the source named;
    in participants.tsv the user may have corrected it.
    """

    fingerprint: str
    file: FileStamp
    has_image: bool
    has_labels: bool
    has_mask: bool = False
    image: Original | None = None
    labels: Original | None = None
    extra: Mapping[int, int] = {}
    ignore: tuple[int, ...] = ()
    pseudo: Pseudo | None = None
    licence: str = ""
    participant: str = ""

    @property
    def scan(self) -> str | None:
        """SHA-256 of the original image, or else of the label map; None if there is neither.

        It is the same for one scan under two names.
        """
        original = self.image or self.labels
        return None if original is None else original.sha256


class StoreInfo(_Strict):
    """Contents of store.json.

    `source` is the name of the dataset's source, and `scheme` is the table of the label scheme.
    `trust_affine`, `fill_nonfinite` and `fold` are the settings with which originals are read;
    `fold` is the numbering of all label maps (None: FreeSurfer's). `csf` is the definition of CSF
    in the labels.
    """

    format: Literal[3] = FORMAT
    source: str
    scheme: dict[str, Any]
    views: tuple[View, ...]
    trust_affine: TrustAffine | None = None
    fill_nonfinite: bool = False
    fold: FoldingTable | None = None
    csf: Csf = "region"
    subjects: dict[_SubjectName, StoredSubject]

    def write(self, root: Path) -> None:
        """Write store.json in the folder `root`, atomically."""
        write_json(root / "store.json", self.model_dump(mode="json"))


class LedgerRow(_Strict):
    """Row of ledger.tsv: whether a subject of the dataset was prepared, or why not.

    `reason` is empty if the subject was prepared without a remark.
    """

    subject: str
    status: Literal["done", "failed", "skipped"]
    reason: str = ""


class Store:
    """A store opened for reading.

    Raises DatasetError for requests that the store cannot fulfil, IntegrityError for damaged files.
    """

    def __init__(self, root: Path) -> None:
        """Open the store in the folder `root`; this reads only store.json."""
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
        """Names of all subjects, in the order of the source."""
        return tuple(self.info.subjects)

    @property
    def views(self) -> tuple[View, ...]:
        """Views in which the store has slices."""
        return self.info.views

    @cached_property
    def scheme(self) -> LabelScheme:
        """Label scheme of whole volumes.

        For the classes of a view's slices, use `scheme.seen_in(view)`.
        """
        table = self.info.scheme
        labels = TypeAdapter(tuple[Label, ...]).validate_python(table["labels"])
        return LabelScheme(table["name"], labels)

    @property
    def scheme_name(self) -> str:
        """Argument with which `load_scheme` loads the scheme.

        It is the path of the store's own table if there is one, else the name of a shipped scheme.
        """
        own = self.root / f"{self.scheme.name}.tsv"
        return str(own) if own.is_file() else self.scheme.name

    def part(self, name: Part, split: Path | None = None) -> tuple[str, ...]:
        """Return the names of the subjects of one part of a split.

        `split` is the file of the split; None means the store's own. Raises DatasetError if the
        split does not fit the store, or if the part is unknown or empty.
        """
        if name not in PARTS:
            remedy = f"choose {', '.join(PARTS[:-1])} or {PARTS[-1]}"
            raise DatasetError(f"no part {name!r} of a split", remedy=remedy)
        subjects = self.split(split).part(name)
        if not subjects:
            where = self._path_of_split(split)
            raise DatasetError(f"the part {name!r} is empty", where=where)
        return subjects

    def split(self, path: Path | None = None) -> Split:
        """Read a split and check that it fits this store.

        `path` is the file of the split; None means the store's own.
        """
        place = self._path_of_split(path)
        assignment = read_split(place)
        assignment.check(self.metadata, self.fingerprint, where=str(place))
        return assignment

    def _path_of_split(self, given: Path | None) -> Path:
        """Return the file of a split: `given`, or the store's own if that is None."""
        return self.root / SPLIT if given is None else given

    @property
    def folds(self) -> tuple[Path, ...]:
        """Files of the cross-validation splits, in the order of their numbers.

        Raises DatasetError if there are none, or if one in the middle is missing: a
        cross-validation without one of its parts would leave participants out.
        """
        possible = paths_of_folds(self.root / SPLIT, len(self.subjects))
        paths = [path for path in possible if path.is_file()]
        if not paths or paths != possible[: len(paths)]:
            raise DatasetError(
                "has no splits for cross-validation, or lacks one of them",
                where=self.root,
                remedy=f"run `trinat split {self.root} --kfold 5`",
            )
        return tuple(paths)

    def tested(self) -> tuple[str, ...]:
        """Return the subjects of the test parts of all folds.

        Together the folds test each labelled subject once.
        """
        subjects: list[str] = []
        for fold in self.folds:
            subjects.extend(self.part("test", fold))
        return tuple(subjects)

    def check(self, subjects: Iterable[str]) -> None:
        """Raise IntegrityError for the first subject whose file changed since `trinat prepare`.

        If size and time of a file are unchanged, it is not read. If only the time has changed, its
        whole content is compared, once in each process.
        """
        for subject in subjects:
            path = subject_path(self.root, subject)
            stamp = self.info.subjects[subject].file
            if not path.is_file() or stamp.renewed(path) is None:
                raise IntegrityError(
                    "is missing, or was changed since the store was made",
                    where=path,
                    remedy="run the same `trinat prepare` again",
                )

    def pseudo_labels(self, subjects: Iterable[str]) -> str:
        """Return the models that made labels of these subjects, or "" if no model did.

        The text has the models with the beginning of their hashes, sorted and joined by "; ". A run
        records it, so that nobody mistakes pseudo-labels for ground truth.
        """
        models: set[str] = set()
        for subject in subjects:
            pseudo = self.info.subjects[subject].pseudo
            if pseudo is not None:
                models.add(str(pseudo))
        return "; ".join(sorted(models))

    def file(self, subject: str) -> SubjectFile:
        """Return the reader of a subject's slices; it opens the file at the first read.

        Raises IntegrityError if the file changed since `trinat prepare`: a run that was stopped
        leaves files with the labels of other settings.
        """
        if subject not in self.info.subjects:
            raise DatasetError(f"has no subject {subject!r}", where=self.root)
        self.check([subject])
        return SubjectFile(subject_path(self.root, subject))

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with any subject's inputs or settings.

        A split stores it, to identify the store that it was made for.
        """
        subjects = self.info.subjects.items()
        pairs = sorted((name, subject.fingerprint) for name, subject in subjects)
        return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()

    @cached_property
    def metadata(self) -> tuple[SubjectMetadata, ...]:
        """Metadata of each subject, from participants.tsv, which users complete by hand.

        Raises DatasetError, with all problems, if a subject has no row or no participant, or if an
        age or a sex cannot be parsed.
        """
        table = self.root / "participants.tsv"
        rows = _rows_by_subject(table)
        entries: list[SubjectMetadata] = []
        problems = []
        for subject in self.subjects:
            cells = rows.get(subject, {})
            if not cells.get("participant"):
                problems.append(f"subject {subject} has no participant")
            family = cells.get("family", "")
            facts: dict[str, Any] = {}
            for column, value_in in (("age", age_in), ("sex", sex_in)):
                cell = cells.get(column, "")
                if cell.lower() in MISSING:
                    continue
                try:
                    facts[column] = value_in(cell)
                except ValueError as error:
                    problems.append(f"subject {subject}, {column}: {cell!r} {error}")
            entries.append(
                SubjectMetadata(
                    subject=subject,
                    participant=cells.get("participant", ""),
                    family=None if family.lower() in MISSING else family,
                    scan=self.info.subjects[subject].scan,
                    **facts,
                )
            )
        if problems:
            raise DatasetError(
                summarise(problems), where=table, remedy="complete the table"
            )
        return tuple(entries)

    @property
    def copies(self) -> tuple[str, ...]:
        """Sentences on subjects whose scans are byte-identical, and which no split divides."""
        subjects_of: dict[str, list[str]] = defaultdict(list)
        for name, subject in self.info.subjects.items():
            if subject.scan is not None:
                subjects_of[subject.scan].append(name)
        return tuple(
            f"{', '.join(names)} have the same scan, byte for byte: they stay in one part"
            for names in subjects_of.values()
            if len(names) > 1
        )

    @property
    def labelled(self) -> list[SubjectMetadata]:
        """Metadata of the subjects with labels; only these can train, validate and test."""
        stored = self.info.subjects
        return [one for one in self.metadata if stored[one.subject].has_labels]


def paths_of_folds(path: Path, count: int) -> list[Path]:
    """Return the paths of `count` folds: for split.json, split-0.json, split-1.json, ..."""
    return [path.with_stem(f"{path.stem}-{index}") for index in range(count)]


def subject_path(root: Path, subject: str) -> Path:
    """Return the path of the HDF5 file with a subject's slices."""
    return root / "subjects" / f"{subject}.h5"


def write_participants(
    root: Path, subjects: Sequence[Subject], known: Mapping[str, StoredSubject]
) -> list[str]:
    """Write participants.tsv for these subjects; keep what users have filled in.

    Known values of `subjects` replace those in the table, except for a participant that a user has
    corrected: it differs from the one that the source named before, which is in `known`, the
    entries of store.json before this run. Cells without a known value are kept, and so are
    additional columns, and rows of other subjects: these may only have failed this time. Columns:
    participant_id, participant, session, family, age, sex.

    Returns a line for each subject whose participant in the table differs and was kept.
    """
    path = root / "participants.tsv"
    present: dict[str, dict[str, str]] = {}
    further: list[str] = []
    if path.is_file():
        present = _rows_by_subject(path)
        titles = next(iter(present.values()), {})
        further = [title for title in titles if title not in _PARTICIPANT_COLUMNS]
    rows = []
    lines = []
    for subject in subjects:
        age = None if subject.age is None else f"{subject.age:g}"
        ours = {
            "participant_id": subject.id,
            "participant": subject.participant,
            "session": subject.session,
            "family": subject.family,
            "age": age,
            "sex": subject.sex,
        }
        theirs = present.pop(subject.id, {})
        named = spreadsheet_safe(subject.participant)
        participant = theirs.get("participant") or named
        before = known.get(subject.id)
        if before is not None and participant == spreadsheet_safe(before.participant):
            participant = named
        if participant != named:
            lines.append(
                f"{subject.id}: of participant {participant}, as {path} has it; remove its row "
                f"there to take {subject.participant}"
            )
            ours["participant"] = participant
        cells = [ours[name] or theirs.get(name) for name in _PARTICIPANT_COLUMNS]
        cells += [theirs.get(title) for title in further]
        rows.append([cell or None for cell in cells])
    columns = (*_PARTICIPANT_COLUMNS, *further)
    rows += [
        [theirs.get(title) or None for title in columns] for theirs in present.values()
    ]
    write_tsv(path, columns, rows)
    return lines


def _rows_by_subject(path: Path) -> dict[str, dict[str, str]]:
    """Read participants.tsv: for each subject's name, a dictionary from column to cell.

    Cells that are empty or n/a become "". Other words are taken literally, because a participant
    may be called NA, but in Unicode's composed form.
    """
    table = read_table(path)
    for name in _PARTICIPANT_COLUMNS[:2]:
        if name not in table.titles:
            raise DatasetError(f"has no column {name!r}", where=path)
    rows: dict[str, dict[str, str]] = {}
    for row in table.rows:
        cells = {}
        for title, cell in zip(table.titles, row.cells, strict=True):
            cells[title] = "" if cell.lower() in NO_NAME else composed(cell)
        name = cells["participant_id"]
        if rows.setdefault(name, cells) != cells:
            raise DatasetError(
                f"has two different rows of {name}", where=path, remedy="delete one"
            )
    return rows


def write_ledger(root: Path, rows: Sequence[LedgerRow]) -> None:
    """Write ledger.tsv in the folder `root`: subject, status (done, failed, skipped), reason."""
    cells = [(row.subject, row.status, row.reason) for row in rows]
    write_tsv(root / "ledger.tsv", _LEDGER_COLUMNS, cells)
