"""Run `trinat learn` as a job of the service: adapt its model to the corrections in its queue.

The folder `learning` of the queue has the record of the last job, job.json, and the model that it
made. A job waits until the scans that were submitted before it are segmented, and then runs beside
the segmentation of later scans, in a process of its own with a low priority. It is resumed after a
restart of the server. The training data prepared from the scans are deleted when the job ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import BaseModel, Field

from trinat.pipelines.jobs.pool import follow_parent
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.serve.queue import FullError, State
from trinat.pipelines.serve.queue_study import QueueStudy
from trinat.pipelines.serve.settings import MAX_STARTS
from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import DiskFullError, InputError, reason_of
from trinat.segmentation.io.files import read_text, write_whole

_log = logging.getLogger("trinat.serve")
_POLL_S = 0.2
_RECORD_FILE = "job.json"
_MODEL = "own"


class Learning(BaseModel):
    """State of a job, as clients see it."""

    state: State = "queued"
    scans: int = Field(description="corrected when it was asked for")
    said: str = Field(
        default="", description="for a running job: the last finished step"
    )
    lines: list[str] = Field(
        default=[],
        description="the new model, the reason for it, and its Dice before and after",
    )
    reason: str = Field(default="", description="why there is no model")


class _Record(Learning):
    """State of a job, as stored on disk in job.json."""

    after: int = 0  # number of the last scan that was accepted before the job
    begun: int = 0  # how often the job was started


class Learner:
    """Manager of the job that improves a model with the corrected scans of a queue; one at a time.

    `job` is the state of the last job; None if there was none. The job improves the model of the
    service and uses as many CPU threads as the service.
    """

    def __init__(
        self, study: QueueStudy, model: str, device: str, threads: int | None
    ) -> None:
        """Read job.json, the state of the last job of an earlier server, if the queue has it.

        `study` has the scans of the queue with their results. `model` (name or folder) is the model
        to improve. `device` and `threads` (of the CPU) are used to improve it.
        """
        self._study = study
        self._folder = study.folder / "learning"
        self._settings = LearnSettings(
            results=study.folder,
            out=self._folder / _MODEL,
            model=model,
            device=device,
            threads=threads,
            overwrite=True,
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread()
        self.job: _Record | None = None
        record = self._folder / _RECORD_FILE
        if record.is_file():
            self.job = _Record.model_validate_json(read_text(record))

    @property
    def model(self) -> Path:
        """Path of the model as a zip; the file exists once the job is done."""
        return self._folder / f"{_MODEL}.zip"

    @property
    def corrected(self) -> list[ScanFile]:
        """Scans of the queue with a corrected result and an image that can be read again.

        DICOM series are missing, because their image cannot be read again.
        """
        return [
            scan
            for scan in self._study.scans
            if self._study.image(scan) is not None and scan.correction is not None
        ]

    def start(self) -> None:
        """Resume an unfinished job of an earlier server."""
        with self._lock:
            if self.job is not None and self.job.state in ("queued", "running"):
                self._begin()

    def ask(self) -> Learning:
        """Start to improve the model with the current corrections; return the state of the new job.

        The record and the model of the previous job are deleted. Raises FullError while a job is
        queued or running, and InputError if no result has a correction.
        """
        with self._lock:
            if self._thread.is_alive():
                raise FullError("a model is being learnt")
            corrected = self.corrected
            if not corrected:
                raise InputError("there are no corrections yet: correct a result first")
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            numbers = [each.number for each in self._study.submissions]
            self.job = _Record(scans=len(corrected), after=max(numbers))
            self._write_record()
            self._begin()
            return self.job

    def delete(self) -> None:
        """Stop the job, and delete its record and its model."""
        self.stop()
        with self._lock:
            self.job = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Stop the job and wait until its thread ends; a later start of the server resumes it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _begin(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Carry out the job in the background thread, from waiting to the record of its outcome.

        First wait until every scan that was submitted before the job has been segmented or has
        failed. Then improve the model, and record the job as done or failed. A job that has already
        been started `MAX_STARTS` times, each time interrupted by the end of the server, is recorded
        as failed. If the server stops, the job stays unfinished, to be resumed.
        """
        job = self.job
        assert job is not None
        # Wait for the scans that were accepted before the job.
        while any(
            not each.ended and each.number <= job.after
            for each in self._study.submissions
        ):
            if self._stopping.wait(_POLL_S):
                return
        if job.begun >= MAX_STARTS:
            what = f"the server ended {job.begun} times while it was at work"
            self._end(job, "failed", what)
            return
        job.state = "running"
        job.begun += 1
        try:
            self._write_record()
            self._work(job)
        except Exception as error:
            self._end(job, "failed", reason_of(error, where=False))

    def _work(self, job: _Record) -> None:
        """Improve the model in a separate process, and record the new one, or why there is none.

        If the server stops, the process is killed and nothing is recorded; the next start of the
        server begins the job again.
        """
        scans = _GivenScans(self._study.folder, given=self.corrected)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        # Not fork, because this process has threads.
        process = multiprocessing.get_context("spawn").Process(
            target=_learn, args=(sender, scans, self._settings)
        )
        process.start()
        sender.close()
        ended = _Answer("failed", reason="its process ended, perhaps out of memory")
        try:
            while not self._stopping.is_set():
                if not receiver.poll(_POLL_S):
                    continue
                try:
                    answer = receiver.recv()
                except EOFError:
                    break
                if answer.state == "running":
                    job.said = answer.said
                else:
                    ended = answer
        finally:
            if self._stopping.is_set():
                process.kill()
            process.join()
            receiver.close()
        if self._stopping.is_set():
            return
        job.lines = list(ended.lines)
        self._end(job, ended.state, ended.reason)

    def _end(self, job: _Record, state: State, reason: str) -> None:
        shutil.rmtree(self._folder / f"{_MODEL}-training", ignore_errors=True)
        job.state = state
        job.reason = reason
        job.said = ""
        self._write_record()
        _log.info("learning %s", state)

    def _write_record(self) -> None:
        """Write the job's record to disk; if the disk is full, log this and keep the old record."""
        assert self.job is not None
        try:
            write_whole(self._folder / _RECORD_FILE, self.job.model_dump_json())
        except DiskFullError as error:
            _log.error("learning: %s", reason_of(error, where=False))


