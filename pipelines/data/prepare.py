"""From a dataset as it was downloaded to a slice store: each subject done, failed or skipped."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from natsort import natsorted
from pydantic import BaseModel, ConfigDict, Field

from trinat.pipelines.common.cases import Case, Found
from trinat.pipelines.common.config import check, read_yaml
from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import claimed
from trinat.pipelines.common.process import isolated
from trinat.pipelines.data.unpack import unpack_archives
from trinat.pipelines.predict.ledger import ledgers_in, read_entries
from trinat.pipelines.predict.outputs import CaseNames
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.predict.run import predict
from trinat.pipelines.predict.settings import OutputSettings
from trinat.segmentation.data.preparing import (
    Cut,
    digest_of,
    fingerprint,
    prepare_subject,
)
from trinat.segmentation.data.slices import SubjectFile, scheme_table
from trinat.segmentation.data.sources.base import (
    Exclusion,
    Listing,
    SourceOptions,
    Subject,
    facts_of,
    read_participants,
)
from trinat.segmentation.data.sources.registry import list_subjects
from trinat.segmentation.data.store import (
    FileStamp,
    LedgerRow,
    Original,
    Pseudo,
    Store,
    StoredSubject,
    StoreInfo,
    subject_path,
    write_ledger,
    write_participants,
)
from trinat.segmentation.errors import (
    ConfigError,
    DatasetError,
    FormatError,
    InterruptedRunError,
    TrinatError,
    is_disk_full,
    reason_of,
)
from trinat.segmentation.io.files import read_bytes, sha256_of
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.streams import NO_CHECKSUM, has_checksum
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.zoo import MODEL_FILE
from trinat.segmentation.space.views import View

# Networks halve a slice four times.
Side = Annotated[int, Field(ge=32, le=256, multiple_of=16)]
Say = Callable[[str], None]
Finished = Callable[
    ["Outcome", int, int], None
]  # what became of it, how many are, of how many


_OUTPUTS = ("store.json", "subjects", "participants.tsv", "ledger.tsv", "labels", "png")


class PrepareConfig(BaseModel):
    """What decides the content of a store; `--config FILE` holds any of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    root: Path
    labels: str = "quicknat33"  # the label scheme: a name or a TSV file
    views: tuple[View, ...] | None = None  # default: all that the scheme can have
    grid: tuple[Side, Side, Side] = (
        256,
        256,
        256,
    )  # of the working grid, in voxels of 1 mm
    image: str | None = None  # which of a dataset's images
    label_maps: str | None = None  # which of a dataset's label maps
    subjects_dir: Path | None = None
    label_with: str | None = None  # a model that makes the labels
    participants: Path | None = None  # a table of age, sex and family by person
    extra: dict[int, int] = Field(
        default_factory=dict
    )  # label number -> FreeSurfer number
    ignore: tuple[int, ...] = ()  # label numbers that are background
    fold: str | None = (
        None  # the label maps' numbering: a folding table's name or TSV file
    )
    trust_affine: TrustAffine | None = None  # what to believe where headers do not say
    fill_nonfinite: bool = False  # NaN and infinite voxels of images become 0
    require_checksum: bool = (
        False  # of every scan and label map; see segmentation/io/streams.py
    )


@dataclass(frozen=True)
class Outcome:
    subject: str
    status: Literal["done", "failed"]
    reason: str = ""
    stored: StoredSubject | None = None  # of what is done

    @property
    def failure(self) -> str:
        return self.reason if self.status == "failed" else ""


@dataclass(frozen=True)
class Summary:
    made: int
    current: int
    failed: int
    skipped: int
    rows: tuple[LedgerRow, ...]

    @property
    def exit(self) -> Exit:
        return batch_exit(done=self.made + self.current, failed=self.failed)


@dataclass(frozen=True)
class _Job:
    """All that a worker process needs for one subject."""

    subject: Subject
    path: Path
    cut: Cut
    require_checksum: bool
    pseudo: Pseudo | None
    known: StoredSubject | None  # what the store said before

    def bring_up_to_date(self) -> StoredSubject:
        """Make the subject's file unless it is current; what the store is to say of it."""
        subject = self.subject
        image, labels = digest_of(subject.image), digest_of(subject.labels)
        wanted = fingerprint(subject, self.cut, image, labels)
        stamp = self._current(wanted)
        if stamp is None:
            prepare_subject(subject, self.path, self.cut, wanted)
            stamp = FileStamp.of(self.path)
        return StoredSubject(
            fingerprint=wanted,
            file=stamp,
            has_image=subject.image is not None,
            has_labels=subject.labels is not None,
            image=_original(subject.image, image, subject.image_axes),
            labels=_original(subject.labels, labels, subject.labels_axes),
            extra=subject.extra,
            ignore=subject.ignore,
            pseudo=self.pseudo,
            licence=subject.licence,
        )

    def _current(self, wanted: str) -> FileStamp | None:
        """The file's, if it is of these inputs and settings, and still as it was written."""
        if not self.path.exists():
            return None
        file = SubjectFile(self.path)
        try:
            stored = file.fingerprint
        except (TrinatError, OSError, KeyError):
            return None  # of an older format, or damaged
        finally:
            file.close()
        if stored != wanted:
            return None
        if self.known is None or self.known.fingerprint != wanted:
            return FileStamp.of(
                self.path
            )  # made by a run that was stopped before its end
        return self.known.file.renewed(self.path)


