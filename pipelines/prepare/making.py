"""trinat prepare: from a downloaded dataset to a slice store.

A store has a file for each subject, with its image and labels on a grid of 1 mm, in axial, coronal
and sagittal slices. store.json describes the store, participants.tsv the subjects, and ledger.tsv
says for each subject whether it is done, failed or skipped. The same command makes subjects that
are new or have changed, and leaves the others alone.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from natsort import natsorted

from trinat.pipelines.common.config import check, read_yaml
from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.text import count
from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.jobs.pool import run_isolated
from trinat.pipelines.jobs.progress import BatchProgress, no_progress
from trinat.pipelines.prepare.labelling import add_csf_of_model, label_with_model
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.prepare.subject_job import (
    Outcome,
    SubjectJob,
    killed,
    make_subject,
)
from trinat.pipelines.prepare.unpack import unpack_archives
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.participants_check import match_participants, read_given
from trinat.segmentation.data.identity import clash_among
from trinat.segmentation.data.preparing import Cut
from trinat.segmentation.data.slices import scheme_table
from trinat.segmentation.data.sources.base import (
    STRIPPED,
    Exclusion,
    Listing,
    SourceOptions,
    Subject,
)
from trinat.segmentation.data.sources.registry import SOURCES, list_subjects
from trinat.segmentation.data.store import (
    LedgerRow,
    Store,
    StoredSubject,
    StoreInfo,
    subject_path,
    write_ledger,
    write_participants,
)
from trinat.segmentation.errors import DatasetError
from trinat.segmentation.labels import Csf
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme, load_scheme
from trinat.segmentation.space.views import View

_log = logging.getLogger(__name__)

_OUTPUTS = ("store.json", "subjects", "participants.tsv", "ledger.tsv", "labels", "png")


@dataclass(frozen=True)
class Summary:
    """Numbers of subjects by outcome, and the rows of ledger.tsv, which has one for each subject.

    `made` subjects were written by this run, and `current` ones were up to date before it. The four
    numbers add up to the number of rows.
    """

    made: int
    current: int
    failed: int
    skipped: int
    rows: tuple[LedgerRow, ...]

    @property
    def exit(self) -> Exit:
        """The exit status of the command."""
        return batch_exit(done=self.made + self.current, failed=self.failed)


def read_config(path: Path | None, overrides: Mapping[str, Any]) -> PrepareConfig:
    """Read the settings of a store from a YAML file and from options of the command line.

    `overrides` are the options; they take precedence over the file, except where they are None.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values = read_yaml(path)
    given = {key: value for key, value in overrides.items() if value is not None}
    values.update(given)
    return check(PrepareConfig, values, path or "command line", typed=given)


def prepare_store(
    config: PrepareConfig,
    out: Path,
    *,
    jobs: int = 1,
    finished: BatchProgress = no_progress,
) -> Summary:
    """Write the slices of all subjects of a dataset to the store `out`, unless they are up to date.

    `jobs` is the number of processes. `finished` is called with the outcome of each subject, the
    number of subjects done and the total. DatasetError if no subject can be used, or the source
    cannot be opened; the error of a single subject is in its row of ledger.tsv.
    """
    scheme = load_scheme(config.labels)
    views = _views(config, scheme)
    cut = Cut(scheme, views, config.grid, config.trust_affine, config.fill_nonfinite)
    with claimed(out, _OUTPUTS, within=["subjects"]):
        known = _known_subjects(out, config.source)
        (out / "subjects").mkdir(exist_ok=True)
        if config.participants is not None:
            read_given(config.participants)  # refused before hours of unpacking
        unpack_archives(config.source, config.root)
        listing = _list_subjects(config)
        pseudo = None
        csf: Csf = "region"
        if config.label_with is not None:
            listing, pseudo, csf = label_with_model(
                listing, config.label_with, out / "labels", cut
            )
        elif listing.advice:
            _log.info("%s", listing.advice)
        if config.csf_with is not None:
            listing = add_csf_of_model(listing, config.csf_with, out / "labels", cut)
            csf = "intracranial"

        # Copy a label scheme of the user into the store; delete the copy of an earlier run.
        table = out / f"{scheme.name}.tsv"
        if Path(config.labels).resolve() != table.resolve():
            table.unlink(missing_ok=True)
            if config.labels != scheme.name:
                shutil.copyfile(config.labels, table)

        todo = [
            SubjectJob(
                subject=subject,
                path=subject_path(out, subject.id),
                cut=cut,
                require_checksum=config.require_checksum,
                pseudo=pseudo,
                known=known.get(subject.id),
            )
            for subject in listing.subjects
        ]

        stamps_before = [_file_state(job.path) for job in todo]
        made = run_isolated(make_subject, todo, jobs, killed=killed, finished=finished)
        outcomes = {outcome.subject: outcome for outcome in made}
        # Count by the files, not by the answers of workers: a worker that died may have written its
        # subject before, and the worker that repeats the subject then finds it current.
        current = 0
        for job, stamp in zip(todo, stamps_before, strict=True):
            is_done = outcomes[job.subject.id].status == "done"
            if is_done and _file_state(job.path) == stamp:
                current += 1
        return _write_store_tables(
            config.source, out, listing, outcomes, known, cut, csf, current
        )


