"""What was accepted and what became of it, in a folder: however the server ends, none is lost.

`incoming` has uploads that are not accepted yet, and `staging` what workers are writing: both are
emptied at the start. An accepted one is jobs/ID: job.json, the scan, and at its end result/.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.naming import Product
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import CaseNames
from trinat.pipelines.predict.tables import write_volumes
from trinat.pipelines.web.guard import new_token
from trinat.segmentation.errors import DiskFullError, reason_of
from trinat.segmentation.io.files import atomic_text, read_text, sync

State = Literal["queued", "running", "done", "failed"]

# What may be asked for besides labels and volumes, and the setting that makes a worker write it.
OUTPUTS = {"mgz": "", "dicom-seg": "dicom_seg", "probabilities": "probabilities"}
_PROGRESS = {"reading": 0.1, "networks": 0.3, "writing": 0.8}
# Work on a scan that ended the whole server so often is not begun again.
_MAX_BEGUN = 5
_log = logging.getLogger("trinat.serve")


def default_folder() -> Path:
    """The user's own place for what a program keeps between its runs, by the XDG specification."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # A relative path is to be ignored.
    state = Path(given) if Path(given).is_absolute() else Path.home() / ".local/state"
    return state / "trinat" / "queue"


@contextmanager
def private_files() -> Iterator[None]:
    """What this process and those that it starts write is for the user alone: scans of patients."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


class FullError(Exception):
    """No more is accepted for now."""


class Segmentation(BaseModel):
    """What a client gets to know of its scan."""

    id: str = Field(examples=["0f8c2d6a9b1e4c7d8a5f3e2b1c0d9e8f"])
    state: State = "queued"
    place: int = Field(
        default=0, description="1 for the next that is begun, 0 for what is begun"
    )
    progress: float = Field(default=0.0, ge=0, le=1)
    reason: str = Field(default="", description="why it failed", examples=[""])
    grade: str = Field(
        default="", description="pass, look or reject", examples=["pass"]
    )
    notes: list[str] = []
    outputs: list[str] = Field(
        default=[], description="what was asked for", examples=[["mgz"]]
    )


class Job(Segmentation):
    model_config = ConfigDict(extra="forbid")
    number: int = 0  # in the order in which they were accepted
    ending: str = ""
    accepted: float = Field(default_factory=time.time)
    ended: float = 0.0
    begun: int = 0
    result: dict[str, Any] = {}  # as in a ledger
    client: str = Field(default="", exclude=True)
    given: bool = Field(default=False, exclude=True)  # to the engine


class Queue:
    """Used by the server's threads and by that of the engine."""

    def __init__(
        self,
        folder: Path,
        *,
        queued: int = 200,
        per_client: int = 50,
        keep_s: float = 86400,
    ) -> None:
        self.folder, self.keep_s = folder, keep_s
        self._queued, self._per_client = queued, per_client
        self.ended = {"done": 0, "failed": 0}  # since the start, as is:
        self.busy_s = 0.0
        self.forget: Callable[[], None] = lambda: (
            None
        )  # what memory holds of a deleted scan
        # Jobs whose record on the disk is behind, since the disk was full.
        self._behind: set[str] = set()
        self._uploading: list[str] = []
        self._lock = threading.RLock()
        for name in ("incoming", "staging"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "staging"):
            (folder / name).mkdir(exist_ok=True)
        jobs = [_read(path) for path in (folder / "jobs").iterdir()]
        self.jobs = {job.id: job for job in sorted(jobs, key=lambda job: job.number)}
        self._number = max((job.number for job in jobs), default=0)
        for job in jobs:
            if job.state == "running":
                job.state, job.progress = "queued", 0
            if job.state == "queued" and job.begun >= _MAX_BEGUN:
                self._end(
                    job,
                    "failed",
                    f"the server ended {job.begun} times while it was at work",
                )

    def token(self) -> str:
        """The queue's own: who waits for a result need not care for a restart."""
        path = self.folder / "token"
        if not path.exists():
            with atomic_text(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(new_token())
        return read_text(path).strip()

    @contextmanager
    def upload(self, client: str) -> Iterator[Path]:
        """A folder for an upload, gone after the block unless it was accepted."""
        with self._lock:
            mine = sum(
                not job.ended and job.client == client for job in self.jobs.values()
            )
            if len(self.waiting) + len(self._uploading) >= self._queued:
                raise FullError("the queue is full")
            if mine + self._uploading.count(client) >= self._per_client:
                raise FullError("as many of your scans wait as may")
            self._uploading.append(client)
        folder = self.folder / "incoming" / secrets.token_hex(16)
        try:
            folder.mkdir()
            yield folder
        finally:
            self._uploading.remove(client)
            shutil.rmtree(folder, ignore_errors=True)

    def accept(self, scan: Path, outputs: list[str], client: str) -> Segmentation:
        """Take a file scan.ENDING in the folder of an upload; from now on it is not lost."""
        sync(scan)
        with self._lock:
            self._number += 1
            ending = scan.name.removeprefix("scan")
            job = Job(id=scan.parent.name, number=self._number, ending=ending)
            job.outputs, job.client = outputs, client
            self._write(job, scan.parent)
            scan.parent.rename(self._place(job))
            sync(self.folder / "jobs")
            self.jobs[job.id] = job
            return self.seen(job)

    def next(self) -> Case | None:
        """The next scan for the engine."""
        with self._lock:
            job = next((job for job in self.waiting if not job.given), None)
            if job is None:
                return None
            job.given = True
            also = tuple(OUTPUTS[name] for name in job.outputs if OUTPUTS[name])
            return Case(
                job.id, self._place(job) / f"scan{job.ending}", job.id, also=also
            )

    def enter(self, id: str, stage: str) -> None:
        with self._lock:
            job = self.jobs.get(id)
            if job and not job.ended and stage in _PROGRESS:
                job.progress = _PROGRESS[stage]
                if job.state == "queued":
                    job.state, job.begun = "running", job.begun + 1
                    self._note(job)

    def finish(self, entry: Entry) -> Job | None:
        """Note what became of a scan; None if it was deleted meanwhile."""
        staged = Path(entry.staged) if entry.staged else None
        with self._lock:
            job = self.jobs.get(entry.case)
            try:
                if job and staged:
                    write_volumes(staged / "volumes.tsv", [entry])
                    shutil.rmtree(self.result(job), ignore_errors=True)
                    staged.rename(self.result(job))
                    sync(self._place(job))
            except Exception as error:
                entry = replace(
                    entry, status="failed", reason=reason_of(error, where=False)
                )
            is_done = entry.status == "done"
            if job and staged and is_done:
                job.grade = entry.result.get("grade", "")
                job.result = dict(entry.result)
                job.notes = [
                    *entry.result.get("reasons", ()),
                    *entry.result.get("notes", ()),
                ]
            elif staged:
                shutil.rmtree(staged, ignore_errors=True)
            if job:
                self._end(job, "done" if is_done else "failed", entry.reason)
                self.ended[job.state] += 1
                self.busy_s += sum(entry.timings_s.values())
            return job

    def seen(self, job: Job) -> Segmentation:
        with self._lock:
            before = sum(other.number < job.number for other in self.waiting)
            place = 1 + before if job.state == "queued" else 0
            known = job.model_dump(include=set(Segmentation.model_fields))
        return Segmentation(**(known | {"place": place}))

    def delete(self, job: Job) -> None:
        with self._lock:
            if self.jobs.pop(job.id, None) is None:
                return
            self._behind.discard(job.id)
            # Gone at once and whole; what a crash leaves of it is emptied at the start.
            gone = self.folder / "incoming" / secrets.token_hex(16)
            self._place(job).rename(gone)
        self.forget()
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self) -> None:
        """Delete what ended so long ago that it is not kept; bring records up to date."""
        with self._lock:
            for id in list(self._behind):
                self._note(self.jobs[id])
        before = time.time() - self.keep_s
        for job in [job for job in list(self.jobs.values()) if job.ended]:
            if job.ended <= before:
                self.delete(job)

    @property
    def waiting(self) -> list[Job]:
        with self._lock:
            return [job for job in self.jobs.values() if job.state == "queued"]

    def result(self, job: Job) -> Path:
        return self._place(job) / "result"

    def file(self, job: Job, product: Product, ending: str = "") -> Path:
        return CaseNames(self.result(job), job.id, {}, bids=False).path(product, ending)

    def _place(self, job: Job) -> Path:
        return self.folder / "jobs" / job.id

    def _end(self, job: Job, state: State, reason: str) -> None:
        job.state, job.reason, job.ended, job.progress = state, reason, time.time(), 1.0
        self._note(job)

    def _note(self, job: Job) -> None:
        """Bring the record on the disk up to date, or, where that is full, a while later.

        Until then a restart finds the record before, and does again what that says is to be done.
        """
        try:
            self._write(job, self._place(job))
        except DiskFullError as error:
            if job.id not in self._behind:
                _log.error(
                    "%s: %s, %s", job.id, job.state, reason_of(error, where=False)
                )
            self._behind.add(job.id)
        else:
            self._behind.discard(job.id)

    def _write(self, job: Job, folder: Path) -> None:
        with atomic_text(folder / "job.json") as file:
            file.write(job.model_dump_json())


def _read(folder: Path) -> Job:
    try:
        return Job.model_validate_json(read_text(folder / "job.json"))
    except (ValueError, OSError):  # not by us: files appear whole
        return Job(
            id=folder.name, state="failed", reason="its record is damaged", ended=1
        )
