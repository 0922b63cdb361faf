"""What is in the queue, as the page of results lists it: the last first, and not to be rated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.common.naming import Product
from pipelines.predict.ledger import Entry
from pipelines.predict.outputs import PLAIN_LABEL_TABLE
from pipelines.predict.tables import write_label_table
from pipelines.serve.queue import Job, Queue
from pipelines.view.study import Item, Study
from segmentation.errors import InputError
from segmentation.labels.scheme import LabelScheme


class QueueStudy(Study):
    """Scans have the numbers with which they were accepted: those of a list would change."""

    queue: Queue

    def __init__(self, queue: Queue, scheme: LabelScheme) -> None:
        super().__init__(queue.folder, rater="")
        self.__dict__["queue"] = queue  # frozen otherwise
        write_label_table(queue.folder / PLAIN_LABEL_TABLE, scheme, by_index=False)

    @property
    def jobs(self) -> list[Job]:
        return list(self.queue.jobs.values())[::-1]

    @property
    def items(self) -> list[Item]:
        return [self._item(job) for job in self.jobs]

    def __getitem__(self, number: int) -> Item:
        for job in self.jobs:
            if job.number == number:
                return self._item(job)
        raise InputError("no such scan: deleted, or never there")

    def image(self, item: Item) -> Path | None:
        scan = Path(item.entry.scan)
        return scan if item.labels and scan.suffix != ".zip" else None

    def overview(self) -> dict[str, Any]:
        """With what a page needs to send a scan, to follow it and to take its results."""
        jobs = {job.id: job for job in self.jobs}
        known = super().overview()
        scans = [
            {**scan, "number": job.number, **self.queue.seen(job).model_dump(exclude={"grade"})}
            for scan in known["scans"]
            if (job := jobs.get(scan["name"]))
        ]
        return {**known, "title": "Scans sent to this service", "service": True, "scans": scans}

    def rate(self, *_: object, **__: object) -> None:
        raise InputError("results of a service are not rated: they are deleted after a while")

    def _item(self, job: Job) -> Item:
        scan = self.queue.result(job).with_name(f"scan{job.ending}")
        labels = self.queue.file(job, Product.LABELS) if job.state == "done" else None
        state: Any = job.state
        entry = Entry(job.id, state, scan=str(scan), reason=job.reason, result=job.result)
        return Item(job.id, self.folder, entry, labels)
