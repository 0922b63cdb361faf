"""Persistent job queue of the service, stored on disk so that a crash loses no job.

`jobs.sqlite` in the queue's folder has one table with a row for each accepted scan. The scan, its
results and the drafts of its correction are in `jobs/ID`. A row and its folder belong together:
when a server starts, it removes the remains of interrupted uploads and deletions. `EngineThread`
passes the scans to the engine of `trinat predict`, which segments them.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from trinat.pipelines.predict.engine import local_engine
from trinat.pipelines.predict.settings import CaseNames, PredictRequest
from trinat.pipelines.predict.tables import write_parcels, write_volumes
from trinat.pipelines.serve.settings import (
    MAX_STARTS,
    MIN_FREE_BYTES,
    ServiceSettings,
)
from trinat.pipelines.study.cases import Case
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.naming import PLAIN_LABEL_TABLE, PLAIN_PARCEL_TABLE, Product
from trinat.pipelines.study.participants import Facts
from trinat.pipelines.study.record import ScanResult
from trinat.pipelines.view.guard import new_token
from trinat.segmentation.errors import (
    DeviceError,
    DiskFullError,
    OutputError,
    reason_of,
)
from trinat.segmentation.io.files import atomic_text, read_text, sync

_log = logging.getLogger("trinat.serve")

State = Literal["queued", "running", "done", "failed"]

# Optional outputs by the name that clients use, with the field of `OutputSettings` that requests
# each; "" if the worker need not write it.
OUTPUTS = {
    "mgz": "",
    "dicom-seg": "dicom_seg",
    "probabilities": "probabilities",
    "page": "page",
}
# Progress of a scan, from 0 to 1, at the start of each stage of the engine.
_PROGRESS = {"reading": 0.1, "networks": 0.3, "writing": 0.8}
# Numbers of rows in SQLite have 64 bits.
_LARGEST_NUMBER = 2**63 - 1
# Files and folders that a queue writes or deletes.
_OF_QUEUE = ("staging", "jobs", "learning", PLAIN_LABEL_TABLE, PLAIN_PARCEL_TABLE)
# The longest delay before an idle worker sees a new scan.
_POLL_S = 0.05
# The interval between two deletions of expired scans.
_SWEEP_S = 60.0
# The longest wait for the engine at shutdown.
_STOP_S = 10

# AUTOINCREMENT never reuses the number of a deleted scan. `age` (years), `sex` (M or F) and the
# ending of the file name are the only facts about a participant that are stored.
_TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    ending TEXT NOT NULL,
    outputs TEXT NOT NULL,
    age REAL,
    sex TEXT,
    accepted REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued',
    stage TEXT NOT NULL DEFAULT '',
    starts INTEGER NOT NULL DEFAULT 0,
    started REAL NOT NULL DEFAULT 0,
    ended REAL NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    result TEXT NOT NULL DEFAULT '{}'
)
"""
_SELECT = """
SELECT * FROM (
    SELECT *, (state = 'queued') * SUM(state = 'queued') OVER (ORDER BY number) AS place
    FROM jobs
)
"""


class Segmentation(BaseModel):
    """State of a scan, as clients see it."""

    id: str = Field(examples=["0f8c2d6a9b1e4c7d8a5f3e2b1c0d9e8f"])
    state: State = "queued"
    place: int = Field(default=0, description="position in the queue; 0 once running")
    progress: float = Field(default=0.0, ge=0, le=1)
    stage: str = Field(
        default="", description="reading, networks or writing, once a worker has it"
    )
    seconds: int | None = Field(
        default=None, description="since a running scan was started"
    )
    seconds_left: int | None = Field(
        default=None,
        description="estimate for a running scan, from the time of earlier scans",
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
        description="requested outputs",
        examples=[["mgz"]],
    )


class Submission(Segmentation):
    """Row of the queue's table at one moment: a scan with its state and its result.

    `result` is empty until the scan is done. Times (`accepted`, `ended`) are in seconds since 1970;
    `ended` is 0 until the scan is done or has failed. `starts` counts how often the segmentation
    was begun, also by earlier servers.
    """

    number: int  # in the order of acceptance
    ending: str  # of the scan's file name, as .nii.gz
    age: float | None = None
    sex: str | None = None
    accepted: float
    starts: int = 0
    ended: float = 0.0
    result: ScanResult = ScanResult()

    def seen(self) -> Segmentation:
        """Return the part of the row that clients may see."""
        return Segmentation(**self.model_dump(include=set(Segmentation.model_fields)))


