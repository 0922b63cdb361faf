"""Preparation of one subject of a store, in a worker process, unless its file is current."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinat.segmentation.data.preparing import (
    BADLY_PLACED,
    Cut,
    digest_of,
    fingerprint,
    prepare_subject,
)
from trinat.segmentation.data.slices import SubjectFile
from trinat.segmentation.data.sources.base import Subject
from trinat.segmentation.data.store import FileStamp, Original, Pseudo, StoredSubject
from trinat.segmentation.errors import FormatError, TrinatError, is_disk_full, reason_of
from trinat.segmentation.io.streams import NO_CHECKSUM, has_checksum


@dataclass(frozen=True)
class Outcome:
    """Outcome of the preparation of a subject.

    `stored` is the subject's entry for store.json, None if it failed. `reason` says in one line why
    it failed, or what to check in a subject that is done.
    """

    subject: str
    status: Literal["done", "failed"]
    reason: str = ""
    stored: StoredSubject | None = None

    @property
    def failure(self) -> str:
        """The reason of a failure, or ""."""
        if self.status == "failed":
            return self.reason
        return ""


@dataclass(frozen=True)
class SubjectJob:
    """Task of a worker process: the preparation of one subject.

    `path` is the subject's file in the store. With `require_checksum`, scans, label maps and masks
    in formats without a checksum are refused. `cut` has the settings of the store: classes, views
    and size of the grid. `pseudo` is the model that made its labels, None if no model did. `known`
    is the subject's entry in the store before this run, None if there was none.
    """

    subject: Subject
    path: Path
    cut: Cut
    require_checksum: bool
    pseudo: Pseudo | None
    known: StoredSubject | None

    def bring_up_to_date(self) -> StoredSubject:
        """Write the subject's slices unless its file is current; return its entry for store.json.

        A file is current if its sources, settings and content are the same as before.
        """
        subject = self.subject
        image = digest_of(subject.image)
        labels = digest_of(subject.labels)
        csf = digest_of(subject.csf)
        mask = digest_of(subject.mask)
        wanted = fingerprint(subject, self.cut, image, labels, csf, mask)
        stamp = self._current_stamp(wanted)
        if stamp is None:
            prepare_subject(subject, self.path, self.cut, wanted)
            stamp = FileStamp.of(self.path)
        return StoredSubject(
            fingerprint=wanted,
            file=stamp,
            has_image=subject.image is not None,
            has_labels=subject.labels is not None,
            has_mask=subject.mask is not None,
            image=_original_of(subject.image, image, subject.image_axes),
            labels=_original_of(subject.labels, labels, subject.labels_axes),
            extra=subject.extra,
            ignore=subject.ignore,
            pseudo=self.pseudo,
            licence=subject.licence,
            participant=subject.participant,
        )

    @property
    def warning(self) -> str:
        """Note that the labels do not lie on their scan; "" if they do."""
        file = SubjectFile(self.path)
        notes = file.notes
        file.close()
        return next((note for note in notes if note.startswith(BADLY_PLACED)), "")

    def _current_stamp(self, wanted: str) -> FileStamp | None:
        """Return hash, size and time of the subject's file if it is up to date, else None.

        `wanted` is the hash of the present inputs and settings. The file is up to date if it was
        made from these and has not changed since.
        """
        if not self.path.exists():
            return None
        file = SubjectFile(self.path)
        try:
            stored = file.fingerprint
        except (TrinatError, OSError, KeyError):
            return None  # damaged
        finally:
            file.close()
        if stored != wanted:
            return None
        if self.known is None or self.known.fingerprint != wanted:
            # Made by a run that was stopped before its end.
            return FileStamp.of(self.path)
        return self.known.file.renewed(self.path)


def _original_of(
    path: Path | None, digest: str | None, axes: str | None
) -> Original | None:
    """Return path, hash and axes of an input file, for store.json; None if there is none.

    `digest` is its SHA-256, and `axes` are its voxel axes if the header lacks them. The path is
    made absolute, without following links.
    """
    if path is None or digest is None:
        return None
    return Original(path=path.absolute(), sha256=digest, axes=axes)


def make_subject(job: SubjectJob) -> Outcome:
    """Write the slices of one subject unless they are up to date; return the outcome or the error.

    Only the error of a full disk is raised, because there is no room for other subjects either.
    """
    name = job.subject.id
    try:
        for path in (job.subject.image, job.subject.labels, job.subject.mask):
            if path is not None and job.require_checksum and not has_checksum(path):
                raise FormatError(NO_CHECKSUM, where=path)
        stored = job.bring_up_to_date()
        return Outcome(name, "done", job.warning, stored)
    except Exception as error:
        if is_disk_full(error):
            raise
        # The file of an earlier run would pass for a new one.
        job.path.unlink(missing_ok=True)
        return Outcome(name, "failed", reason_of(error))


def killed(job: SubjectJob) -> Outcome:
    """Return the outcome of a subject whose process died, and delete its file."""
    job.path.unlink(missing_ok=True)
    reason = "its process was killed (out of memory?): try again with fewer --jobs"
    return Outcome(job.subject.id, "failed", reason)