@dataclass(frozen=True)
class _GivenScans(Study):
    """Study with a fixed list of scans (`given`), which can be sent to another process."""

    given: Sequence[ScanFile] = field(kw_only=True)

    @property
    def scans(self) -> list[ScanFile]:
        return list(self.given)


@dataclass(frozen=True)
class _Answer:
    """Message to the service from the process that improves the model.

    `state` is "running" during the training, and "done" or "failed" in the last message. `said` is
    the last line of the training's log. `lines` describe the new model, and `reason` is the reason
    of a failure.
    """

    state: State
    said: str = ""
    lines: Sequence[str] = ()
    reason: str = ""


class _Sender(logging.Handler):
    """Log handler that sends each log message of the training process to the service."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.INFO)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send the text of a log record to the service, as the last finished step."""
        self._connection.send(_Answer("running", said=record.getMessage()))


def _learn(connection: Connection, study: Study, settings: LearnSettings) -> None:
    """Run `trinat learn`, write its model as a zip file, and send the outcome.

    This is the target of the process. Log messages, and at last the outcome, are sent as `_Answer`
    through `connection`.
    """
    follow_parent()
    os.nice(10)
    from trinat.pipelines.learn.learning import learn

    prepare_process(settings.threads)
    try:
        logger = logging.getLogger("trinat")
        logger.addHandler(_Sender(connection))
        logger.setLevel(logging.INFO)
        learnt = learn(settings, study=study)
        shutil.make_archive(
            str(settings.out), "zip", settings.out.parent, settings.out.name
        )
        answer = _Answer("done", lines=learnt.lines)
    except Exception as error:
        answer = _Answer("failed", reason=reason_of(error, where=False))
    connection.send(answer)