class FullError(Exception):
    """Raised if the queue accepts no scan, or no request to learn a model, for now."""


class Queue:
    """Accepted scans in a table on disk, used by the server's threads and by the engine's thread.

    `ended` counts the scans that were finished since the start of the server, by state ("done" or
    "failed"). `busy_s` is the total processing time of those that are done, in seconds. `forget` is
    called after a scan was deleted, so that others can drop its data from memory. `has_norms` is
    True if result pages compare volumes with normative values by age and sex: only then are age and
    sex accepted. `staging` is the folder for unfinished files.
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
        """Open the queue in `folder`, which must exist, and resume the unfinished scans in it.

        `queued` is the maximum number of waiting scans, `per_client` that of unfinished scans of
        one client. A scan is deleted `keep_s` seconds after it is done or has failed. Raises
        OutputError if there is no queue in the folder, but files that a new one would delete or
        overwrite.
        """
        self.folder = folder
        self.keep_s = keep_s
        self.has_norms = has_norms
        self.ended = {"done": 0, "failed": 0}
        self.busy_s = 0.0
        self.forget: Callable[[], None] = lambda: None
        self._queued = queued
        self._per_client = per_client
        # Ids of scans that were handed to the engine since the start. After a restart this is
        # empty, so that the engine gets every unfinished scan again.
        self._given: set[str] = set()
        self._uploading: set[str] = set()
        # Address of the client of each unfinished scan, by id. Addresses are not written to disk.
        self._clients: dict[str, str] = {}
        self._lock = threading.RLock()
        # True if the disk was almost full when the engine last asked for a scan.
        self._was_full = False

        self._file = folder / "jobs.sqlite"
        if not self._file.exists():
            _require_free(folder)
        # Each statement is a transaction of its own, and SQLite runs one at a time.
        self._database = sqlite3.connect(
            self._file, isolation_level=None, check_same_thread=False
        )
        self._database.row_factory = sqlite3.Row
        # Overwrite deleted rows on the disk: age and sex must not outlive their scan.
        self._execute("PRAGMA secure_delete = ON")
        self._execute(_TABLE)
        # Folder for unfinished files of uploads and of the engine, emptied at each start.
        self.staging = folder / "staging"
        shutil.rmtree(self.staging, ignore_errors=True)
        for path in (self.staging, folder / "jobs"):
            path.mkdir(exist_ok=True)
        self._resume()

    def _resume(self) -> None:
        """Make the table and the folders consistent after a restart.

        Scans whose segmentation was interrupted are queued again; those that were started
        `MAX_STARTS` times fail. Rows without a folder and folders without a row are removed.
        """
        # A scan that was only being read while another one ran is unlikely to have crashed the
        # server.
        self._execute(
            "UPDATE jobs SET starts = starts - 1 WHERE stage = 'reading' "
            "AND EXISTS (SELECT 1 FROM jobs WHERE state = 'running')"
        )
        self._execute("UPDATE jobs SET state = 'queued', stage = '' WHERE NOT ended")
        self._execute(
            "UPDATE jobs SET state = 'failed', ended = :now, reason = "
            "'the server ended ' || starts || ' times while it was at work' "
            "WHERE NOT ended AND starts >= :most",
            now=time.time(),
            most=MAX_STARTS,
        )
        listed = {submission.id for submission in self.submissions}
        stored = {path.name for path in (self.folder / "jobs").iterdir()}
        for id in listed - stored:
            self._execute("DELETE FROM jobs WHERE id = :id", id=id)
        for id in stored - listed:
            shutil.rmtree(self._folder_of(id), ignore_errors=True)

    def _execute(self, statement: str, **values: Any) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise DiskFullError(
                    "no space left on its disk", where=self._file, remedy="free some"
                ) from error
            raise OutputError(
                f"cannot be used as the queue's table ({error})",
                where=self._file,
                remedy="keep this folder for its scans, and give another --queue",
            ) from error

    def _update(self, statement: str, **values: Any) -> bool:
        """Execute an SQL statement that changes rows; return True if the change was stored.

        If the disk is full, this is logged and False is returned.
        """
        try:
            self._execute(statement, **values)
        except DiskFullError as error:
            _log.error("%s", reason_of(error))
            return False
        return True

    def _select(self, where: str = "", **values: Any) -> list[Submission]:
        rows = self._execute(f"{_SELECT} {where} ORDER BY number", **values).fetchall()
        return [self._submission(row) for row in rows]

    def _submission(self, row: sqlite3.Row) -> Submission:
        columns = dict(row)
        result = ScanResult.model_validate_json(columns["result"])
        columns["result"] = result
        columns["outputs"] = json.loads(columns["outputs"])
        columns["grade"] = result.grade
        columns["notes"] = result.remarks
        columns["progress"] = _PROGRESS.get(row["stage"], 0.0)
        if row["ended"]:
            columns["progress"] = 1.0
        if row["state"] == "running":
            since = time.time() - row["started"]
            columns["seconds"] = round(since)
            # From the mean of the scans since the start; unknown before the first is done.
            if self.ended["done"]:
                left = self.busy_s / self.ended["done"] - since
                columns["seconds_left"] = max(1, round(left))
        return Submission(**columns)

    @property
    def is_disk_full(self) -> bool:
        """True if the disk has too little room for the results of a scan."""
        return shutil.disk_usage(self.folder).free < MIN_FREE_BYTES

    @property
    def submissions(self) -> list[Submission]:
        """All scans in the queue, in the order of acceptance."""
        return self._select()

    def find(self, id: str = "", number: int = 0) -> Submission | None:
        """Return the scan with this id or with this number; None if there is none."""
        if number > _LARGEST_NUMBER:
            return None
        found = self._select("WHERE id = :id OR number = :number", id=id, number=number)
        return found[0] if found else None

    def token(self) -> str:
        """Return the access token of the queue, which is created if it is missing or empty."""
        path = self.folder / "token"
        token = read_text(path).strip() if path.exists() else ""
        if not token:
            token = new_token()
            with atomic_text(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(token)
        return token

    @contextmanager
    def upload(self, client: str) -> Iterator[Path]:
        """Yield a new folder for the files of an upload.

        The folder is deleted after the block unless `accept` was called. `client` is the address of
        the client. Raises FullError if the queue is full, or if the client has reached its limit.
        """
        id = secrets.token_hex(16)
        with self._lock:
            (waiting,) = self._execute(
                "SELECT COUNT(*) FROM jobs WHERE state = 'queued'"
            ).fetchone()
            if waiting + len(self._uploading) >= self._queued:
                raise FullError("the queue is full")
            if list(self._clients.values()).count(client) >= self._per_client:
                raise FullError("you have the maximum number of waiting scans")
            self._uploading.add(id)
            self._clients[id] = client
        try:
            self._folder_of(id).mkdir()
            yield self._folder_of(id)
        finally:
            if id in self._uploading:
                self._uploading.remove(id)
                self._clients.pop(id)
                shutil.rmtree(self._folder_of(id), ignore_errors=True)

    def accept(
        self, scan: Path, outputs: list[str], participant: Facts | None = None
    ) -> Submission:
        """Add an uploaded scan to the table and return its row; from now on it survives a crash.

        `scan` is the file scan.ENDING in a folder from `upload`. `outputs` names the optional
        results to make, keys of `OUTPUTS`. Only age and sex of `participant` are stored.
        """
        if participant is None:
            participant = Facts()
        for path in (scan, scan.parent, scan.parent.parent):
            sync(path)
        id = scan.parent.name
        with self._lock:
            self._execute(
                "INSERT INTO jobs (id, ending, outputs, age, sex, accepted) "
                "VALUES (:id, :ending, :outputs, :age, :sex, :now)",
                id=id,
                ending=scan.name.removeprefix("scan"),
                outputs=json.dumps(outputs),
                age=participant.age,
                sex=participant.sex,
                now=time.time(),
            )
            self._uploading.remove(id)
        (submission,) = self._select("WHERE id = :id", id=id)
        return submission

    def next(self) -> Case | None:
        """Return the next waiting scan as a `Case` for the engine, which segments it.

        The case has the path of the scan, below the queue's folder, and the id by which its results
        are stored; neither names a participant. Returns None if no scan waits, or if the disk is
        almost full, which is logged once until there is room again.
        """
        was_full = self._was_full
        self._was_full = self.is_disk_full
        if self._was_full:
            if not was_full:
                _log.warning("the disk is almost full: scans wait until there is room")
            return None
        for submission in self._select("WHERE NOT ended"):
            if submission.id in self._given:
                continue
            self._given.add(submission.id)
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
        """Record that the engine begins a stage of a scan: reading, networks or writing.

        `id` is the id of the scan. Other stages are ignored. A scan that was read waits in the
        worker while the networks segment others, so it runs only from that stage on. The first
        stage counts as a start of the segmentation, so that a scan that crashes the server again
        and again is given up.
        """
        if stage not in _PROGRESS:
            return
        # SQLite evaluates all right-hand sides with the values before the update.
        self._update(
            "UPDATE jobs SET stage = :stage, state = :state, "
            "starts = starts + (stage = ''), "
            "started = CASE state WHEN :state THEN started ELSE :now END "
            "WHERE id = :id AND NOT ended",
            id=id,
            stage=stage,
            state="queued" if stage == "reading" else "running",
            now=time.time(),
        )

    def interrupt(self) -> None:
        """Queue the unfinished scans again as the server stops; their starts do not count."""
        self._update(
            "UPDATE jobs SET state = 'queued', stage = '', starts = starts - 1 "
            "WHERE stage != ''"
        )

    def finish(self, entry: Entry) -> Submission | None:
        """Record that a scan is done or has failed, and move its results to the scan's folder.

        `entry` is the outcome from the engine; `entry.staged` is the folder with the results. If
        they cannot be moved, the scan fails. Returns the updated row of the scan. Returns None if
        the scan was deleted meanwhile, or if the disk has no room for the row: then the engine gets
        the scan again.
        """
        with self._lock:
            self._given.discard(entry.case)
            submission = self.find(entry.case)
            if submission and entry.staged:
                try:
                    self._take_results(submission, entry)
                except Exception as error:
                    reason = reason_of(error, where=False)
                    entry = replace(entry, status="failed", reason=reason)
            if entry.staged:
                shutil.rmtree(entry.staged, ignore_errors=True)
            if submission is None:
                return None
            state = "failed"
            result = ScanResult()
            if entry.status == "done":
                state = "done"
                result = entry.result
            is_noted = self._update(
                "UPDATE jobs SET state = :state, stage = '', reason = :reason, "
                "result = :result, ended = :now WHERE id = :id",
                id=entry.case,
                state=state,
                reason=entry.reason,
                result=result.model_dump_json(),
                now=time.time(),
            )
            if not is_noted:
                return None
            self._clients.pop(entry.case, None)
            self.ended[state] += 1
            if state == "done":
                self.busy_s += sum(entry.timings_s.values())
            return self.find(id=entry.case)

    def _take_results(self, submission: Submission, entry: Entry) -> None:
        """Move the results of a scan from `entry.staged` to the scan's folder.

        The tables volumes.tsv and, if there are parcels, parcels.tsv are added to them first.
        """
        staged = Path(entry.staged)
        write_volumes(staged / "volumes.tsv", [entry])
        if entry.result.parcels:
            write_parcels(staged / "parcels.tsv", [entry])
        shutil.rmtree(self.result(submission), ignore_errors=True)
        staged.rename(self.result(submission))
        sync(self._folder_of(submission.id))

    def renew(self, submission: Submission) -> None:
        """Restart the retention period of a finished scan, because somebody is using it.

        An unfinished scan has no retention period, and is left as it is.
        """
        self._update(
            "UPDATE jobs SET ended = :now WHERE id = :id AND ended",
            id=submission.id,
            now=time.time(),
        )

    def delete(self, submission: Submission) -> None:
        """Delete a scan and its results, whatever its state; do nothing if it is gone."""
        # Renaming removes the whole folder at once. The row is deleted last: on a full disk, SQLite
        # has no room for it until the folder is gone.
        gone = self.staging / secrets.token_hex(16)
        with self._lock:
            try:
                self._folder_of(submission.id).rename(gone)
            except FileNotFoundError:
                return
            shutil.rmtree(gone, ignore_errors=True)
            self._execute("DELETE FROM jobs WHERE id = :id", id=submission.id)
            self._clients.pop(submission.id, None)
        self.forget()

    def sweep(self) -> None:
        """Delete the scans whose retention period (`keep_s`) is over."""
        oldest_kept = time.time() - self.keep_s
        for submission in self._select("WHERE ended"):
            if submission.ended <= oldest_kept:
                self.delete(submission)

    def scan(self, submission: Submission) -> Path:
        """Return the path of the uploaded file of a scan."""
        return self._folder_of(submission.id) / f"scan{submission.ending}"

    def result(self, submission: Submission) -> Path:
        """Return the folder of a scan's results; it exists once the scan is done."""
        return self._folder_of(submission.id) / "result"

    def drafts(self, submission: Submission) -> Path:
        """Return the folder for drafts of a scan's correction, which the viewer saves."""
        return self._folder_of(submission.id) / "drafts"

    def file(self, submission: Submission, product: Product, ending: str = "") -> Path:
        """Return the path of a result file of a scan, by the kind of output (`product`).

        `ending` replaces the usual file ending of this output, such as .json for the file beside
        it. The file may not exist.
        """
        names = CaseNames(self.result(submission), submission.id, {}, bids=False)
        return names.path(product, ending)

    def _folder_of(self, id: str) -> Path:
        return self.folder / "jobs" / id


