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

from trinat.pipelines.common.cases import Case
from trinat.pipelines.common.naming import Product
from trinat.pipelines.predict.entry import Entry
from trinat.pipelines.predict.outputs import CaseNames
from trinat.pipelines.predict.tables import write_volumes
from trinat.pipelines.serve.limits import (
    KEEP_HOURS,
    MAX_OF_CLIENT,
    MAX_STARTS,
    MAX_WAITING,
)
from trinat.pipelines.serve.records import (
    OUTPUTS,
    RECORD_FILE,
    Segmentation,
    State,
    Submission,
    read_record,
)
from trinat.pipelines.web.guard import new_token
from trinat.segmentation.errors import DiskFullError, reason_of
from trinat.segmentation.io.files import atomic_text, read_text, sync

# How far a scan is when a stage of the engine begins.
_PROGRESS = {"reading": 0.1, "networks": 0.3, "writing": 0.8}
_log = logging.getLogger("trinat.serve")


def default_folder() -> Path:
    """The user's own place for what a program keeps between its runs, by the XDG specification."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = Path.home() / ".local/state"
    # A relative path is to be ignored.
    if given.is_absolute():
        state = given
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


class Queue:
    """The scans that were accepted; used by the server's threads and by that of the engine.

    `submissions` has them by their id, in the order of acceptance. `ended` and `busy_s` count
    what has ended since the start and the seconds of work on it. `forget` is called after a scan
    was deleted: whoever holds something of it in memory sets it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        queued: int = MAX_WAITING,
        per_client: int = MAX_OF_CLIENT,
        keep_s: float = KEEP_HOURS * 3600,
    ) -> None:
        """Take up what an earlier server left in `folder`, which must be there.

        At most `queued` scans wait, and `per_client` of one client have not ended. `keep_s`
        seconds after its end a scan is deleted.
        """
        self.folder = folder
        self.keep_s = keep_s
        self.ended = {"done": 0, "failed": 0}
        self.busy_s = 0.0
        # Those that `busy_s` is of: a scan that failed says no seconds.
        self._timed = 0
        self.forget: Callable[[], None] = _forget_nothing
        self._queued = queued
        self._per_client = per_client
        # Ids whose record on the disk is out of date, because the disk was full.
        self._outdated: set[str] = set()
        self._uploading: list[str] = []  # their clients
        self._lock = threading.RLock()
        self._prepare_folders()
        records = [read_record(path) for path in (folder / "jobs").iterdir()]
        records.sort(key=lambda record: record.number)
        self.submissions = {record.id: record for record in records}
        self._last_number = max((record.number for record in records), default=0)
        for record in records:
            self._take_up(record)

    def _prepare_folders(self) -> None:
        """Make the folders of the queue, and empty those of unfinished work."""
        for name in ("incoming", "staging"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("incoming", "jobs", "staging"):
            (self.folder / name).mkdir(exist_ok=True)

    def _take_up(self, submission: Submission) -> None:
        """Put what was running at the last end of the server back in line, or give it up."""
        if submission.state == "running":
            submission.state = "queued"
            submission.progress = 0
            submission.stage = ""
        if submission.state == "queued" and submission.begun >= MAX_STARTS:
            reason = f"the server ended {submission.begun} times while it was at work"
            self._end(submission, "failed", reason)

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
            self._refuse_too_many(client)
            self._uploading.append(client)
        folder = self._new_folder()
        try:
            folder.mkdir()
            yield folder
        finally:
            self._uploading.remove(client)
            shutil.rmtree(folder, ignore_errors=True)

    def _refuse_too_many(self, client: str) -> None:
        """Raise FullError where one more scan of a client would be one too many."""
        if len(self.waiting) + len(self._uploading) >= self._queued:
            raise FullError("the queue is full")
        of_client = self._uploading.count(client)
        for submission in self.submissions.values():
            if not submission.ended and submission.client == client:
                of_client += 1
        if of_client >= self._per_client:
            raise FullError("as many of your scans wait as may")

    def _new_folder(self) -> Path:
        """A path in `incoming` that is not there yet and that no one can guess."""
        return self.folder / "incoming" / secrets.token_hex(16)

    def accept(self, scan: Path, outputs: list[str], client: str) -> Segmentation:
        """Take a file scan.ENDING in the folder of an upload; from now on it is not lost."""
        sync(scan)
        uploaded = scan.parent
        with self._lock:
            self._last_number += 1
            submission = Submission(
                id=uploaded.name,
                number=self._last_number,
                ending=scan.name.removeprefix("scan"),
                outputs=outputs,
                client=client,
            )
            _write_record(submission, uploaded)
            uploaded.rename(self._place(submission))
            sync(self.folder / "jobs")
            self.submissions[submission.id] = submission
            return self.seen(submission)

    def next(self) -> Case | None:
        """The next scan for the engine; None while none waits."""
        with self._lock:
            for submission in self.waiting:
                if not submission.given:
                    submission.given = True
                    return self._case(submission)
        return None

    def _case(self, submission: Submission) -> Case:
        """A submission as the engine knows it; paths below the queue name no one."""
        settings = [OUTPUTS[name] for name in submission.outputs]
        return Case(
            submission.id,
            self.scan(submission),
            submission.id,
            also=tuple(setting for setting in settings if setting),
        )

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
                    self._take_result(submission, entry, staged)
                except Exception as error:
                    reason = reason_of(error, where=False)
                    entry = replace(entry, status="failed", reason=reason)
            is_done = entry.status == "done"
            if staged and not (submission and is_done):
                shutil.rmtree(staged, ignore_errors=True)
            if submission is None:
                return None
            if staged and is_done:
                _copy_result(submission, entry)
            self._end(submission, "done" if is_done else "failed", entry.reason)
            self.ended[submission.state] += 1
            if entry.timings_s:
                self.busy_s += sum(entry.timings_s.values())
                self._timed += 1
            return submission

    def _take_result(self, submission: Submission, entry: Entry, staged: Path) -> None:
        """Move a folder of results, with the table of volumes, into its place."""
        write_volumes(staged / "volumes.tsv", [entry])
        shutil.rmtree(self.result(submission), ignore_errors=True)
        staged.rename(self.result(submission))
        sync(self._place(submission))

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
            known["seconds_left"] = self._seconds_left(submission)
        return Segmentation(**known)

    def _seconds_left(self, submission: Submission) -> int | None:
        """Of a running scan, by the mean of those that were segmented; None while none was."""
        if submission.state != "running" or not self._timed:
            return None
        since = time.monotonic() - submission.running_since
        return max(1, round(self.busy_s / self._timed - since))

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
        return self._place(submission) / submission.scan_name

    def result(self, submission: Submission) -> Path:
        """The folder of its results; it is there once the state is done."""
        return self._place(submission) / "result"

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


def _forget_nothing() -> None:
    """What a queue calls after a deletion while nobody holds anything of its scans."""


def _copy_result(submission: Submission, entry: Entry) -> None:
    """Grade, notes and measures of a scan that is done, from its line of the ledger."""
    reasons = entry.result.get("reasons", ())
    notes = entry.result.get("notes", ())
    submission.grade = entry.result.get("grade", "")
    submission.result = dict(entry.result)
    submission.notes = [*reasons, *notes]


def _write_record(submission: Submission, folder: Path) -> None:
    with atomic_text(folder / RECORD_FILE) as file:
        file.write(submission.model_dump_json())
