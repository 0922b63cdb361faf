"""A scan on its way from its file to its outputs. Imports no torch: it is read while that loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipelines.common.discovery import Case, refuse_changed
from pipelines.predict.outputs import RunSettings
from segmentation.io.volume import Volume
from segmentation.timing import Clock, stage, timed

if TYPE_CHECKING:
    from segmentation.inference.segmentation import Segmentation
    from segmentation.space.conform import Conformed


@dataclass
class Job:
    """Each step adds what the next needs and drops what it does not."""

    case: Case
    volume: Volume | None = None
    digest: str = ""
    conformed: Conformed | None = None
    found: Segmentation | None = None
    clock: Clock = field(default_factory=Clock)


def read(case: Case, settings: RunSettings) -> Job:
    job, output = Job(case), settings.output
    with timed(job.clock), stage("read"):
        job.volume = Volume.read(
            case.path,
            series=case.series,
            axes=case.axes,
            trust_affine=output.trust_affine,
            fill_nonfinite=output.fill_nonfinite,
        )
    # Taken while it was read: what is in the ledger is what was segmented.
    job.digest = job.volume.source_sha256 or ""
    refuse_changed(case.sha256, job.digest, case.path)
    return job
