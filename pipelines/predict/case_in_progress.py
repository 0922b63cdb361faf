"""A scan on its way from file to outputs, and its first step: reading.

Imports no torch: the first scan is read while that loads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case, Person, Work
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.files import refuse_changed
from trinat.pipelines.study.record import TimePoint
from trinat.segmentation.errors import reason_of
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.timing import Clock, stage, timed

if TYPE_CHECKING:
    from trinat.segmentation.inference.prediction import Prediction
    from trinat.segmentation.longitudinal.person import Together
    from trinat.segmentation.space.conform import Conformed


@dataclass
class CaseInProgress:
    """A scan on its way: each step adds what the next one needs and drops what it does not.

    `volume` is there after reading, `conformed` after preparing, `found` after the networks.
    `digest` is the SHA-256 of the bytes that were read.
    """

    case: Case
    volume: Volume | None = None
    digest: str = ""
    conformed: Conformed | None = None
    # Of one of several scans of a person: as it is aligned with the others.
    to_align: Volume | None = None
    found: Prediction | None = None
    clock: Clock = field(default_factory=Clock)
    # Of one of several scans of a person: what the tables of changes are made of, and the cases
    # of all scans that it was segmented with.
    longitudinal: TimePoint | None = None
    together: tuple[Case, ...] = ()


@dataclass
class PersonInProgress:
    """The scans of a person on their way, and the entries of those that gave no result.

    `together` is there after the networks, where two or more scans are left.
    """

    case: Person
    scans: list[CaseInProgress]
    failed: list[Entry] = field(default_factory=list)
    together: Together | None = None
    # How much larger the head is in each of the scans than in the first of them.
    stretches_percent: tuple[float, ...] = ()


def read(case: Work, settings: RunSettings) -> CaseInProgress | PersonInProgress:
    """Read the scan of a case, or those of a person.

    What is wrong with the scan of a case raises. Scans of a person that cannot be read fail, and
    do not take the others with them.
    """
    if not isinstance(case, Person):
        return _read_scan(case, settings)
    reading = PersonInProgress(case, [])
    for scan in case.scans:
        try:
            reading.scans.append(_read_scan(scan, settings))
        except Exception as error:
            reason = reason_of(error, where=False)
            reading.failed.append(Entry.failed(scan, settings, reason))
    return reading


def _read_scan(case: Case, settings: RunSettings) -> CaseInProgress:
    """Read the scan of a case. What is wrong with its file raises, as does one that was changed.

    The time is taken on the clock of the scan. `refuse_changed` raises if a store knows another
    checksum.
    """
    scan = CaseInProgress(case)
    with timed(scan.clock), stage("read"):
        scan.volume = Volume.read(
            case.path,
            series=case.series,
            axes=case.axes,
            trust_affine=settings.output.trust_affine,
            fill_nonfinite=settings.output.fill_nonfinite,
        )
    # Taken while it was read: what is in the ledger is what was segmented.
    if scan.volume.source_sha256 is not None:
        scan.digest = scan.volume.source_sha256
    refuse_changed(case.sha256, scan.digest, case.path)
    return scan
