"""What was accepted and what became of it, in a folder: however the server ends, none is lost.

`incoming` has uploads that are not accepted yet, and `staging` what workers are writing: both are
emptied at the start. An accepted one is jobs/ID: job.json, the scan, and at its end result/.

`EngineThread` has the engine of `trinat predict` do what is in the queue.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trinat.pipelines.predict.engine import Engine, local_engine
from trinat.pipelines.predict.settings import CaseNames, PredictRequest
from trinat.pipelines.predict.tables import write_parcels, write_volumes
from trinat.pipelines.serve.settings import MAX_STARTS, ServiceSettings
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.naming import Product
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.view.guard import new_token
from trinat.segmentation.data.people import Facts
from trinat.segmentation.errors import DeviceError, DiskFullError, reason_of
from trinat.segmentation.io.files import atomic_text, read_text, sync

# How far a scan is when a stage of the engine begins.
_PROGRESS = {"reading": 0.1, "networks": 0.3, "writing": 0.8}
_log = logging.getLogger("trinat.serve")

State = Literal["queued", "running", "done", "failed"]

# What may be asked for besides labels and volumes, and the setting that makes a worker write it.
OUTPUTS = {
    "mgz": "",
    "dicom-seg": "dicom_seg",
    "probabilities": "probabilities",
    "page": "page",
}
# The record's file in the folder of its scan.
_RECORD_FILE = "job.json"
# A scan waits no longer than this for a worker that has nothing to do.
_POLL_S = 0.05
# Between two looks for what is kept no longer.
_SWEEP_S = 60.0
# How long a stop waits for the engine.
_STOP_S = 10


class Segmentation(BaseModel):
    """What a client gets to know of its scan."""

    id: str = Field(examples=["0f8c2d6a9b1e4c7d8a5f3e2b1c0d9e8f"])
    state: State = "queued"
    place: int = Field(
        default=0, description="1 for the next that is begun, 0 for what is begun"
    )
    progress: float = Field(default=0.0, ge=0, le=1)
    stage: str = Field(
        default="", description="of a running one: reading, networks or writing"
    )
    seconds: int | None = Field(
        default=None, description="of a running one, since work on it began"
    )
    seconds_left: int | None = Field(
        default=None,
        description="of a running one, from how long others took since the start",
    )
    reason: str = Field(default="", description="why it failed", examples=[""])
    grade: str = Field(
        default="",
        description="pass, look or reject",
        examples=["pass"],
    )
    notes: list[str] = []
    outputs: list[str] = Field(
        default=[],
        description="what was asked for",
        examples=[["mgz"]],
    )


class Submission(Segmentation):
    """A scan that was accepted, as its record on the disk has it.

    `client`, `given` and `running_since` are of this run of the server alone and are not written:
    after a restart every waiting scan is given to the engine again.
    """

    model_config = ConfigDict(extra="forbid")
    number: int = 0  # in the order in which they were accepted
    ending: str = ""  # of the scan's file name, as .nii.gz
    age: float | None = None  # of the person, in years, and sex (M or F): for norms
    sex: str | None = None
    accepted: float = Field(default_factory=time.time)
    ended: float = 0.0
    begun: int = 0  # how often work on it was begun
    result: ScanResult = ScanResult()
    client: str = Field(default="", exclude=True)
    given: bool = Field(default=False, exclude=True)  # to the engine
    running_since: float = Field(default=0.0, exclude=True)  # by the monotonic clock


class FullError(Exception):
    """No more is accepted for now."""


class Queue:
    """The scans that were accepted; used by the server's threads and by that of the engine.

    `submissions` has them by their id, in the order of acceptance. `ended` and `busy_s` count
    what has ended since the start and the seconds of work on it. `forget` is called after a scan
    was deleted: whoever holds something of it in memory sets it. `has_norms` is whether pages are
    compared with norms: age and sex of persons are taken for these alone.
    """

    def __init__(
        self,
        folder: Path,
        *,
        queued: int = ServiceSettings.max_waiting,
        per_client: int = ServiceSettings.max_of_client,
        keep_s: float = ServiceSettings.keep_hours * 3600,
        has_norms: bool = False,
    ) -> None:
        """Take up what an earlier server left in `folder`, which must be there.

        At most `queued` scans wait, and `per_client` of one client have not ended. `keep_s`
        seconds after its end a scan is deleted.
        """
        self.folder = folder
        self.keep_s = keep_s
        self.has_norms = has_norms
        self.ended = {"done": 0, "failed": 0}
        self.busy_s = 0.0
        # Those that `busy_s` is of: a scan that failed says no seconds.
        self._timed = 0
        self.forget: Callable[[], None] = lambda: None
        self._queued = queued
        self._per_client = per_client
        # Ids whose record on the disk is out of date, because the disk was full.
        self._outdated: set[str] = set()
        self._uploading: list[str] = []  # their clients
        self._lock = threading.RLock()

        for name in ("incoming", "staging"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "staging"):
            (folder / name).mkdir(exist_ok=True)

        records = [_read_record(path) for path in (folder / "jobs").iterdir()]
        records.sort(key=lambda record: record.number)
        self.submissions = {record.id: record for record in records}
        self._last_number = max((record.number for record in records), default=0)

        # What was running when the server ended is put back in line, or given up.
        for record in records:
            if record.state == "running":
                record.state = "queued"
                record.progress = 0
                record.stage = ""
            if record.state == "queued" and record.begun >= MAX_STARTS:
                reason = f"the server ended {record.begun} times while it was at work"
                self._end(record, "failed", reason)

    def token(self) -> str:
        """The queue's own, made once: who waits for a result need not care for a restart."""
        path = self.folder / "token"
        if not path.exists():
            with atomic_text(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(new_token())
        return read_text(path).strip()

    @contextmanager
    def upload(self, client: str) -> Iterator[Path]:
        """A folder for an upload, gone after the block unless it was accepted.

        Raises FullError where the queue is full, or the client has as many scans as it may.
        """
        with self._lock:
            if len(self.waiting) + len(self._uploading) >= self._queued:
                raise FullError("the queue is full")
            of_client = self._uploading.count(client)
            for submission in self.submissions.values():
                if not submission.ended and submission.client == client:
                    of_client += 1
            if of_client >= self._per_client:
                raise FullError("as many of your scans wait as may")
            self._uploading.append(client)
        folder = self._new_folder()
        try:
            folder.mkdir()
            yield folder
        finally:
            self._uploading.remove(client)
            shutil.rmtree(folder, ignore_errors=True)

    def _new_folder(self) -> Path:
        """A path in `incoming` that is not there yet and that no one can guess."""
        return self.folder / "incoming" / secrets.token_hex(16)

    def accept(
        self,
        scan: Path,
        outputs: list[str],
        client: str,
        person: Facts | None = None,
    ) -> Segmentation:
        """Take a file scan.ENDING in the folder of an upload; from now on it is not lost.

        Of the `person` age and sex are kept.
        """
        if person is None:
            person = Facts()
        sync(scan)
        uploaded = scan.parent
        with self._lock:
            self._last_number += 1
            submission = Submission(
                id=uploaded.name,
                number=self._last_number,
                ending=scan.name.removeprefix("scan"),
                outputs=outputs,
                age=person.age,
                sex=person.sex,
                client=client,
            )
            _write_record(submission, uploaded)
            uploaded.rename(self._place(submission))
            sync(self.folder / "jobs")
            self.submissions[submission.id] = submission
            return self.seen(submission)

    def next(self) -> Case | None:
        """The next scan for the engine; None while none waits.

        The paths of a case are below the queue and name no one.
        """
        with self._lock:
            for submission in self.waiting:
                if submission.given:
                    continue
                submission.given = True
                settings = [OUTPUTS[name] for name in submission.outputs]
                facts = None
                if self.has_norms:
                    facts = Facts(submission.age, submission.sex)
                return Case(
                    submission.id,
                    self.scan(submission),
                    submission.id,
                    also=tuple(setting for setting in settings if setting),
                    facts=facts,
                )
        return None

    def enter(self, id: str, stage: str) -> None:
        """Note that a stage of the work on a scan begins.

        Unknown stages change nothing. The first stage makes the scan a running one, which is
        written to the disk, so that a restart knows how often work on it was begun.
        """
        with self._lock:
            submission = self.submissions.get(id)
            if submission is None or submission.ended or stage not in _PROGRESS:
                return
            submission.progress = _PROGRESS[stage]
            submission.stage = stage
            if submission.state == "queued":
                submission.state = "running"
                submission.running_since = time.monotonic()
                submission.begun += 1
                self._note(submission)

    def finish(self, entry: Entry) -> Submission | None:
        """Note what became of a scan, and take its results, which `entry.staged` has.

        Results that cannot be stored make it a failed scan. None if it was deleted meanwhile: its
        results are deleted as well.
        """
        staged = None
        if entry.staged:
            staged = Path(entry.staged)
        with self._lock:
            submission = self.submissions.get(entry.case)
            if submission and staged:
                try:
                    write_volumes(staged / "volumes.tsv", [entry])
                    if entry.result.parcels:
                        write_parcels(staged / "parcels.tsv", [entry])
                    shutil.rmtree(self.result(submission), ignore_errors=True)
                    staged.rename(self.result(submission))
                    sync(self._place(submission))
                except Exception as error:
                    reason = reason_of(error, where=False)
                    entry = replace(entry, status="failed", reason=reason)
            is_done = entry.status == "done"
            if staged and not (submission and is_done):
                shutil.rmtree(staged, ignore_errors=True)
            if submission is None:
                return None
            if staged and is_done:
                submission.grade = entry.result.grade
                submission.result = entry.result
                submission.notes = entry.result.remarks
            self._end(submission, "done" if is_done else "failed", entry.reason)
            self.ended[submission.state] += 1
            if entry.timings_s:
                self.busy_s += sum(entry.timings_s.values())
                self._timed += 1
            return submission

    def seen(self, submission: Submission) -> Segmentation:
        """What the client may know of it, with its place among those that wait."""
        with self._lock:
            known = submission.model_dump(include=set(Segmentation.model_fields))
            known["place"] = 0
            if submission.state == "queued":
                earlier = [
                    other for other in self.waiting if other.number < submission.number
                ]
                known["place"] = 1 + len(earlier)
            known["seconds"] = None
            known["seconds_left"] = None
            if submission.state == "running":
                since = time.monotonic() - submission.running_since
                known["seconds"] = round(since)
                # By the mean of those that were segmented; None while none was.
                if self._timed:
                    left = self.busy_s / self._timed - since
                    known["seconds_left"] = max(1, round(left))
        return Segmentation(**known)

    def renew(self, submission: Submission) -> None:
        """Keep a scan that has ended as long as one that ends now: work was done on it."""
        with self._lock:
            if submission.id in self.submissions:
                submission.ended = time.time()
                self._note(submission)

    def delete(self, submission: Submission) -> None:
        """Delete a scan and its results, whatever its state; a second time does nothing."""
        with self._lock:
            if self.submissions.pop(submission.id, None) is None:
                return
            self._outdated.discard(submission.id)
            # Gone at once and whole; what a crash leaves of it is emptied at the start.
            gone = self._new_folder()
            self._place(submission).rename(gone)
        self.forget()
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Delete what ended so long ago that it is not kept; bring records up to date."""
        with self._lock:
            for id in list(self._outdated):
                self._note(self.submissions[id])
        oldest_kept = time.time() - self.keep_s
        for submission in list(self.submissions.values()):
            if submission.ended and submission.ended <= oldest_kept:
                self.delete(submission)

    @property
    def waiting(self) -> list[Submission]:
        """Those that work has not begun on, the next one first."""
        with self._lock:
            every = self.submissions.values()
            return [submission for submission in every if submission.state == "queued"]

    def scan(self, submission: Submission) -> Path:
        """The file that was sent."""
        return self._place(submission) / f"scan{submission.ending}"

    def result(self, submission: Submission) -> Path:
        """The folder of its results; it is there once the state is done."""
        return self._place(submission) / "result"

    def drafts(self, submission: Submission) -> Path:
        """The folder with drafts of its correction."""
        return self._place(submission) / "drafts"

    def file(self, submission: Submission, product: Product, ending: str = "") -> Path:
        """The file of a product among its results; `ending` in place of the product's own."""
        names = CaseNames(self.result(submission), submission.id, {}, bids=False)
        return names.path(product, ending)

    def _place(self, submission: Submission) -> Path:
        return self.folder / "jobs" / submission.id

    def _end(self, submission: Submission, state: State, reason: str) -> None:
        """Note that nothing more will be done for a scan."""
        submission.state = state
        submission.reason = reason
        submission.ended = time.time()
        submission.progress = 1.0
        submission.stage = ""
        self._note(submission)

    def _note(self, submission: Submission) -> None:
        """Bring the record on the disk up to date, or, where that is full, a while later.

        Until then a restart finds the record before, and does again what that says is to be done.
        """
        try:
            _write_record(submission, self._place(submission))
        except DiskFullError as error:
            if submission.id not in self._outdated:
                reason = reason_of(error, where=False)
                _log.error("%s: %s, %s", submission.id, submission.state, reason)
            self._outdated.add(submission.id)
        else:
            self._outdated.discard(submission.id)


def _write_record(submission: Submission, folder: Path) -> None:
    with atomic_text(folder / _RECORD_FILE) as file:
        file.write(submission.model_dump_json())


def _read_record(folder: Path) -> Submission:
    """The record in the folder of a scan; a damaged one becomes a scan that failed."""
    try:
        return Submission.model_validate_json(read_text(folder / _RECORD_FILE))
    except (ValueError, OSError):
        # Not damaged by us: our files appear whole.
        return Submission(
            id=folder.name,
            state="failed",
            reason="its record is damaged",
            # Kept as long as one that ends now: its scan and correction may be whole.
            ended=time.time(),
        )


class _StoppedError(Exception):
    """What is in hand is left in the queue."""


class EngineThread(threading.Thread):
    """Takes scans from the queue, has the engine segment them, and gives back what came of each.

    The engine asks an endless iterator for cases, works on them in processes or on a cluster, and
    yields a line of the ledger for each.

    `ready` once a model is loaded; `error` is what ended the engine, if anything did.
    """

    def __init__(self, queue: Queue, plan: PredictRequest, model: Path) -> None:
        """With the engine of `plan`, or worker processes on this machine if it has none."""
        super().__init__(name="engine", daemon=True)
        self.queue = queue
        self.error: Exception | None = None
        # An engine of the plan's own, on a cluster, says nothing of stages.
        self._silent = plan.engine is not None
        self.ready = self._silent
        settings = plan.settings(model, queue.folder / "staging")
        self._engine: Engine
        if plan.engine:
            self._engine = plan.engine(settings)
        else:
            self._engine = local_engine(
                settings,
                plan.worker_devices,
                timeout_s=plan.limit_s,
                poll_s=_POLL_S,
                on_stage=self._on_stage,
            )
        self._stopping = threading.Event()

    def run(self) -> None:
        """What the thread does; when the engine has ended by itself, it ends the server."""
        try:
            for entry in self._engine.run(self._cases(), self._leave_if_stopping):
                submission = self.queue.finish(entry)
                if submission:
                    took_s = submission.ended - submission.accepted
                    _log.info("%s %s, %.1f s", submission.id, submission.state, took_s)
            self.error = DeviceError("the engine came to its end")
        except _StoppedError:
            return
        except Exception as error:
            self.error = error
            _log.error("%s", reason_of(error, where=False))
        self.ready = False
        # The server ends with its engine; the queue stays for its next start.
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """Leave what is in hand to the next start."""
        self._stopping.set()
        self.join(_STOP_S)

    def _on_stage(self, case: str, stage: str) -> None:
        """What the engine calls at each stage of a case; with no case, a model is loaded."""
        if case:
            self.queue.enter(case, stage)
        elif not self.ready:
            self.ready = True
            _log.info("ready")

    def _leave_if_stopping(self) -> bool:
        """What the engine asks again and again; raises to leave it at once."""
        if self._stopping.is_set():
            raise _StoppedError
        return False

    def _cases(self) -> Iterator[Case | None]:
        """The scans of the queue without an end; None while none waits."""
        swept = 0.0
        while True:
            if time.monotonic() - swept > _SWEEP_S:
                self.queue.sweep()
                swept = time.monotonic()
            case = self.queue.next()
            if case and self._silent:
                self.queue.enter(case.id, "networks")
            yield case
