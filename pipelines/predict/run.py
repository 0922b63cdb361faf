"""trinat predict: scans in, labels in their own space out, and a record of every one of them."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path

from natsort import natsorted

from trinat.pipelines.common.cases import Case, Found, Refusal
from trinat.pipelines.common.discovery import find_cases
from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.lock import refuse_held, run_lock
from trinat.pipelines.common.naming import safe_component
from trinat.pipelines.common.process import cpu_count, stop_signals
from trinat.pipelines.predict.engine import Engine, LocalEngine
from trinat.pipelines.predict.ledger import (
    ChangedError,
    Entry,
    Ledger,
    Status,
    digests_of,
    ledgers_in,
    read_entries,
)
from trinat.pipelines.predict.outputs import (
    LABEL_TABLE,
    PLAIN_LABEL_TABLE,
    TABLES,
    WORK,
    CaseNames,
    Options,
    RunSettings,
    slices_of,
)
from trinat.pipelines.predict.tables import (
    most_doubtful,
    write_bids_files,
    write_tables,
)
from trinat.segmentation.errors import (
    ConfigError,
    DiskFullError,
    InputError,
    OutputError,
    is_disk_full,
    reason_of,
)
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.io.streams import NO_CHECKSUM, has_checksum
from trinat.segmentation.models.zoo import MODEL_FILE, find_model
from trinat.segmentation.timing import Spent, stage, together

# After a signal, for what is in hand: less than a queue or a container waits may be too little for
# one scan on a processor, more than this is a scan that hangs.
_GRACE_S = 60.0
# What the lock of all of the work is called besides.
_WHOLE = ".all"
_NO_SERIES = (
    "no DICOM series, which --dicom-seg needs: leave it out, or give the DICOM files"
)
_BIDS_FILES = ("dataset_description.json", ".bidsignore", LABEL_TABLE)

Listener = Callable[[Entry], None]
EngineMaker = Callable[[RunSettings], Engine]


@dataclass(frozen=True)
class Shard:
    """Part K of N of a list of cases, 1 to N; the same cases wherever it is computed."""

    part: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        part, slash, of = text.partition("/")
        if (
            not slash
            or not part.isdecimal()
            or not of.isdecimal()
            or not 1 <= int(part) <= int(of)
        ):
            raise ConfigError(
                f"--shard {text}: not a part", remedy="give K/N, as 1/10 to 10/10"
            )
        return cls(int(part), int(of))

    def __str__(self) -> str:
        return f".shard-{self.part}-of-{self.of}"

    @classmethod
    def of_part(cls, text: str) -> Shard | None:
        """The shard that is written so; None for the name of another part."""
        match = re.fullmatch(r"\.shard-(\d+)-of-(\d+)", text)
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Plan(Options):
    """All that a run is told."""

    inputs: Sequence[str]
    out: Path
    model: str = "fast"
    devices: tuple[str, ...] = ("auto",)
    workers: int = 1
    timeout_s: float | None = None  # for one scan; 0: none
    overwrite: bool = False
    shard: Shard | None = None
    participants: Collection[str] = ()
    sessions: Collection[str] = ()
    found: Found | None = None  # in place of inputs
    # Another engine than processes on this machine.
    engine: EngineMaker | None = None

    @property
    def part(self) -> str:
        """What the ledger and the lock of a part of the work are called besides; "" for all."""
        if self.shard:
            return str(self.shard)
        if not self.participants and not self.sessions:
            return ""
        # So that jobs of one participant each, as BIDS Apps are run, may share an output folder.
        parts = []
        for key, given in (("sub-", self.participants), ("ses-", self.sessions)):
            if given:
                parts.append(
                    key + "-".join(natsorted({g.removeprefix(key) for g in given}))
                )
        return "." + safe_component("_".join(parts))

    def settings(
        self, model: Path, staging: Path, *, bids: bool = False
    ) -> RunSettings:
        # Another engine knows its own machines.
        own = None if self.engine else max(1, cpu_count() // len(self.worker_devices))
        options = {
            option.name: getattr(self, option.name) for option in fields(Options)
        }
        options["threads"] = self.threads or own
        digest = sha256_of(model / MODEL_FILE)
        return RunSettings(self.out, model, digest, staging, bids, **options)

    def local_engine(self, settings: RunSettings) -> Engine:
        return LocalEngine(settings, self.worker_devices, timeout_s=self.limit_s)

    @property
    def limit_s(self) -> float:
        """Two hours for each time that the networks see a scan: what takes longer hangs."""
        passes = (1 + self.output.samples) * (1 + self.output.mirror)
        return 7200.0 * passes if self.timeout_s is None else self.timeout_s

    @property
    def worker_devices(self) -> list[str]:
        """A device a process: GPUs in turn; on the processor as many as there are workers."""
        count = max(self.workers, len(self.devices))
        return [self.devices[i % len(self.devices)] for i in range(count)]


@dataclass(frozen=True)
class Outcome:
    """N in = done + skipped + failed, but for what was not begun when the run was stopped."""

    done: int
    skipped: int
    failed: int
    interrupted: bool
    kept: int = 0  # of the skipped: those whose result was changed since it was written
    is_part: bool = False  # of what is to be merged
    grades: Mapping[str, int] = field(default_factory=dict)  # of the done
    spent: Spent = field(default_factory=dict)  # by the workers, with Plan.timings

    @property
    def exit(self) -> Exit:
        if self.interrupted:
            return Exit.INTERRUPTED
        return batch_exit(done=self.done + self.skipped, failed=self.failed)


def predict(
    plan: Plan,
    on_start: Callable[[int], None] = lambda _: None,
    on_entry: Listener = lambda _: None,
) -> Outcome:
    """Do what is missing or changed; listeners hear how many there are, then of each."""
    with stage("find"):
        model = find_model(plan.model)
        found = plan.found or find_cases(
            plan.inputs,
            exclude=plan.out,
            participants=plan.participants,
            sessions=plan.sessions,
        )
    if not found.cases and not found.refusals:
        raise InputError(
            "nothing to segment", remedy="name scans, or folders that hold some"
        )
    cases, refusals = found.cases, found.refusals
    if plan.shard:
        # The first shard tells of all refusals.
        refusals = refusals if plan.shard.part == 1 else ()
        cases = cases[plan.shard.part - 1 :: plan.shard.of]
    part = plan.part
    staging = plan.out / WORK / f"staging{part}"
    settings = plan.settings(model, staging, bids=found.bids_root is not None)
    with _at_work(plan.out / WORK, part), _cleared(staging):
        own = (
            *(() if part else TABLES),
            *(_BIDS_FILES if settings.bids else (PLAIN_LABEL_TABLE,)),
        )
        # Before the ledgers: a job beside this one says what it writes before it does.
        there = digests_of(plan.out, own)
        written: set[tuple[str, str]] = set()
        # A part of the work makes no tables, and needs to know of its own cases alone.
        mine = {case.id for case in cases} | {refusal.case for refusal in refusals}
        known = read_entries(
            ledgers_in(plan.out), mine if part else None, written=written
        )
        path = plan.out / f"run{part}.jsonl"
        with Ledger(path, known, written, overwrite=plan.overwrite) as ledger:
            ledger.refuse(there)
            on_start(len(cases) + len(refusals))
            run = _Run(settings, ledger, on_entry, {case.id: case for case in cases})
            with _stopping() as stop:
                if not (
                    plan.participants
                    or plan.sessions
                    or (plan.shard and plan.shard.part > 1)
                ):
                    run.put_right(refusals)
                run.refuse(refusals)
                # Looked at first: a run with nothing to do loads no model.
                missing = run.missing(cases, stop)
                if first := next(missing, None):
                    engine = plan.engine or plan.local_engine
                    for entry in engine(settings).run(chain([first], missing), stop):
                        run.note(entry)
            with stage("tables"):
                folder = _folder_of_tables(staging)
                if found.bids_root:
                    write_bids_files(folder, plan.out, found.bids_root)
                if not part:
                    write_tables(folder, ledger.entries.values(), plan.out)
                ledger.place(folder)
    counts = run.counts
    return Outcome(
        counts["done"],
        counts["skipped"],
        counts["failed"],
        interrupted=counts.total() < len(cases) + len(refusals),
        kept=run.kept,
        is_part=bool(part),
        grades=run.grades,
        spent=together(run.spent, side_by_side=len(run.workers)),
    )


def merge(out: Path, *, overwrite: bool = False) -> Outcome:
    """Join the ledgers in `out` into run.jsonl, reading each once; make the tables and the page."""
    ledgers, joined = ledgers_in(out), out / "run.jsonl"
    if not ledgers:
        raise InputError(
            "no run*.jsonl here", where=out, remedy="give the --out of trinat predict"
        )
    staging = out / WORK / "staging"
    with run_lock(out / WORK / "lock"), _cleared(staging):
        written: set[tuple[str, str]] = set()
        own = read_entries([joined] if joined.exists() else [], written=written)
        others = [path for path in ledgers if path != joined]
        entries = read_entries(others, known=own, written=written)
        with Ledger(joined, own, written, overwrite=overwrite) as ledger:
            folder = _folder_of_tables(staging)
            write_tables(folder, entries.values(), out)
            ledger.place(folder)
            # Each part of the work has kept its own.
            kept = {slices_of(entry.case) for entry in most_doubtful(entries.values())}
            for case in entries:
                if (name := slices_of(case)) not in kept:
                    (out / name).unlink(missing_ok=True)
            for case, entry in entries.items():
                if own.get(case) != entry:
                    ledger.add(entry)
    counts = Counter(
        entry.status for entry in entries.values() if not entry.is_withdrawn
    )
    return Outcome(
        counts["done"], counts["skipped"], counts["failed"], interrupted=False
    )


@contextmanager
def _at_work(folder: Path, part: str) -> Iterator[None]:
    """Hold an output folder for all of the work, or for a part that others may be done beside.

    Two runs that have scans in common would refuse each other's results as a user's files.
    """
    with contextlib.ExitStack() as stack:
        if not part:
            # As `merge` has it, which may be done beside parts.
            stack.enter_context(run_lock(folder / "lock"))
        stack.enter_context(run_lock(folder / f"lock{part or _WHOLE}"))
        # Each has its own lock by now, so that of two that begin at once one sees the other.
        for lock in sorted(folder.glob("lock.*")):
            if not _may_be_beside(part or _WHOLE, lock.name.removeprefix("lock")):
                refuse_held(lock)
        yield


def _may_be_beside(part: str, other: str) -> bool:
    """Shards of one division are; and jobs of participants, each of its own."""
    if part == other:
        return True
    if _WHOLE in (part, other):
        return False
    ours, theirs = Shard.of_part(part), Shard.of_part(other)
    if ours and theirs:
        return ours.of == theirs.of
    return ours is None and theirs is None


@contextmanager
def _cleared(staging: Path) -> Iterator[None]:
    """A folder for what is on its way into place; only a killed run leaves files there."""
    shutil.rmtree(staging, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _folder_of_tables(staging: Path) -> Path:
    """Where the run's own files wait, on the disk of the output."""
    folder = staging / "tables"
    folder.mkdir(parents=True)
    return folder


