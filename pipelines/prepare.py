"""From a dataset as it was downloaded to a slice store: each subject done, failed or skipped."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import yaml
from natsort import natsorted
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.batch.lock import run_lock
from pipelines.catalogue import archives_of
from pipelines.exits import Exit, batch_exit
from segmentation.data.archive import extract
from segmentation.data.participants import read_participants
from segmentation.data.preparing import fingerprint, prepare_subject
from segmentation.data.slices import SubjectFile, scheme_table
from segmentation.data.source import Listing, SourceOptions, Subject
from segmentation.data.sources import SOURCES, Source, list_subjects
from segmentation.data.store import (
    LedgerRow,
    StoredSubject,
    StoreInfo,
    subject_path,
    write_ledger,
    write_participants,
)
from segmentation.errors import ConfigError, DatasetError, TrinatError
from segmentation.labels import LabelScheme, load_scheme
from segmentation.views import View
from segmentation.volume import Volume

__all__ = ["Outcome", "PrepareConfig", "Summary", "read_config", "run"]

Say = Callable[[str], None]


class PrepareConfig(BaseModel):
    """What decides the content of a store; `--config FILE` holds any of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    root: Path
    labels: str = "quicknat33"  # the label scheme: a name or a TSV file
    views: tuple[View, ...] | None = None  # default: all that the scheme can have
    image: str | None = None  # which of a dataset's images
    label_maps: str | None = None  # which of a dataset's label maps
    subjects_dir: Path | None = None
    participants: Path | None = None  # a table of age, sex and family by person
    extra: dict[int, int] = Field(default_factory=dict)  # label number -> FreeSurfer number
    ignore: tuple[int, ...] = ()  # label numbers that are background


@dataclass(frozen=True)
class Outcome:
    subject: str
    status: Literal["done", "failed"]
    reason: str = ""
    was_current: bool = False


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
    scheme: LabelScheme
    views: tuple[View, ...]


