"""Scans of the queue as a `ViewedStudy`: the list of scans that the page of `trinat view` shows.

At each request, the list is made from the current queue rather than from the run ledger of a
folder. The page can save corrections of the segmentations, but no ratings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trinat.pipelines.predict.tables import write_label_table
from trinat.pipelines.serve.queue import Queue, Submission
from trinat.pipelines.study.corrections import Correction
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import ParsedName, ScanFile
from trinat.pipelines.study.naming import PLAIN_LABEL_TABLE, PLAIN_PARCEL_TABLE, Product
from trinat.pipelines.view.viewed import ViewedStudy
from trinat.segmentation.errors import InputError
from trinat.segmentation.labels.scheme import LabelScheme


def study_of(
    queue: Queue, scheme: LabelScheme, parcels: LabelScheme | None = None
) -> QueueStudy:
    """Return the queue's scans as the study that the page shows, and write its label tables.

    The tables (number, name and colour of each label) are written to the queue's folder. `scheme`
    has the labels of label maps, and `parcels` those of parcel maps; None if the service makes no
    parcel maps.
    """
    write_label_table(queue.folder / PLAIN_LABEL_TABLE, scheme, by_index=False)
    table = queue.folder / PLAIN_PARCEL_TABLE
    table.unlink(missing_ok=True)
    if parcels is not None:
        write_label_table(table, parcels, by_index=False)
    return QueueStudy(queue.folder, rater="", queue=queue)


@dataclass(frozen=True)
class QueueStudy(ViewedStudy):
    """Scans of a queue as a study: newest first, without ratings.

    A scan is identified by the number that it got when it was accepted, because its position in the
    list changes.
    """

    queue: Queue = field(kw_only=True)

    @property
    def corrector(self) -> str:
        """Name under which corrections are saved: "service".

        A service cannot tell users apart: everyone who has the token may correct.
        """
        return "service"

    def drafts(self, scan: ScanFile) -> Path:
        """Return a folder next to the scan, so that drafts are deleted with it."""
        return self.queue.drafts(self._submission(scan))

    def on_draft_saved(self, scan: ScanFile) -> None:
        """Restart the retention period of the scan: somebody is correcting it."""
        self.queue.renew(self._submission(scan))

    def on_correction_saved(self, scan: ScanFile, correction: Correction) -> None:
        """Restart the retention period of the scan: somebody is correcting it."""
        self.queue.renew(self._submission(scan))

    @property
    def submissions(self) -> list[Submission]:
        """Current scans of the queue, newest first."""
        return self.queue.submissions[::-1]

    @property
    def scans(self) -> list[ScanFile]:
        """All scans of the queue, in any state."""
        return [self._scan(submission) for submission in self.submissions]

    def __getitem__(self, number: int) -> ScanFile:
        """Return the scan with the number that it got when it was accepted.

        Raises InputError if there is no such scan.
        """
        submission = self.queue.find(number=number)
        if submission is None:
            raise InputError("no such scan: deleted, or never there")
        return self._scan(submission)

    def image(self, scan: ScanFile) -> Path | None:
        """Return the uploaded scan; None for DICOM, as in `Study.image`.

        A failed scan is not shown, because it may not be readable.
        """
        if scan.entry.status == "failed":
            return None
        return super().image(scan)

    def overview(self) -> dict[str, object]:
        """Return the title and properties of the list of scans, for the page.

        To those of `ViewedStudy.overview` it adds that this is a service, and whether volumes are
        compared with normative values.
        """
        return {
            **super().overview(),
            "title": "Scans sent to this service",
            "service": True,
            "norms": self.queue.has_norms,
        }

    def scan_rows(
        self, ratings: Sequence[Mapping[str, object]]
    ) -> list[dict[str, object]]:
        """Return the rows of the page's list of scans, with the state of each scan in the queue.

        `ratings` are passed on to `ViewedStudy.scan_rows`. Scans that were accepted or deleted
        meanwhile have no row.
        """
        submissions = {submission.id: submission for submission in self.submissions}
        rows = []
        for row in super().scan_rows(ratings):
            submission = submissions.get(str(row["name"]))
            if submission is None:
                continue  # accepted since, or deleted
            seen = submission.seen().model_dump(exclude={"grade"})
            rows.append({**row, "number": submission.number, **seen})
        return rows

    def rate(self, *_: object, **__: object) -> None:
        """Refuse every rating."""
        raise InputError(
            "results of a service cannot be rated, because they are deleted after a while"
        )

    def _submission(self, scan: ScanFile) -> Submission:
        """Return the row of a scan in the queue; raise InputError if it was deleted meanwhile."""
        submission = self.queue.find(scan.case)
        if submission is None:
            raise InputError("no such scan: deleted, or never there")
        return submission

    def _scan(self, submission: Submission) -> ScanFile:
        """Return a row of the queue as a scan of the list, with a label map if it is done."""
        labels = self.queue.file(submission, Product.LABELS)
        outputs = []
        if submission.state == "done":
            outputs.append(labels)
            if submission.result.parcels:
                outputs.append(self.queue.file(submission, Product.PARCELS))
            mask = self.queue.file(submission, Product.BRAIN_MASK)
            if mask.is_file():
                outputs.append(mask)
        # The page treats states that no ledger has, such as queued, as grades.
        state: Any = submission.state
        entry = Entry(
            submission.id,
            state,
            scan=str(self.queue.scan(submission)),
            reason=submission.reason,
            outputs={path.relative_to(self.folder).as_posix(): "" for path in outputs},
            result=submission.result,
        )
        return ScanFile(
            labels,
            ParsedName(submission.id, submission.id),
            participant=submission.id,
            entry=entry,
            folder=self.folder,
            case=submission.id,
            is_missing=submission.state != "done",
        )
