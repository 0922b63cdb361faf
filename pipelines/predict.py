"""trinat predict: scans in, labels in their own space out, and a record of every one of them."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from natsort import natsorted

from pipelines.batch.engine import Engine, LocalEngine
from pipelines.batch.inputs import Case, Found, Refusal, find_cases
from pipelines.batch.ledger import Entry, Ledger, Status, digest_files, ledgers_in, read_entries
from pipelines.batch.lock import run_lock
from pipelines.batch.naming import safe_component
from pipelines.batch.settings import OutputSettings, RunSettings
from pipelines.batch.tables import write_bids_files, write_tables
from pipelines.exits import Exit, batch_exit
from pipelines.process import cpu_count
from segmentation.errors import ConfigError, InputError
from segmentation.models.zoo import MODEL_FILE, find_model

__all__ = ["EngineMaker", "Outcome", "Plan", "Shard", "predict"]

WORK = ".trinat-work"

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
        if not slash or not part.isdecimal() or not of.isdecimal() or not 1 <= int(part) <= int(of):
            raise ConfigError(f"--shard {text}: not a part", remedy="give K/N, as 1/10 to 10/10")
        return cls(int(part), int(of))

    @classmethod
    def of_slurm(cls) -> Shard | None:
        """The part of this task of a SLURM job array, whatever number the array starts at."""
        task, count = (os.environ.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("ID", "COUNT"))
        if not (task.isdecimal() and count.isdecimal()):
            return None
        first = os.environ.get("SLURM_ARRAY_TASK_MIN", "0")
        step = os.environ.get("SLURM_ARRAY_TASK_STEP", "1")
        return cls((int(task) - int(first)) // int(step) + 1, int(count))

    def __str__(self) -> str:
        return f".shard-{self.part}-of-{self.of}"


@dataclass(frozen=True)
class Plan:
    """All that a run is told."""

    inputs: Sequence[str]
    out: Path
    model: str = "fast"
    output: OutputSettings = field(default_factory=OutputSettings)
    devices: tuple[str, ...] = ("auto",)
    workers: int = 1
    threads: int | None = None
    batch: int | None = None
    allow_cpu: bool = False
    timeout_s: float | None = None
    shard: Shard | None = None
    participants: Collection[str] = ()
    # Another engine than processes on this machine.
    engine: EngineMaker | None = None

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
    is_part: bool = False  # of what is to be merged

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
    name = _part_name(plan)
    model = find_model(plan.model)
    found = find_cases(plan.inputs, exclude=plan.out, participants=plan.participants)
    if not found.cases and not found.refusals:
        raise InputError("nothing to segment", remedy="name scans, or folders that hold some")
    _make_folder(plan.out)
    cases = found.cases
    if plan.shard:
        cases = cases[plan.shard.part - 1 :: plan.shard.of]
    settings = RunSettings(
        out=plan.out,
        model=model,
        model_sha256=digest_files([model / MODEL_FILE]),
        staging=plan.out / WORK / f"staging{name}",
        output=plan.output,
        bids=found.bids_root is not None,
        source_link=_link(plan.out, found.bids_root) if found.bids_root else "",
        # Another engine knows its own machines.
        threads=plan.threads
        or (None if plan.engine else max(1, cpu_count() // len(plan.worker_devices))),
        batch=plan.batch,
        allow_cpu=plan.allow_cpu,
    )
    with run_lock(plan.out / WORK / f"lock{name}"):
        shutil.rmtree(settings.staging, ignore_errors=True)
        if not name:
            # Of a run that was killed while it wrote tables.
            for stray in plan.out.glob(".trinat-*.tmp"):
                stray.unlink(missing_ok=True)
        known = read_entries(ledgers_in(plan.out), {case.id for case in cases})
        with Ledger(plan.out / f"run{name}.jsonl") as ledger, _stopping() as stop:
            # Shards share refusals; the first tells them.
            tells = not plan.shard or plan.shard.part == 1
            refused = found.refusals if tells else ()
            if tells and not plan.participants:
                for entry in _put_right(known, refused):
                    ledger.add(entry)
            on_start(len(cases) + len(refused))
            outcome = _run(plan, found, cases, refused, settings, known, ledger, stop, on_entry)
        shutil.rmtree(settings.staging, ignore_errors=True)
        if settings.bids:
            _write_bids(settings)
        if not name:
            write_tables(plan.out, read_entries(ledgers_in(plan.out)).values())
    _remove_if_empty(plan.out / WORK)
    return outcome


def _run(
    plan: Plan,
    found: Found,
    cases: Sequence[Case],
    refused: Sequence[Refusal],
    settings: RunSettings,
    known: dict[str, Entry],
    ledger: Ledger,
    stop: Callable[[], bool],
    on_entry: Listener,
) -> Outcome:
    counts: Counter[str] = Counter()

    def note(entry: Entry, *, keep: bool = True) -> None:
        if keep:
            ledger.add(entry)
        counts[entry.status] += 1
        on_entry(entry)

    for refusal in refused:
        status: Status = "skipped" if refusal.harmless else "failed"
        # A twin of a case is told, but is no case of its own in the ledger.
        note(
            Entry(refusal.shown, status, refusal.shown, refusal.reason, finished=_now()),
            keep=not refusal.harmless,
        )

    begun: list[Case] = []

    def missing() -> Iterator[Case]:
        for case in cases:
            # Looking through what is done takes long where there is much of it.
            if stop():
                return
            entry = known.get(case.id)
            if entry and _is_current(entry, case, settings):
                unchanged = Entry(case.id, "skipped", case.shown, "done before, nothing changed")
                # The entry of the run that did it stays the one that holds.
                note(unchanged, keep=False)
            else:
                begun.append(case)
                yield case

    make = plan.engine or (
        lambda settings: LocalEngine(settings, plan.worker_devices, timeout_s=plan.timeout_s)
    )
    # Looked at first: a run with nothing to do loads no model.
    source = missing()
    first = next(source, None)
    if first is not None:
        for entry in make(settings).run(_chain(first, source), stop):
            note(entry)
    undone = len(cases) + len(refused) - sum(counts.values())
    return Outcome(
        counts["done"],
        counts["skipped"],
        counts["failed"],
        interrupted=undone > 0,
        is_part=_part_name(plan) != "",
    )


def _part_name(plan: Plan) -> str:
    """What the ledger and the lock of a part of the work are called besides; "" for all of it."""
    if plan.shard:
        return str(plan.shard)
    if not plan.participants:
        return ""
    # So that jobs of one participant each, as BIDS Apps are run, may share an output folder.
    labels = natsorted({label.removeprefix("sub-") for label in plan.participants})
    return "." + safe_component("sub-" + "-".join(labels))


def _put_right(known: dict[str, Entry], refused: Sequence[Refusal]) -> Iterator[Entry]:
    """What earlier runs refused and this one does not: tables and page need not tell it any more.

    A missing file was found, say, or one of two of the same name is gone.
    """
    told = {refusal.shown for refusal in refused}
    for entry in known.values():
        if entry.status == "failed" and not entry.model and entry.case not in told:
            yield replace(entry, status="skipped", reason="no longer given", finished=_now())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _chain(first: Case, rest: Iterator[Case]) -> Iterator[Case]:
    yield first
    yield from rest


def _is_current(entry: Entry, case: Case, settings: RunSettings) -> bool:
    try:
        digest = digest_files(case.files)
    except OSError:
        return False
    return entry.is_current(settings.out, digest, settings.model_sha256, settings.output.digest())


def _make_folder(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    out.joinpath(WORK).mkdir(exist_ok=True)


def _link(out: Path, root: Path) -> str:
    """The source dataset as seen from the output, so that no path of this machine is told."""
    return Path(os.path.relpath(root.resolve(), out.resolve())).as_posix() + "/"


def _write_bids(settings: RunSettings) -> None:
    from segmentation.models.checkpoint import load_model
    from segmentation.views import View

    model = load_model(settings.model, views=())
    views = [View(name) for name in settings.output.views] or list(model.info.architectures)
    merged = views == [View.SAGITTAL] and model.is_merged(View.SAGITTAL)
    # Sagittal slices alone cannot name sides.
    scheme = model.scheme.merged.scheme if merged else model.scheme
    by_index = settings.output.format == "index"
    write_bids_files(settings.out, scheme, settings.source_link, by_index=by_index)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a flag, so that the scan in hand is finished.

    The second one is as rude as ever.
    """
    asked = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