def _original(
    path: Path | None, digest: str | None, axes: str | None
) -> Original | None:
    """A file's place, for whoever has another current folder; links are not followed."""
    if path is None or digest is None:
        return None
    return Original(path=path.absolute(), sha256=digest, axes=axes)


def read_config(path: Path | None, overrides: dict[str, Any]) -> PrepareConfig:
    """The settings of a YAML file, with those of the command line in front."""
    values = {} if path is None else read_yaml(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    return check(
        PrepareConfig, {**values, **given}, path or "command line", typed=given
    )


def run(
    config: PrepareConfig,
    out: Path,
    *,
    jobs: int = 1,
    say: Say = lambda line: None,
    finished: Finished = lambda outcome, done, total: None,
) -> Summary:
    """Bring the store at `out` up to date with its source; what is current stays as it is."""
    scheme = load_scheme(config.labels)
    views = _views(config, scheme)
    cut = Cut(scheme, views, config.grid, config.trust_affine, config.fill_nonfinite)
    with claimed(out, _OUTPUTS, within=["subjects"], is_known=_is_store(out)):
        (out / "subjects").mkdir(exist_ok=True)
        unpack_archives(config.source, config.root, say)
        listing = _listing(config)
        pseudo = None
        if config.label_with is not None:
            listing, pseudo = _label(
                listing, config.label_with, out / "labels", cut, say
            )
        elif listing.advice:
            say(listing.advice)
        table = out / f"{scheme.name}.tsv"
        if Path(config.labels).resolve() != table.resolve():
            table.unlink(missing_ok=True)
            if config.labels != scheme.name:  # one's own
                shutil.copyfile(config.labels, table)
        known: dict[str, StoredSubject] = {}
        with suppress(DatasetError):  # there is none yet, or none of this version
            known = Store(out).info.subjects
        todo = [
            _Job(
                s,
                subject_path(out, s.id),
                cut,
                config.require_checksum,
                pseudo,
                known.get(s.id),
            )
            for s in listing.subjects
        ]
        before = [_stamp(job.path) for job in todo]
        made = isolated(_prepare, todo, jobs, killed=_killed, finished=finished)
        outcomes = {outcome.subject: outcome for outcome in made}
        # By the files, not by what workers say: one that dies takes along what its neighbour has
        # just made, and whoever tries that subject again finds it current.
        current = sum(
            outcomes[job.subject.id].status == "done" and _stamp(job.path) == stamp
            for job, stamp in zip(todo, before, strict=True)
        )
        return _conclude(config.source, out, listing, outcomes, cut, current)


def _is_store(out: Path) -> bool:
    """Of whatever version: one from before folders were marked is brought up to date."""
    path = out / "store.json"
    try:
        return not path.is_symlink() and "subjects" in json.loads(read_bytes(path))
    except (TrinatError, OSError, ValueError, TypeError):
        return False


def _stamp(path: Path) -> tuple[int, int] | None:
    """Identifies one state of a file, which is always replaced, never changed."""
    if path.exists():
        state = path.stat()
        return state.st_ino, state.st_mtime_ns
    return None


def _views(config: PrepareConfig, scheme: LabelScheme) -> tuple[View, ...]:
    if config.views is None:
        return tuple(
            v
            for v in View
            if v is not View.SAGITTAL or not scheme.has_unpartnered_sides
        )
    if View.SAGITTAL in config.views:
        _ = scheme.merged  # refuses where sides cannot be merged
    return tuple(view for view in View if view in config.views)


def _listing(config: PrepareConfig) -> Listing:
    options = SourceOptions(
        scheme=config.labels,
        image=config.image,
        labels=config.label_maps,
        subjects_dir=config.subjects_dir,
        extra=config.extra,
        ignore=config.ignore,
        fold=None if config.fold is None else load_folding(config.fold),
    )
    keep = config.label_with is not None
    listing = list_subjects(config.source, config.root, options, keep_unlabelled=keep)
    if config.participants is None:
        return listing
    if not config.participants.is_file():
        raise ConfigError("no such table", where=config.participants)
    people = read_participants(config.participants)
    known = []
    for subject in listing.subjects:
        facts = people.get(subject.person) or facts_of(people, subject.id)
        family, sex = facts.family or subject.family, facts.sex or subject.sex
        age = subject.age if facts.age is None else facts.age
        known.append(replace(subject, family=family, age=age, sex=sex))
    return replace(listing, subjects=tuple(known))


def _label(
    listing: Listing, name: str, out: Path, cut: Cut, say: Callable[[str], None]
) -> tuple[Listing, Pseudo]:
    """The same scans with label maps of the model `name`, written to `out` as by trinat predict."""
    model = load_model(name)
    digest, unknown = sha256_of(model.folder / MODEL_FILE), _unknown(cut.scheme, model)
    pseudo = Pseudo(model=model.name, sha256=digest, not_predicted=unknown)
    output = OutputSettings(
        picture=False, trust_affine=cut.trust_affine, fill_nonfinite=cut.fill_nonfinite
    )
    cases = [
        Case(s.id, s.image, s.id, axes=s.image_axes)
        for s in listing.subjects
        if s.image
    ]
    plan = PredictRequest(
        inputs=(), found=Found(tuple(cases)), out=out, model=name, output=output
    )
    outcome = predict(
        plan, on_entry=lambda entry: say(f"{entry.case}: {entry.reason or pseudo}")
    )
    if outcome.interrupted:
        remedy = "the same command goes on"
        raise InterruptedRunError(
            "stopped while labels were made", where=out, remedy=remedy
        )
    entries, scans = (
        read_entries(ledgers_in(out)),
        {case.id: case.path for case in cases},
    )

    def labelled(subject: Subject) -> Subject | Exclusion:
        entry = entries.get(subject.id)
        if entry is None or entry.status == "failed":
            reason = entry.reason if entry else "no image"
            return Exclusion(subject.id, reason, broken=True)
        return replace(
            subject,
            labels=CaseNames(out, subject.id, {}, bids=False).labels(
                output, scans[subject.id]
            ),
            labels_axes=None,
            extra={},
            ignore=(),
            fold=None,
            note="; ".join(filter(None, (subject.note, str(pseudo)))),
        )

    return Listing.of([*map(labelled, listing.subjects), *listing.exclusions]), pseudo


def _unknown(scheme: LabelScheme, model: Model) -> tuple[str, ...]:
    """Classes of a scheme that the model's labels never hold: no structure in them is predicted."""
    absent = model.info.not_predicted
    known = [label.numbers for label in model.scheme.labels if label.name not in absent]
    predicted = set().union(*known)
    return tuple(
        unknown.name
        for unknown in scheme.labels
        if unknown.rim_of is None and not predicted & set(unknown.numbers)
    )


def _killed(job: _Job) -> Outcome:
    job.path.unlink(missing_ok=True)
    reason = "its process was killed (out of memory?): try again with fewer --jobs"
    return Outcome(job.subject.id, "failed", reason)


def _prepare(job: _Job) -> Outcome:
    """Prepare one subject unless it is current; whatever is wrong with it stays its own matter."""
    name = job.subject.id
    try:
        files = [path for path in (job.subject.image, job.subject.labels) if path]
        if job.require_checksum and (
            bad := next((p for p in files if not has_checksum(p)), None)
        ):
            raise FormatError(NO_CHECKSUM, where=bad)
        return Outcome(name, "done", stored=job.bring_up_to_date())
    except Exception as error:
        if is_disk_full(error):
            raise  # No other subject has room either, and what is there stays.
        # An older state of a subject that cannot be made any more would pass for the new one.
        job.path.unlink(missing_ok=True)
        return Outcome(name, "failed", reason_of(error))


def _conclude(
    source: str,
    out: Path,
    listing: Listing,
    outcomes: dict[str, Outcome],
    cut: Cut,
    current: int,
) -> Summary:
    """Write what the subjects have in common; store.json, which opens the store, comes last."""
    done = [s for s in listing.subjects if outcomes[s.id].status == "done"]
    rows = [
        LedgerRow(
            subject=s.id,
            status=outcomes[s.id].status,
            reason=outcomes[s.id].reason
            or ("" if s.labels else "no labels: for prediction only"),
        )
        for s in listing.subjects
    ]
    rows += [
        LedgerRow(
            subject=e.name, status="failed" if e.broken else "skipped", reason=e.reason
        )
        for e in listing.exclusions
    ]
    rows = natsorted(rows, key=lambda row: row.subject)
    write_ledger(out, rows)
    if not listing.subjects:
        raise DatasetError("no subject can be used", where=out / "ledger.tsv")
    stored = {s.id: made for s in done if (made := outcomes[s.id].stored)}
    for path in (out / "subjects").glob("*.h5"):
        if path.stem not in stored:
            path.unlink()  # no longer in the source
    write_participants(out, done)
    StoreInfo(
        source=source,
        scheme=scheme_table(cut.scheme),
        views=cut.views,
        trust_affine=cut.trust_affine,
        fill_nonfinite=cut.fill_nonfinite,
        fold=done[0].fold if done else None,  # All come from one source.
        subjects=stored,
    ).write(out)
    counts = Counter(row.status for row in rows)
    new = len(done) - current
    return Summary(new, current, counts["failed"], counts["skipped"], tuple(rows))
