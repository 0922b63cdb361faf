"""One subject of a store: made in a process of a pool, unless what is there is current."""

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
    """What became of a subject; `stored` is what the store is to say of one that is done.

    `reason` says in one line why it failed, or what is to be looked at in one that is done.
    """

    subject: str
    status: Literal["done", "failed"]
    reason: str = ""
    stored: StoredSubject | None = None

    @property
    def failure(self) -> str:
        """Why the subject failed; empty if it did not."""
        if self.status == "failed":
            return self.reason
        return ""


@dataclass(frozen=True)
class SubjectJob:
    """All that a worker process needs for one subject.

    `path` is its file in the store. With `require_checksum` a scan or label map without one is
    refused. `pseudo` is the model that made its labels, if one did, and `known` what the store
    said of it before.
    """

    subject: Subject
    path: Path
    cut: Cut
    require_checksum: bool
    pseudo: Pseudo | None
    known: StoredSubject | None

    def bring_up_to_date(self) -> StoredSubject:
        """Make the subject's file unless it is current; what the store is to say of it.

        Current is a file whose sources, settings and content are the same as before. Errors of the
        subject's files are raised; the caller notes them.
        """
        subject = self.subject
        image = digest_of(subject.image)
        labels = digest_of(subject.labels)
        csf = digest_of(subject.csf)
        mask = digest_of(subject.mask)
        wanted = fingerprint(subject, self.cut, image, labels, csf, mask)
        stamp = self._current(wanted)
        if stamp is None:
            prepare_subject(subject, self.path, self.cut, wanted)
            stamp = FileStamp.of(self.path)
        return StoredSubject(
            fingerprint=wanted,
            file=stamp,
            has_image=subject.image is not None,
            has_labels=subject.labels is not None,
            image=_original(subject.image, image, subject.image_axes),
            labels=_original(subject.labels, labels, subject.labels_axes),
            extra=subject.extra,
            ignore=subject.ignore,
            pseudo=self.pseudo,
            licence=subject.licence,
        )

    @property
    def warning(self) -> str:
        """What the subject's file says of labels that do not lie on their scan, if they do not."""
        file = SubjectFile(self.path)
        notes = file.notes
        file.close()
        return next((note for note in notes if note.startswith(BADLY_PLACED)), "")

    def _current(self, wanted: str) -> FileStamp | None:
        """The file's stamp, if it is of these inputs and settings, and still as it was written."""
        if not self.path.exists():
            return None
        file = SubjectFile(self.path)
        try:
            stored = file.fingerprint
        except (TrinatError, OSError, KeyError):
            return None  # of an older format, or damaged
        finally:
            file.close()
        if stored != wanted:
            return None
        if self.known is None or self.known.fingerprint != wanted:
            # Made by a run that was stopped before its end.
            return FileStamp.of(self.path)
        return self.known.file.renewed(self.path)


def _original(
    path: Path | None, digest: str | None, axes: str | None
) -> Original | None:
    """A file's place, for whoever has another current folder; links are not followed."""
    if path is None or digest is None:
        return None
    return Original(path=path.absolute(), sha256=digest, axes=axes)


def make_subject(job: SubjectJob) -> Outcome:
    """Prepare one subject unless it is current; whatever is wrong with it stays its own matter.

    A full disk alone is raised: no other subject has room either, and what is there stays.
    """
    name = job.subject.id
    try:
        for path in (job.subject.image, job.subject.labels):
            if path is not None and job.require_checksum and not has_checksum(path):
                raise FormatError(NO_CHECKSUM, where=path)
        stored = job.bring_up_to_date()
        return Outcome(name, "done", job.warning, stored)
    except Exception as error:
        if is_disk_full(error):
            raise
        # An older state of a subject that cannot be made any more would pass for the new one.
        job.path.unlink(missing_ok=True)
        return Outcome(name, "failed", reason_of(error))


def killed(job: SubjectJob) -> Outcome:
    """The outcome of a subject whose process died."""
    job.path.unlink(missing_ok=True)
    reason = "its process was killed (out of memory?): try again with fewer --jobs"
    return Outcome(job.subject.id, "failed", reason)
