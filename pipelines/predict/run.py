"""Runs of trinat predict: segment scans in their own space and record the outcome of each.

`predict` does a run, or a part of the work. `merge` joins the parts.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.jobs.lock import refuse_held, run_lock
from trinat.pipelines.jobs.process import stop_on_signal
from trinat.pipelines.predict.engine import Engine, local_engine
from trinat.pipelines.predict.recorder import Outcome, Recorder
from trinat.pipelines.predict.settings import (
    CHANGES,
    SLICES,
    TABLES,
    CaseNames,
    PredictRequest,
    RunSettings,
    Shard,
    slices_of,
)
from trinat.pipelines.predict.tables import (
    write_bids_files,
    write_measures,
    write_tables,
)
from trinat.pipelines.study.cases import Case, Found, Participant, Refusal, Work
from trinat.pipelines.study.discovery import find_cases, suffix_of_results
from trinat.pipelines.study.entry import (
    Entry,
    counted_entries,
    find_moved,
    most_doubtful,
)
from trinat.pipelines.study.grouping import participants_of, with_facts
from trinat.pipelines.study.ledger import (
    Ledger,
    LedgerContents,
    ledgers_in,
)
from trinat.pipelines.study.naming import (
    LABEL_TABLES,
    T1W,
    WORK,
    Product,
)
from trinat.pipelines.study.record import EXCLUDED_GRADES
from trinat.segmentation.data.sources.base import without_suffix
from trinat.segmentation.data.sources.bids import entities
from trinat.segmentation.errors import (
    ConfigError,
    DiskFullError,
    InputError,
    OutputError,
    some,
)
from trinat.segmentation.io.files import absolute
from trinat.segmentation.models.zoo import find_model, is_for_any_contrast
from trinat.segmentation.timing import stage

_log = logging.getLogger(__name__)

_BIDS_FILES = (
    *("dataset_description.json", "README.md", ".bidsignore"),
    *(in_bids for _, _, in_bids in LABEL_TABLES.values()),
)
# Minimum time between two updates of growing tables.
_LEAST_PAUSE_S = 10.0
_PAUSE_RATIO = 20
# Suffix of the lock file of a run over all inputs; a part of the work has its own suffix.
_WHOLE = ".all"


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """Callbacks invoked during a run; all default to no-ops.

    - `on_start` gets the number of inputs, `on_entry` the ledger entry of each input, and `on_end`
      the counts of the run and the output folder.
    - `on_stage` gets a case and the stage that it enters. It is called with ("", "starting") before
      the engine starts, and with ("", "ready") when a worker process is ready.
    - `on_stop` is called when a signal asks the run to stop; the cases that were begun are still
      finished.
    """

    on_start: Callable[[int], object] = _ignore
    on_entry: Callable[[Entry], object] = _ignore
    on_end: Callable[[Outcome, Path], object] = _ignore
    on_stage: Callable[[str, str], None] = _ignore
    on_stop: Callable[[], object] = _ignore


def predict(request: PredictRequest, callbacks: Listener | None = None) -> Outcome:
    """Segment the scans without an up-to-date result in the output folder; return their counts.

    `callbacks` are invoked during the run. InputError is raised if there are no scans.
    """
    if callbacks is None:
        callbacks = Listener()
    request.check()
    with stage("find"):
        model = find_model(request.model)
        found = request.found
        if found is None:
            found = find_cases(
                request.inputs,
                exclude=request.out,
                participants=request.participants,
                sessions=request.sessions,
                suffix=request.suffix,
                any_contrast=is_for_any_contrast(model),
            )
    # Report remarks even if there are no cases: they explain what was left out.
    for remark in found.remarks:
        _log.info("%s", remark)
    if not found.cases and not found.refusals:
        raise InputError(
            "there are no scans to segment", remedy="give scans or folders with scans"
        )
    if request.output.fmriprep:
        _check_for_fmriprep(request, found)
    participants = _participants(request, found)
    units, refusals = _inputs_of_part(request, found, participants)
    cases = [case for unit in units for case in unit.scans]
    given = len(cases) + len(refusals)
    work = request.out / WORK
    staging = work / f"staging{request.part}"
    settings = request.settings(model, staging, bids=found.bids_root is not None)
    with (
        held(work, request.part) as refuse_lost,
        _clean_staging(staging, refuse_lost),
        _open_ledger(request, settings, cases, refusals) as ledger,
    ):
        callbacks.on_start(given)
        by_id = {case.id: case for case in cases}
        recorder = Recorder(settings, ledger, callbacks.on_entry, by_id)
        with stop_on_signal(callbacks.on_stop) as stop:
            recorder.refuse(refusals, is_here=_refused_here(request))
            _warn_of_scans_not_given(participants, ledger, request.out)
            _segment(request, settings, recorder, units, stop, callbacks.on_stage)
        refuse_lost()
        with stage("tables"):
            folder = _make_tables_folder(staging)
            if found.bids_root is not None:
                write_bids_files(folder, request.out, found.bids_root)
            # Tables of partial work are written by `merge`.
            if not request.part:
                entries = ledger.entries.values()
                _renew_tables(ledger, folder, entries, request.excluded, request.out)
                _record_renamed(ledger, request.out)
            ledger.move_in(folder)
    outcome = recorder.outcome(given, is_part=bool(request.part))
    callbacks.on_end(outcome, request.out)
    return outcome


def _refused_here(request: PredictRequest) -> Callable[[str], bool]:
    """Return a function that says of the name of an input if this run would have refused it."""
    # Refusals are recorded by the first of several shards.
    is_elsewhere = request.shard is not None and request.shard.part > 1
    if is_elsewhere:
        return lambda name: False
    wanted = {f"sub-{label.removeprefix('sub-')}" for label in request.participants}
    sessions = {f"ses-{label.removeprefix('ses-')}" for label in request.sessions}

    def is_here(name: str) -> bool:
        participant, *below = name.split("/")
        is_participant = not wanted or participant in wanted
        is_session = not sessions or not sessions.isdisjoint(below)
        return is_participant and is_session

    return is_here


def _check_for_fmriprep(request: PredictRequest, found: Found) -> None:
    """Raise ConfigError if fMRIPrep cannot use the results.

    It needs T1w scans of a BIDS dataset. Participants with several scans, of this run or with
    results in the output folder, are logged, because fMRIPrep takes the results of one.
    """
    if found.bids_root is None or request.suffix != T1W:
        raise ConfigError(
            "--for fmriprep: the scans are no T1w scans of a BIDS dataset",
            remedy="give a BIDS dataset, or use --tissues",
        )
    masks: dict[str, set[Path]] = defaultdict(set)
    for case in found.cases:
        names = CaseNames(request.out, case.id, case.entities, bids=True)
        participant = f"sub-{case.entities['sub']}"
        masks[participant].add(names.path(Product.FMRIPREP_MASK))
    for participant, paths in masks.items():
        present = (request.out / participant).rglob("*_desc-brain_mask.nii.gz")
        # Other brain masks have the entity `space`.
        paths.update(
            mask for mask in present if "space" not in entities(without_suffix(mask))
        )
    several = [name for name in natsorted(masks) if len(masks[name]) > 1]
    if several:
        _log.warning(
            "fMRIPrep takes the results of one T1w scan a participant: %s have several "
            "(docs/fmriprep.md)",
            some(several),
        )


def _with_facts(
    request: PredictRequest, found: Found, participants: Sequence[Participant]
) -> Sequence[Case]:
    """Return the cases with age, sex and intracranial volume of their participants.

    These are needed to compare volumes with norms (centiles by age and sex). They are read from the
    participants table of the request or else of the BIDS dataset; ConfigError if there is neither.
    `participants` are those that are segmented together, if any.
    """
    table = request.participants_table
    is_given = table is not None
    if table is None:
        if found.bids_root is None:
            raise ConfigError(
                "norms require the age and sex of every participant",
                remedy="give --participants",
            )
        table = found.bids_root / "participants.tsv"
    return with_facts(
        found.cases, table, participants, strict=request.strict, is_given=is_given
    )


def _participants(request: PredictRequest, found: Found) -> Sequence[Participant]:
    """Return the participants whose scans are segmented together; () without --longitudinal."""
    if not request.output.longitudinal:
        return ()
    return participants_of(
        found.cases,
        found.bids_root,
        request.sessions_table,
        strict=request.strict,
        refusals=found.refusals,
    )


def _warn_of_scans_not_given(
    participants: Sequence[Participant], ledger: Ledger, out: Path
) -> None:
    """Log earlier scans of the run's participants that exist, but were not given to this run.

    They are not segmented together with the new scans, and are in no table of changes. `out` is the
    output folder.
    """
    names = {participant.name for participant in participants}
    scans = [scan for participant in participants for scan in participant.scans]
    given = {scan.id for scan in scans}
    given_paths = {absolute(scan.path) for scan in scans}
    root = out.resolve()
    left_out = []
    for entry in ledger.entries.values():
        point = entry.result.longitudinal
        if point is None or point.participant not in names or entry.case in given:
            continue
        path = absolute(root / entry.scan)
        if path not in given_paths and path.exists():
            left_out.append(entry.case)
    if left_out:
        _log.warning(
            "earlier scans of participants of this run were not given, so they do not count in the "
            "changes: %s; give all scans of a participant",
            some(left_out),
        )


def _inputs_of_part(
    request: PredictRequest, found: Found, participants: Sequence[Participant]
) -> tuple[Sequence[Work], Sequence[Refusal]]:
    """Return the inputs that this request has to process: cases, and refused inputs.

    These are all, or those of the request's shard; the first shard reports all refusals. With
    --longitudinal, the scans of a participant are one case and belong to one shard.
    """
    cases: Sequence[Case] = found.cases
    if request.output.reference is not None:
        cases = _with_facts(request, found, participants)
    given: Sequence[Work] = cases
    if request.output.longitudinal:
        by_id = {case.id: case for case in cases}
        given = [
            replace(
                participant, scans=tuple(by_id[scan.id] for scan in participant.scans)
            ).unit
            for participant in participants
        ]
    shard = request.shard
    if shard is None:
        return given, found.refusals
    of_shard = given[shard.part - 1 :: shard.of]
    if shard.part > 1:
        return of_shard, ()
    return of_shard, found.refusals


@contextmanager
def held(folder: Path, part: str) -> Iterator[Callable[[], None]]:
    """Lock an output folder within the block, for all of the work or for a part of it.

    Yields a function that raises LockedError if another process has taken the lock since. What
    killed parts have left is removed before all of the work.

    `folder` is the folder for unfinished files inside the output folder; OutputError is raised if
    it is a link, or if the output folder is a file. `part` is the name of the part, such as that of
    a shard, "" for all of the work. LockedError is raised if a run is active that may not run at
    the same time: two runs that have scans in common would refuse each other's results as a user's
    files.
    """
    _refuse_unusable(folder)
    with ExitStack() as stack:
        if not part:
            # `merge` takes the same lock: it may run beside parts, but not beside a whole run.
            stack.enter_context(run_lock(folder / "lock"))
        own = part or _WHOLE
        refuse_lost = stack.enter_context(run_lock(folder / f"lock{own}"))
        # Check after taking our own lock: of two runs that start at once, at least one sees the
        # other.
        for lock in sorted(folder.glob("lock.*")):
            other = lock.name.removeprefix("lock")
            if not _may_be_beside(own, other):
                refuse_held(lock)
                if not part:
                    lock.unlink(missing_ok=True)
        if not part:
            for left in folder.glob("staging.*"):
                shutil.rmtree(left, ignore_errors=True)
        yield refuse_lost


def _refuse_unusable(folder: Path) -> None:
    """Raise OutputError if a work folder cannot be used.

    It must not be a link, since its content is deleted wherever that points to, and the output
    folder, in which it is, must not be a file.
    """
    if folder.is_symlink():
        raise OutputError("is a link", where=folder, remedy="remove it")
    out = folder.parent
    if out.exists() and not out.is_dir():
        raise OutputError("is not a folder", where=out, remedy="choose another --out")


def _may_be_beside(part: str, other: str) -> bool:
    """Return True if runs of two parts of the work may be active at the same time.

    The parts are given by their names. Shards of the same division may, and so may jobs of
    different participants. If the names are equal, `other` is the part itself.
    """
    if part == other:
        return True
    if _WHOLE in (part, other):
        return False
    own_shard = Shard.of_part(part)
    other_shard = Shard.of_part(other)
    if own_shard is not None and other_shard is not None:
        return own_shard.of == other_shard.of
    return own_shard is None and other_shard is None


@contextmanager
def _clean_staging(staging: Path, refuse_lost: Callable[[], None]) -> Iterator[None]:
    """Empty a staging folder before and after the block.

    Only a killed run leaves files there. `refuse_lost` raises LockedError if another run has taken
    the folder since, whose files are not removed.
    """
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield
    finally:
        refuse_lost()
        shutil.rmtree(staging, ignore_errors=True)


def _open_ledger(
    request: PredictRequest,
    settings: RunSettings,
    cases: Sequence[Case],
    refusals: Sequence[Refusal],
) -> Ledger:
    """Return the ledger of this part of the work, which includes the results of earlier runs.

    `cases` and `refusals` are those of this part. OutputError is raised if a file of the user has
    the name of a file that the run writes for the whole folder. ConfigError is raised if the folder
    has results of other scans of the dataset, such as T1w instead of T2w.
    """
    own_files: list[str] = []
    if not request.part:
        own_files += TABLES
        own_files += CHANGES
    if settings.bids:
        own_files += _BIDS_FILES
    else:
        own_files += [plain for _, plain, _ in LABEL_TABLES.values()]
    needed = None
    if request.part:
        # A part of the work makes no tables, so it needs only the entries of its own cases.
        needed = {case.id for case in cases}
        needed.update(refusal.case for refusal in refusals)
    ledger = Ledger.resume(
        request.out / f"run{request.part}.jsonl",
        own_files,
        needed,
        overwrite=request.overwrite,
    )
    if settings.bids:
        # Tables and changes are keyed by participant and session: two kinds of scans would be mixed
        # up.
        suffixes = {suffix_of_results(each.outputs) for each in ledger.entries.values()}
        suffixes |= ledger.contents.other_suffixes
        for other in suffixes - {None, request.suffix}:
            remedy = f"give the {request.suffix} scans an output folder of their own"
            raise ConfigError(
                f"has results of {other} scans", where=request.out, remedy=remedy
            )
    return ledger


def _segment(
    request: PredictRequest,
    settings: RunSettings,
    recorder: Recorder,
    cases: Sequence[Work],
    stop: Callable[[], bool],
    on_stage: Callable[[str, str], None],
) -> None:
    """Segment the cases that have no up-to-date result; start no engine if there are none.

    `cases` are scans or participants. Each result is recorded by `recorder`. Nothing more is begun
    once `stop` returns True. `on_stage` is called with a case and the stage that it enters.
    """
    to_do = recorder.cases_to_do(cases, stop)
    first = next(to_do, None)
    if first is None:
        return
    on_stage("", "starting")
    engine: Engine
    if request.engine is None:
        engine = local_engine(
            settings,
            request.worker_devices,
            timeout_s=request.limit_s,
            on_stage=on_stage,
        )
    else:
        engine = request.engine(settings)
    growing = None if request.part else _GrowingTables(recorder.ledger, settings)
    for entries in engine.run(chain([first], to_do), stop):
        for entry in entries:
            recorder.note(entry)
        if growing is not None:
            growing.renew()


class _GrowingTables:
    """Tables of measures that are written during a run, so that they can be used before its end.

    The first scan gets its row at once. Later the tables are written only as often as that takes at
    most a twentieth of the time, since writing the tables of 100,000 scans takes seconds.
    """

    def __init__(self, ledger: Ledger, settings: RunSettings) -> None:
        self._ledger = ledger
        self._out = settings.out
        self._staging = settings.staging
        self._due = 0.0

    def renew(self) -> None:
        """Write volumes.tsv and qc.tsv of the scans that have ended so far, if it is time."""
        begun = time.monotonic()
        if begun < self._due:
            return
        with stage("tables"):
            folder = _make_tables_folder(self._staging)
            entries = self._ledger.entries.values()
            write_measures(folder, counted_entries(entries, self._out))
            try:
                self._ledger.move_in(folder)
            except DiskFullError:
                raise
            except OutputError:
                # Somebody has edited a table in the meantime. The error is raised when the run
                # writes its final tables.
                shutil.rmtree(folder)
        ended = time.monotonic()
        self._due = ended + max(_LEAST_PAUSE_S, _PAUSE_RATIO * (ended - begun))


def _make_tables_folder(staging: Path) -> Path:
    """Create the folder in which the run's tables are written before they are moved into place.

    It is on the disk of the output folder.
    """
    folder = staging / "tables"
    # A second signal may have stopped the writing of earlier tables.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _renew_tables(
    ledger: Ledger,
    folder: Path,
    entries: Collection[Entry],
    excluded: Collection[str],
    out: Path,
) -> None:
    """Write the tables and pages of all ledger entries into `folder`, to be moved into place.

    Tables and pages of an earlier run that are not written again are removed. `out` is the output
    folder; no change is computed from scans whose grade is in `excluded`.
    """
    has_pictures = any(entry.result.picture for entry in most_doubtful(entries))
    if has_pictures and not (out / SLICES).is_dir():
        _log.warning(
            "%s is missing, so report.html has no slices: copy it from where the results were",
            out / SLICES,
        )
    write_tables(folder, entries, out)
    if any(entry.result.longitudinal for entry in entries):
        # Imports pandas, which takes a quarter of a second.
        from trinat.pipelines.predict.changes import write_changes

        write_changes(folder, entries, excluded, out)
    for name in (*TABLES, *CHANGES):
        if not (folder / name).exists():
            ledger.remove(name)


def _record_renamed(ledger: Ledger, out: Path) -> None:
    """Record in the ledger, for each scan that was renamed or moved, the case as which it counts.

    A copy of the results may lack the scans, and without them the case cannot be found any more.
    `out` is the output folder.
    """
    root = out.resolve()
    for case, counts_as in find_moved(ledger.entries.values(), out).items():
        entry = ledger.entries[case]
        if not entry.counts_as and not (root / entry.scan).exists():
            ledger.add(replace(entry, counts_as=counts_as, attempt=0))


def merge(
    out: Path,
    *,
    overwrite: bool = False,
    excluded: Collection[str] = EXCLUDED_GRADES,
) -> Outcome:
    """Join the ledgers of all parts of the work in `out` into run.jsonl; write tables and page.

    Returns the counts of all inputs. Each ledger is read once. With `overwrite`, tables of the user
    are replaced. No change is computed from scans and structures whose grade is in `excluded`.
    """
    ledgers = ledgers_in(out)
    joined = out / "run.jsonl"
    if not ledgers:
        raise InputError(
            "no run*.jsonl here", where=out, remedy="give the --out of trinat predict"
        )
    work = out / WORK
    _refuse_unusable(work)
    staging = work / "staging"
    with (
        run_lock(work / "lock") as refuse_lost,
        _clean_staging(staging, refuse_lost),
    ):
        contents = LedgerContents()
        if joined.exists():
            contents.read(joined)
        own = dict(contents.entries)
        for path in ledgers:
            if path != joined:
                contents.read(path)
        entries = contents.entries
        with Ledger(joined, contents, overwrite=overwrite) as ledger:
            folder = _make_tables_folder(staging)
            _renew_tables(ledger, folder, entries.values(), excluded, out)
            ledger.move_in(folder)
            # Each part of the work has kept the slices of its own most doubtful cases; drop the
            # surplus.
            shown = {slices_of(entry.case) for entry in most_doubtful(entries.values())}
            for case in entries:
                slices = slices_of(case)
                if slices not in shown:
                    (out / slices).unlink(missing_ok=True)
            for case, entry in entries.items():
                if own.get(case) != entry:
                    ledger.add(entry)
            _record_renamed(ledger, out)
    counts = Counter(entry.status for entry in counted_entries(entries.values(), out))
    return Outcome(
        counts["done"], counts["skipped"], counts["failed"], interrupted=False
    )