@dataclass
class _Run:
    """What becomes of each input: in the ledger, in the counts, and told to who listens."""

    settings: RunSettings
    ledger: Ledger
    on_entry: Listener
    cases: Mapping[str, Case] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    spent: list[Spent] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    shown: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.shown = most_doubtful(self.ledger.entries.values())

    @stage("write")
    def note(self, entry: Entry, *, keep: bool = True) -> None:
        if entry.staged:
            shown = most_doubtful(
                [*(e for e in self.shown if e.case != entry.case), entry]
            )
            if entry not in shown:
                (Path(entry.staged) / slices_of(entry.case)).unlink(missing_ok=True)
                self.ledger.remove(slices_of(entry.case))
            try:
                self.ledger.place(Path(entry.staged), entry)
                for other in self.shown:
                    if other not in shown and other.case != entry.case:
                        (self.settings.out / slices_of(other.case)).unlink(
                            missing_ok=True
                        )
                self.shown = shown
            except (OutputError, OSError) as error:
                entry = _without_place(entry, error)
        if entry.no_room:
            # The scans to come would be segmented for nothing.
            remedy = "free some and run again: the run continues where it stopped"
            raise DiskFullError(
                "no space left on its disk", where=self.settings.out, remedy=remedy
            )
        if keep:
            if entry.model:
                entry = replace(entry, aside=self._set_aside(entry))
            self.ledger.add(entry)
        self.counts[entry.status] += 1
        self.kept += entry.is_kept
        self.grades.update(filter(None, [entry.result.get("grade")]))
        if entry.spent:
            self.spent.append(entry.spent)
            self.workers.add(entry.worker)
        self.on_entry(entry)

    def _set_aside(self, entry: Entry) -> dict[str, str]:
        """What earlier attempts have written and this one has not leaves the place of results."""
        if entry.status == "skipped":
            return {}
        case = self.cases.get(entry.case)
        bids = self.settings.bids and case is not None
        names = CaseNames(Path(), entry.case, case.entities if case else {}, bids)
        before = self.ledger.entries.get(entry.case)
        if entry.status == "failed":
            self.ledger.remove(slices_of(entry.case))
        elif before and names.labels_in(before.outputs) == names.labels_in(
            entry.outputs
        ):
            # Of the same label map, what was written with other settings is right.
            return {}
        older = {*names.every(), *(before.outputs if before else ())}
        return self.ledger.set_aside(sorted(older - entry.outputs.keys()))

    def put_right(self, refusals: Sequence[Refusal]) -> None:
        """What earlier runs refused and this one does not: tables and page need not tell it.

        A missing file was found, say, or one of two of the same name is gone.
        """
        told = {refusal.shown for refusal in refusals}
        for entry in list(self.ledger.entries.values()):
            if entry.status == "failed" and not entry.model and entry.case not in told:
                self.ledger.add(
                    Entry(entry.case, "skipped", entry.input, "no longer given")
                )

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            # A twin of a case is told, but is no case of its own in the ledger.
            status: Status = "skipped" if refusal.harmless else "failed"
            aside = {} if refusal.harmless else self._withdraw(refusal)
            entry = Entry(
                refusal.shown, status, refusal.shown, refusal.reason, aside=aside
            )
            self.note(entry, keep=not refusal.harmless or entry.is_left_out)

    def _withdraw(self, refusal: Refusal) -> dict[str, str]:
        """What is refused may have been a case before: its result is of a scan that was.

        Returns what was moved aside, if the refusal goes to the ledger under the case's own name.
        """
        known = self.ledger.entries.get(refusal.case)
        if known is None or known.is_withdrawn:
            return {}
        failed = Entry(refusal.case, "failed", refusal.shown, refusal.reason)
        aside = self._set_aside(failed)
        if refusal.case == refusal.shown:
            return aside
        self.ledger.add(replace(failed, status="skipped", aside=aside))
        return {}

    def missing(
        self, cases: Sequence[Case], stop: Callable[[], bool]
    ) -> Iterator[Case]:
        """Cases to do; those that are current are noted."""
        for case in cases:
            # Looking through what is done takes long where there is much of it.
            if stop():
                return
            if self.settings.require_checksum and not has_checksum(case.path):
                self.note(Entry.failed(case, self.settings, NO_CHECKSUM))
                continue
            wanted = self.settings.output.dicom_seg or "dicom_seg" in case.also
            if wanted and not case.series:
                self.note(Entry.failed(case, self.settings, _NO_SERIES))
                continue
            known = self.ledger.entries.get(case.id)
            if known and known.is_current(case, self.settings):
                # The entry of the run that did it stays the one that holds.
                unchanged = "done before, nothing changed"
                self.note(Entry(case.id, "skipped", case.shown, unchanged), keep=False)
                continue
            names = CaseNames(Path(), case.id, case.entities, self.settings.bids)
            files = [str(path) for path in names.all(self.settings.output, case.path)]
            try:
                self.ledger.refuse(digests_of(self.settings.out, files))
            except OutputError as error:
                self.note(
                    _without_place(Entry.of(case, self.settings, "failed"), error)
                )
            else:
                yield case


def _without_place(entry: Entry, error: Exception) -> Entry:
    """A scan whose outputs cannot be put in place has failed, unless they are there, changed."""
    status: Status = "skipped" if isinstance(error, ChangedError) else "failed"
    reason, no_room = reason_of(error, where=False), is_disk_full(error)
    return replace(
        entry, status=status, reason=reason, no_room=no_room, outputs={}, result={}
    )


class _OverdueError(BaseException):
    """What is in hand is left for the next run."""


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Turn the first signal into a flag, so that the scans in hand are finished.

    The second one, or the end of the grace, leaves the block at once wherever it is.
    """
    asked = False

    def ask() -> None:
        nonlocal asked
        signal.setitimer(signal.ITIMER_REAL, 0 if asked else _GRACE_S)
        if asked:
            raise _OverdueError
        asked = True

    with contextlib.suppress(_OverdueError), stop_signals(ask):
        try:
            yield lambda: asked
        finally:
            if asked:
                signal.setitimer(signal.ITIMER_REAL, 0)