def _known_subjects(out: Path, source: str) -> Mapping[str, StoredSubject]:
    """Return the entries of the present store; empty if there is none, or one of another version.

    Raises DatasetError for a store of another source, whose subjects would be deleted.
    """
    try:
        info = Store(out).info
    except DatasetError:
        return {}
    if info.source != source:
        raise DatasetError(
            f"has a store of the source {info.source}",
            where=out,
            remedy="give another folder by --out, or delete this one",
        )
    return info.subjects


def _file_state(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time (ns) of a file; None if it does not exist.

    Files of a store are replaced, never changed in place, so a new file has other values.
    """
    if path.exists():
        state = path.stat()
        return state.st_ino, state.st_mtime_ns
    return None


def _views(config: PrepareConfig, scheme: LabelScheme) -> tuple[View, ...]:
    """Return the views to cut slices in: those of the settings, or all that the scheme allows.

    Sagittal slices do not show sides, so a scheme with a structure on one side only has none.
    """
    if config.views is None:
        views = list(View)
        if scheme.has_unpartnered_sides:
            views.remove(View.SAGITTAL)
        return tuple(views)
    if View.SAGITTAL.value in config.views:
        _ = scheme.merged  # raises if sides cannot be merged
    return tuple(view for view in View if view.value in config.views)


def _list_subjects(config: PrepareConfig) -> Listing:
    """List the subjects of a dataset, with age, sex and family from participants tables.

    The result also has the entries of the dataset that cannot be used, with reasons. The tables are
    the dataset's own and the one of the user. Entries that are not understood are logged.
    """
    fold = None
    if config.numbering is not None:
        fold = load_folding(config.numbering)
    options = SourceOptions(
        scheme=config.labels,
        image=config.image,
        labels=config.label_maps,
        subjects_dir=config.subjects_dir,
        extra=config.extra,
        ignore=config.ignore,
        fold=fold,
    )
    keep = config.label_with is not None
    listing = list_subjects(config.source, config.root, options, keep_unlabelled=keep)
    stripped = [subject for subject in listing.subjects if subject.note == STRIPPED]
    whole = [subject for subject in listing.subjects if subject.note != STRIPPED]
    if stripped and whole and not config.mixed_heads:
        # A network would learn two kinds of scans, and nobody has asked for that.
        remedy = "give --mixed-heads"
        if "image" in SOURCES[config.source].uses:
            remedy = f"name one kind with --image, or {remedy}"
        beside = count(len(whole), "whole head")
        reason = f"only a skull-stripped image, beside {beside}: {remedy}"
        refused = [Exclusion(subject.id, reason, broken=True) for subject in stripped]
        listing = replace(
            listing,
            subjects=tuple(whole),
            exclusions=(*listing.exclusions, *refused),
        )
    subjects = listing.subjects
    clash = clash_among(subject.participant for subject in subjects)
    if clash:
        _log.warning("%s", clash)
    own = SOURCES[config.source].participants
    if own:
        subjects = _with_age_sex_family(subjects, config.root / own, config)
    if config.participants is not None:
        subjects = _with_age_sex_family(subjects, config.participants, config)
    return replace(listing, subjects=subjects)


def _with_age_sex_family(
    found: Sequence[Subject], table: Path, config: PrepareConfig
) -> tuple[Subject, ...]:
    """Return the subjects with age, sex and family from a participants table.

    Values in the table replace those that a subject has already.
    """
    names = [(subject.id, subject.participant) for subject in found]
    is_given = table == config.participants
    scans = dict.fromkeys(names, ())
    matched = match_participants(table, scans, strict=config.strict, is_given=is_given)
    # A scan without a row gets the facts of another scan of the participant.
    row_of = {participant: row for (_, participant), row in matched.rows.items()}
    subjects = []
    for name, subject in zip(names, found, strict=True):
        row = matched.rows.get(name) or row_of.get(subject.participant)
        facts = Facts() if row is None else matched.table.facts[row]
        age = subject.age if facts.age is None else facts.age
        family = facts.family or subject.family
        sex = facts.sex or subject.sex
        subjects.append(replace(subject, family=family, age=age, sex=sex))
    return tuple(subjects)


def _write_store_tables(
    source: str,
    out: Path,
    listing: Listing,
    outcomes: Mapping[str, Outcome],
    known: Mapping[str, StoredSubject],
    cut: Cut,
    csf: Csf,
    current: int,
) -> Summary:
    """Write the tables of the store, and return the numbers of its subjects.

    store.json, which opens the store, is written last. `outcomes` has the outcome of each subject
    by its id. `csf` is "region" if CSF in the labels is a small region, as in aseg, and
    "intracranial" if it is all fluid inside the skull. `listing` has the subjects and the entries
    that cannot be used. `known` has the subjects of the store before this run, and `current` is the
    number of those that were up to date.
    """
    rows = _ledger_rows(listing, outcomes, known)
    write_ledger(out, rows)
    if not listing.subjects:
        raise DatasetError("no subject can be used", where=out / "ledger.tsv")
    done = []
    stored = {}
    for subject in listing.subjects:
        outcome = outcomes[subject.id]
        if outcome.status != "done":
            continue
        done.append(subject)
        if outcome.stored is not None:
            stored[subject.id] = outcome.stored
    for path in (out / "subjects").glob("*.h5"):
        if path.stem not in stored:
            path.unlink()  # no longer in the source
    for line in write_participants(out, done, known):
        _log.warning("%s", line)
    fold = None
    if done:
        fold = done[0].fold  # All come from one source.
    info = StoreInfo(
        source=source,
        scheme=scheme_table(cut.scheme),
        views=cut.views,
        trust_affine=cut.trust_affine,
        fill_nonfinite=cut.fill_nonfinite,
        fold=fold,
        csf=csf,
        subjects=stored,
    )
    info.write(out)
    for line in Store(out).copies:
        _log.info("%s", line)
    counts = Counter(row.status for row in rows)
    return Summary(
        made=len(done) - current,
        current=current,
        failed=counts["failed"],
        skipped=counts["skipped"],
        rows=tuple(rows),
    )


def _ledger_rows(
    listing: Listing, outcomes: Mapping[str, Outcome], known: Iterable[str]
) -> list[LedgerRow]:
    """Return the rows of ledger.tsv: each subject, with done, failed or skipped and the reason.

    Entries of the dataset that could not be used have a row, too, and so have `known` subjects that
    the store had before and that are no longer in the dataset. Rows are in natural order.
    """
    rows = []
    notes = {subject.note for subject in listing.subjects}
    for subject in listing.subjects:
        outcome = outcomes[subject.id]
        reason = outcome.reason
        if not reason and subject.note == STRIPPED and len(notes) > 1:
            reason = f"{STRIPPED}, while other subjects are whole heads"
        if not reason and not subject.labels:
            reason = "no labels: for prediction only"
        row = LedgerRow(subject=subject.id, status=outcome.status, reason=reason)
        rows.append(row)
    for exclusion in listing.exclusions:
        status: Literal["failed", "skipped"] = "skipped"
        if exclusion.broken:
            status = "failed"
        row = LedgerRow(subject=exclusion.name, status=status, reason=exclusion.reason)
        rows.append(row)
    present = {row.subject for row in rows}
    for name in known:
        if name not in present:
            reason = "no longer in the source: its slices are deleted"
            rows.append(LedgerRow(subject=name, status="skipped", reason=reason))
    ordered: list[LedgerRow] = natsorted(rows, key=lambda row: row.subject)
    return ordered
