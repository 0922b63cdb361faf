"""A run of trinat predict: scans in, labels in their own space out, and a record of every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from trinat.pipelines.predict.changes import write_changes
from trinat.pipelines.predict.engine import Engine
from trinat.pipelines.predict.entry import Entry, digests_of
from trinat.pipelines.predict.ledger import Ledger, ledgers_in, read_ledgers
from trinat.pipelines.predict.outcome import Outcome
from trinat.pipelines.predict.outputs import (
    CHANGES,
    LABEL_TABLE,
    PLAIN_LABEL_TABLE,
    TABLES,
    WORK,
)
from trinat.pipelines.predict.persons import (
    Person,
    as_units,
    persons_of,
    scans_of,
)
from trinat.pipelines.predict.recorder import Recorder
from trinat.pipelines.predict.request import PredictRequest
from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.predict.stopping import stop_on_signal
from trinat.pipelines.predict.tables import write_bids_files, write_tables
from trinat.pipelines.predict.work_folder import emptied, held, make_tables_folder
from trinat.pipelines.scans.cases import Case, Found, Refusal
from trinat.pipelines.scans.discovery import find_cases, suffix_of_results
from trinat.segmentation.errors import ConfigError, InputError
from trinat.segmentation.models.zoo import find_model, is_for_any_contrast
from trinat.segmentation.timing import stage

_BIDS_FILES = ("dataset_description.json", "README.md", ".bidsignore", LABEL_TABLE)


def _ignore(*_: object) -> None:
    pass


def predict(
    request: PredictRequest,
    on_start: Callable[[int], None] = _ignore,
    on_entry: Callable[[Entry], None] = _ignore,
    on_remark: Callable[[str], None] = _ignore,
    on_stage: Callable[[str, str], None] = _ignore,
    on_stop: Callable[[], None] = _ignore,
) -> Outcome:
    """Do what is missing or changed in the output folder.

    `on_start` is called with the number of inputs, `on_entry` with the entry of each, and
    `on_remark` with sentences on files that are not read, and how tables of persons were.
    `on_stage` hears what is at work, as of `LocalEngine`, and ("", "starting") before that.
    `on_stop` is called once a signal asks the run to stop, while it finishes what is in hand.
    """
    with stage("find"):
        model = find_model(request.model)
        found = _find(request, model)
    for remark in found.remarks:
        on_remark(remark)
    units, refusals = _inputs_of_part(request, found, on_remark)
    cases = [case for unit in units for case in scans_of(unit)]
    given = len(cases) + len(refusals)
    part = request.part
    work = request.out / WORK
    staging = work / f"staging{part}"
    settings = request.settings(model, staging, bids=found.bids_root is not None)
    with (
        held(work, part),
        emptied(staging),
        _open_ledger(request, settings, cases, refusals) as ledger,
    ):
        on_start(given)
        by_id = {case.id: case for case in cases}
        recorder = Recorder(settings, ledger, on_entry, by_id)
        with stop_on_signal() as is_asked:
            stop = _told_once(is_asked, on_stop)
            if _sees_all_refusals(request):
                recorder.withdraw_refusals(refusals)
            recorder.refuse(refusals)
            _segment(request, settings, recorder, units, stop, on_stage)
        with stage("tables"):
            _write_files_of_run(request, staging, found.bids_root, ledger)
    return recorder.outcome(given, is_part=bool(part))


def _told_once(
    is_asked: Callable[[], bool], on_stop: Callable[[], None]
) -> Callable[[], bool]:
    """`is_asked`, which calls `on_stop` when it is true for the first time.

    Not the handler of the signal: that may come in the middle of a line that is printed.
    """
    is_told = False

    def stop() -> bool:
        nonlocal is_told
        if is_asked() and not is_told:
            is_told = True
            on_stop()
        return is_told

    return stop


def _find(request: PredictRequest, model: Path) -> Found:
    """The cases of a request, and what of its inputs cannot be one; InputError if there is none."""
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
    if not found.cases and not found.refusals:
        raise InputError(
            "nothing to segment", remedy="name scans, or folders that hold some"
        )
    return found


def _inputs_of_part(
    request: PredictRequest, found: Found, say: Callable[[str], None]
) -> tuple[Sequence[Case], Sequence[Refusal]]:
    """Cases and refusals of the request's shard; the first shard reports all refusals.

    With --longitudinal the scans of a person are one case, and of one shard.
    """
    given: Sequence[Case] = found.cases
    if request.output.longitudinal:
        persons = persons_of(
            found.cases, found.bids_root, request.persons, say, strict=request.strict
        )
        given = as_units(persons)
    shard = request.shard
    if shard is None:
        return given, found.refusals
    cases = given[shard.part - 1 :: shard.of]
    if shard.part > 1:
        return cases, ()
    return cases, found.refusals


def _sees_all_refusals(request: PredictRequest) -> bool:
    """Whether what this run does not refuse is refused no longer."""
    if request.participants or request.sessions:
        return False
    return request.shard is None or request.shard.part == 1


def _open_ledger(
    request: PredictRequest,
    settings: RunSettings,
    cases: Sequence[Case],
    refusals: Sequence[Refusal],
) -> Ledger:
    """The ledger of this part of the work, which knows what earlier runs have done.

    OutputError if a file that the run writes for the whole folder is there as a user's.
    """
    own_files: list[str] = []
    if not request.part:
        own_files += TABLES
        own_files += CHANGES
    if settings.bids:
        own_files += _BIDS_FILES
    else:
        own_files.append(PLAIN_LABEL_TABLE)
    # Before the ledgers are read: a job beside this one lists what it writes before it does.
    there = digests_of(request.out, own_files)
    needed = None
    if request.part:
        # A part of the work makes no tables, and needs to know of its own cases alone.
        needed = {case.id for case in cases}
        needed.update(refusal.case for refusal in refusals)
    before = read_ledgers(ledgers_in(request.out), needed)
    if settings.bids:
        _refuse_other_suffix(request, before.entries)
    ledger = Ledger(
        request.out / f"run{request.part}.jsonl",
        before.entries,
        before.written,
        overwrite=request.overwrite,
    )
    ledger.refuse(there)
    return ledger


def _refuse_other_suffix(request: PredictRequest, entries: Mapping[str, Entry]) -> None:
    """ConfigError where the folder has results of other scans of the dataset, such as T1w of T2w.

    Tables and changes go by participant and session, which would mix them.
    """
    for entry in entries.values():
        other = suffix_of_results(entry.outputs)
        if other not in (None, request.suffix):
            raise ConfigError(
                f"has results of {other} scans",
                where=request.out,
                remedy=f"give the {request.suffix} scans an output folder of their own",
            )


def _segment(
    request: PredictRequest,
    settings: RunSettings,
    recorder: Recorder,
    cases: Sequence[Case],
    stop: Callable[[], bool],
    on_stage: Callable[[str, str], None],
) -> None:
    """Segment the cases that are not current; a run with nothing to do starts no engine."""
    to_do = recorder.cases_to_do(cases, stop)
    first = next(to_do, None)
    if first is None:
        return
    on_stage("", "starting")
    engine: Engine
    if request.engine is None:
        engine = request.local_engine(settings, on_stage)
    else:
        engine = request.engine(settings)
    persons = {case.id: case for case in cases if isinstance(case, Person)}
    for entry in engine.run(chain([first], to_do), stop):
        for part in _entries_of_scans(entry, persons.get(entry.case), settings):
            recorder.note(part)


def _entries_of_scans(
    entry: Entry, person: Person | None, settings: RunSettings
) -> Sequence[Entry]:
    """The entry of a scan, or those of a person's scans: all have failed where the person has."""
    if person is None:
        return (entry,)
    if entry.parts:
        return entry.parts
    return [Entry.failed(case, settings, entry.reason) for case in person.scans]


def _write_files_of_run(
    request: PredictRequest,
    staging: Path,
    bids_root: Path | None,
    ledger: Ledger,
) -> None:
    """Write the files of the whole folder; a part of the work leaves the tables to `merge`."""
    folder = make_tables_folder(staging)
    if bids_root is not None:
        write_bids_files(folder, request.out, bids_root)
    if not request.part:
        write_tables(folder, ledger.entries.values(), request.out)
        entries = ledger.entries.values()
        if not write_changes(folder, entries, request.excluded):
            # Those of an earlier run are of results that are no longer there.
            for name in CHANGES:
                ledger.remove(name)
    ledger.place(folder)