def _require_free(folder: Path) -> None:
    """Raise OutputError if a new queue in a folder would delete or overwrite files in it."""
    for name in _OF_QUEUE:
        if (folder / name).exists():
            raise OutputError(
                f"holds {name} but no queue, and a queue would delete or overwrite it",
                where=folder,
                remedy="give another folder as --queue",
            )


class _StoppedError(Exception):
    """Raised to leave the engine when the server stops; unfinished scans stay in the queue."""


class EngineThread(threading.Thread):
    """Thread that passes scans from the queue to the engine, and the outcomes back to the queue.

    The engine is that of `trinat predict`: it takes cases (a scan and its id) from an endless
    iterator, segments them in worker processes, and yields the `Entry` with the outcome of each.

    `ready` is True once the engine has loaded a model. `error` is the exception that ended the
    engine; None while it runs.
    """

    def __init__(self, queue: Queue, plan: PredictRequest, model: Path) -> None:
        """Create the thread, which `start` starts.

        `plan` has the settings of the segmentation, and `model` is the model's folder.
        """
        super().__init__(name="engine", daemon=True)
        self.queue = queue
        self.error: Exception | None = None
        self.ready = False
        settings = plan.settings(model, queue.staging)
        self._engine = local_engine(
            settings,
            plan.worker_devices,
            timeout_s=plan.limit_s,
            poll_s=_POLL_S,
            on_stage=self._on_stage,
        )
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run the engine until `stop` is called; if it ends by itself, stop the whole server."""
        try:
            for (entry,) in self._engine.run(self._cases(), self._leave_if_stopping):
                submission = self.queue.finish(entry)
                if submission:
                    took_s = submission.ended - submission.accepted
                    _log.info("%s %s, %.1f s", submission.id, submission.state, took_s)
            self.error = DeviceError("the worker stopped unexpectedly")
        except _StoppedError:
            return
        except Exception as error:
            self.error = error
            _log.error("%s", reason_of(error, where=False))
        self.ready = False
        # Without an engine the server stops; the next start resumes the queue.
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """Stop the engine; the next start resumes unfinished scans."""
        self._stopping.set()
        self.join(_STOP_S)
        if self.error is None:
            self.queue.interrupt()

    def _on_stage(self, case: str, stage: str) -> None:
        """Record that the engine begins a stage of a scan, such as "reading".

        `case` is the id of the scan; "" means that a model was loaded.
        """
        if case:
            self.queue.enter(case, stage)
        elif not self.ready:
            self.ready = True
            _log.info("ready")

    def _leave_if_stopping(self) -> bool:
        """Raise _StoppedError if the server is stopping, which leaves the engine at once.

        The engine calls this as its `stop` function. False lets it go on.
        """
        if self._stopping.is_set():
            raise _StoppedError
        return False

    def _cases(self) -> Iterator[Case | None]:
        """Yield the waiting scans of the queue, without end; yield None if no scan waits.

        Expired scans are deleted once a minute.
        """
        swept = 0.0
        while True:
            if time.monotonic() - swept > _SWEEP_S:
                self.queue.sweep()
                swept = time.monotonic()
            yield self.queue.next()
