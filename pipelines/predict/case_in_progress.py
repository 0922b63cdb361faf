"""State of a case between file and outputs, and its first step: reading.

Imports no torch: the first scan is read while torch is being imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trinat.pipelines.predict.settings import RunSettings
from trinat.pipelines.study.cases import Case, Participant, Work
from trinat.pipelines.study.entry import Entry
from trinat.pipelines.study.record import TimePoint
from trinat.pipelines.study.stored import refuse_changed
from trinat.segmentation.errors import InputError, reason_of
from trinat.segmentation.io.streams import SCAN_SUFFIXES
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.zoo import is_for_any_contrast
from trinat.segmentation.timing import Clock, stage, timed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trinat.segmentation.inference.prediction import Prediction
    from trinat.segmentation.longitudinal.participant import Together
    from trinat.segmentation.space.conform import Conformed


@dataclass
class ScanInProgress:
    """State of a scan while it is segmented, from its file to its outputs.

    Each step adds what the next step needs and drops what it does not need. `volume` is the scan as
    read, `conformed` the scan on the grid of the networks, and `found` its segmentation; each is
    None before its step. `digest` is the SHA-256 of the bytes that were read. `clock` measures the
    time of each step.
    """

    case: Case
    volume: Volume | None = None
    digest: str = ""
    conformed: Conformed | None = None
    # Image that is aligned with the participant's other scans; None for a single scan.
    to_align: Volume | None = None
    found: Prediction | None = None
    clock: Clock = field(default_factory=Clock)
    # Set if the scan was segmented together with other scans of the participant: data for the
    # tables of changes, and the cases of all these scans.
    longitudinal: TimePoint | None = None
    # If lesions were requested: the numbers of the scan's lesions in the participant's space, and
    # how many lesions there are.
    lesions: tuple[NDArray[np.int32], int] | None = None
    # True if the scan or its lesions are graded reject.
    has_rejected_lesions: bool = False
    together: tuple[Case, ...] = ()


@dataclass
class CaseInProgress:
    """State of a case while it is segmented: of its scan, or of all scans of a participant.

    `failed` has the ledger entries of a participant's scans that failed while the others go on.
    `together` is the joint segmentation of a participant's scans: None for a single scan, before
    the networks have run, and if fewer than two scans are left.
    """

    case: Work
    scans: list[ScanInProgress]
    failed: list[Entry] = field(default_factory=list)
    together: Together | None = None
    # Difference in the size of the head between each scan and most of the scans, in per cent.
    stretches_percent: tuple[float, ...] = ()


def read(case: Work, settings: RunSettings) -> CaseInProgress:
    """Read the scan of a case, or all scans of a participant, to be segmented.

    If `case` is a scan, an error is raised if it cannot be read. Scans of a participant that cannot
    be read become failed ledger entries, and the other scans continue.
    """
    if not isinstance(case, Participant):
        return CaseInProgress(case, [_read_scan(case, settings)])
    reading = CaseInProgress(case, [])
    for scan in case.scans:
        try:
            reading.scans.append(_read_scan(scan, settings))
        except Exception as error:
            reading.failed.append(failed_entry(scan, settings, error))
    return reading


def failed_entries(case: Work, settings: RunSettings, reason: str) -> list[Entry]:
    """Return the ledger entries of all scans of a case that has failed as a whole."""
    return [Entry.failed(scan, settings, reason) for scan in case.scans]


def failed_entry(scan: Case, settings: RunSettings, error: Exception) -> Entry:
    """Return the ledger entry of a participant's scan that cannot be read or resampled.

    An InputError means that the scan itself is the reason, so it would fail again.
    """
    reason = reason_of(error, where=False)
    if isinstance(error, InputError):
        return Entry.unusable(scan, settings, reason)
    return Entry.failed(scan, settings, reason)


def _read_scan(case: Case, settings: RunSettings) -> ScanInProgress:
    """Read the scan of a case; raise if its file is damaged.

    Reading is timed on the clock of the scan. A scan of a slice store must have the SHA-256 that
    the store has noted; InputError is raised if not.
    """
    scan = ScanInProgress(case)
    # Cases of a service name no series of their DICOM files.
    is_dicom = not case.path.name.lower().endswith(SCAN_SUFFIXES)
    with timed(scan.clock), stage("read"):
        scan.volume = Volume.read(
            case.path,
            series=case.series,
            axes=case.axes,
            trust_affine=settings.output.trust_affine,
            fill_nonfinite=settings.output.fill_nonfinite,
            any_contrast=is_dicom and is_for_any_contrast(settings.model),
        )
    # Computed during reading, so that the ledger has the bytes that were segmented.
    if scan.volume.source_sha256 is not None:
        scan.digest = scan.volume.source_sha256
    refuse_changed(case.sha256, scan.digest, case.path)
    return scan