def read_config(path: Path | None, overrides: dict[str, Any]) -> PrepareConfig:
    """The settings of a YAML file, with those of the command line in front."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = yaml.safe_load(path.read_text("utf-8")) or {}
        except FileNotFoundError:
            raise ConfigError("no such file", where=path) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"not YAML ({error})", where=path) from None
        if not isinstance(values, dict):
            raise ConfigError("does not hold keys and values", where=path)
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return PrepareConfig.model_validate({**values, **given})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        origin = path if key.partition(".")[0] not in given else "command line"
        raise ConfigError(f"{key}: {first['msg']}", where=origin) from None


def run(
    config: PrepareConfig,
    out: Path,
    *,
    jobs: int = 1,
    say: Say = lambda line: None,
    finished: Callable[[Outcome, int, int], None] = lambda outcome, done, total: None,
) -> Summary:
    """Bring the store at `out` up to date with its source; what is current stays as it is."""
    scheme = load_scheme(config.labels)
    views = _views(config, scheme)
    (out / "subjects").mkdir(parents=True, exist_ok=True)
    with run_lock(out / ".lock"):
        _clear_leftovers(out)
        _unpack_archives(config, say)
        listing = _listing(config)
        if listing.advice:
            say(listing.advice)
        outcomes: dict[str, Outcome] = {}
        todo = [
            _Job(subject, subject_path(out, subject.id), scheme, views)
            for subject in listing.subjects
        ]
        for outcome in _work(todo, jobs):
            outcomes[outcome.subject] = outcome
            finished(outcome, len(outcomes), len(todo))
        return _conclude(config, out, listing, outcomes, scheme, views)


def _views(config: PrepareConfig, scheme: LabelScheme) -> tuple[View, ...]:
    if config.views is None:
        return tuple(v for v in View if v is not View.SAGITTAL or not scheme.has_unpartnered_sides)
    if View.SAGITTAL in config.views:
        _ = scheme.merged  # refuses where sides cannot be merged
    return tuple(view for view in View if view in config.views)


def _clear_leftovers(out: Path) -> None:
    """What a killed run was writing. The lock tells that nobody writes it now."""
    for path in (*out.glob(".trinat-*.tmp"), *out.glob("subjects/.trinat-*.tmp")):
        path.unlink()


def _listing(config: PrepareConfig) -> Listing:
    options = SourceOptions(
        scheme=config.labels,
        image=config.image,
        labels=config.label_maps,
        subjects_dir=config.subjects_dir,
        extra=config.extra,
        ignore=config.ignore,
    )
    listing = list_subjects(config.source, config.root, options)
    if config.participants is None:
        return listing
    if not config.participants.is_file():
        raise ConfigError("no such table", where=config.participants)
    people = read_participants(config.participants)
    known = []
    for subject in listing.subjects:
        facts = people.get(subject.person) or people.get(subject.id)
        if facts:
            subject = replace(
                subject,
                family=facts.family or subject.family,
                age=subject.age if facts.age is None else facts.age,
                sex=facts.sex or subject.sex,
            )
        known.append(subject)
    return replace(listing, subjects=tuple(known))


def _work(todo: list[_Job], jobs: int) -> Iterator[Outcome]:
    """Outcomes as they come. A worker that dies takes nothing with it but its own subject."""
    if jobs <= 1:
        yield from map(_prepare, todo)
        return
    waiting = list(todo)
    while waiting:
        crashed: list[_Job] = []
        with _pool(jobs) as pool:
            running: dict[Future[Outcome], _Job] = {}
            while running or (waiting and not crashed):
                # No more than are at work, so that a broken pool leaves few in doubt.
                while waiting and not crashed and len(running) < jobs:
                    job = waiting.pop(0)
                    try:
                        running[pool.submit(_prepare, job)] = job
                    except BrokenProcessPool:
                        crashed.append(job)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        crashed.append(job)
        # Whose fault it was is not told: each suspect gets a process of its own.
        for job in crashed:
            yield _alone(job)


def _alone(job: _Job) -> Outcome:
    with _pool(1) as pool:
        try:
            return pool.submit(_prepare, job).result()
        except BrokenProcessPool:
            reason = "its process was killed (out of memory?): try again with fewer --jobs"
            job.path.unlink(missing_ok=True)
            return Outcome(job.subject.id, "failed", reason)


def _pool(workers: int) -> ProcessPoolExecutor:
    # Ctrl-C reaches the whole process group: the parent alone decides what it means.
    return ProcessPoolExecutor(
        workers, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )


def _prepare(job: _Job) -> Outcome:
    """Prepare one subject unless it is current; whatever is wrong with it stays its own matter."""
    name = job.subject.id
    try:
        if _is_current(job):
            return Outcome(name, "done", was_current=True)
        prepare_subject(job.subject, job.path, scheme=job.scheme, views=job.views)
    except (TrinatError, OSError, MemoryError) as error:
        # An older state of a subject that cannot be made any more would pass for the new one.
        job.path.unlink(missing_ok=True)
        return Outcome(name, "failed", " ".join(str(error).split()) or type(error).__name__)
    return Outcome(name, "done")


def _is_current(job: _Job) -> bool:
    if not job.path.exists():
        return False
    file = SubjectFile(job.path)
    try:
        stored = file.fingerprint
    except (TrinatError, OSError, KeyError):
        return False  # of an older format, or damaged
    finally:
        file.close()
    return stored == fingerprint(job.subject, scheme=job.scheme, views=job.views)


def _conclude(
    config: PrepareConfig,
    out: Path,
    listing: Listing,
    outcomes: dict[str, Outcome],
    scheme: LabelScheme,
    views: tuple[View, ...],
) -> Summary:
    """Write what the subjects have in common, the ledger last but for store.json."""
    done = [s for s in listing.subjects if outcomes[s.id].status == "done"]
    rows = [
        LedgerRow(
            subject=s.id,
            status=outcomes[s.id].status,
            reason=outcomes[s.id].reason or ("" if s.labels else "no labels: for prediction only"),
        )
        for s in listing.subjects
    ]
    rows += [
        LedgerRow(subject=e.name, status="failed" if e.broken else "skipped", reason=e.reason)
        for e in listing.exclusions
    ]
    rows = natsorted(rows, key=lambda row: row.subject)
    stored = {}
    for subject in done:
        file = SubjectFile(subject_path(out, subject.id))
        stored[subject.id] = StoredSubject(
            fingerprint=file.fingerprint,
            has_image=subject.image is not None,
            has_labels=subject.labels is not None,
            licence=subject.licence,
        )
        file.close()
    for path in (out / "subjects").glob("*.h5"):
        if path.stem not in stored:
            path.unlink()  # no longer in the source
    write_participants(out, done)
    write_ledger(out, rows)
    StoreInfo(
        source=config.source, scheme=scheme_table(scheme), views=views, subjects=stored
    ).write(out)
    current = sum(outcome.was_current for outcome in outcomes.values())
    failed = sum(row.status == "failed" for row in rows)
    return Summary(
        made=len(done) - current,
        current=current,
        failed=failed,
        skipped=sum(row.status == "skipped" for row in rows),
        rows=tuple(rows),
    )


def _unpack_archives(config: PrepareConfig, say: Say) -> None:
    """Unpack what is needed of the dataset's archives in `root`, each beside itself, once."""
    source, limits = SOURCES.get(config.source), archives_of(config.source)
    if source is None or not config.root.is_dir():
        return
    for archive in natsorted(config.root.iterdir()):
        if archive.name not in limits:
            continue
        folder = archive.with_name(archive.name.partition(".tar")[0])
        if folder.exists():
            continue
        say(f"unpacking what is needed of {archive.name}")
        partial = archive.with_name(f".{folder.name}.unpacking")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            extract(
                archive,
                partial,
                limits=limits[archive.name],
                wanted=source.wanted_member,
                received=lambda path: _convert_analyze(path, source),
            )
            if not any(partial.iterdir()):
                raise DatasetError("holds nothing that this source uses", where=archive)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _convert_analyze(path: Path, source: Source) -> None:
    """Replace an Analyze pair, once both halves are there, by a .nii.gz that knows its axes.

    A pair that cannot be read stays: its subject's own turn will say why.
    """
    axes = source.member_axes(path)
    header, voxels = path.with_suffix(".hdr"), path.with_suffix(".img")
    if axes is None or not (header.is_file() and voxels.is_file()):
        return
    is_labels = path.parent.name == "FSL_SEG"
    try:
        volume = Volume.read(header, axes=axes, labels=is_labels)
    except TrinatError:
        return
    volume.write(header.with_suffix(".nii.gz"), labels=is_labels)
    header.unlink()
    voxels.unlink()
