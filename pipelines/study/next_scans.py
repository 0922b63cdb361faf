"""Selection of the scans whose label maps should be corrected next, for trinat next and the viewer.

The correction of a scan teaches the model about similar scans. The doubt about a scan is 1 minus
the agreement of its views. Scans are ranked greedily: each pick covers as much of the remaining
doubt as possible (facility location, Nemhauser et al. 1978: the result is never far from the best
choice). Only ledgers are read: the agreement of the views and the volume of each structure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.study.files import ScanFile
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError

Values = NDArray[np.float64]

# Maximum number of uncorrected scans that are compared: the most doubtful ones.
_MOST_COMPARED = 2000


@dataclass(frozen=True)
class Proposal:
    """A scan to correct next, as its index in the arrays that were given to `propose`.

    `share` is the fraction, 0 to 1, of the doubt about all scans that its correction is expected to
    remove.
    """

    scan: int
    share: float


@dataclass(frozen=True)
class Next:
    """A scan to correct next, for output.

    `scan` is its name. `agreement` is the mean Dice between the views, None if unknown. `share` is
    the fraction, 0 to 1, of the doubt about all scans that its correction is expected to remove.
    """

    scan: str
    participant: str
    grade: str
    agreement: float | None
    share: float

    @property
    def facts(self) -> dict[str, object]:
        """All fields, for JSON."""
        return asdict(self)


def next_of(
    study: Study, most: int, elsewhere: Collection[str] = ()
) -> tuple[list[Next], int]:
    """Return up to `most` scans to correct next, and the number of scans corrected so far.

    `elsewhere` has the names of scans that count as corrected although the folder of results has no
    correction of them. EvaluationError is raised if no scan has a result.
    """
    scans = [scan for scan in study.scans if scan.entry.status == "done"]
    if not scans:
        raise EvaluationError("no scan has a result here", where=study.folder)
    was_corrected = {scan.case for scan in scans if scan.case in elsewhere}
    for scan in scans:
        correction = scan.correction
        if correction and not correction.why_unfit(scan.entry.input_sha256):
            was_corrected.add(scan.case)
    rest = [scan for scan in scans if scan.case not in was_corrected]
    compared = [scan for scan in scans if scan.case in was_corrected]
    compared += nsmallest(_MOST_COMPARED, rest, key=lambda scan: scan.entry.doubt)

    proposals = propose(
        likeness(features_of(compared)),
        doubts_of(compared),
        [scan.participant for scan in compared],
        range(len(was_corrected)),
        most,
    )
    found = []
    for proposal in proposals:
        scan = compared[proposal.scan]
        found.append(
            Next(
                scan=scan.case,
                participant=scan.participant,
                grade=scan.entry.grade,
                agreement=scan.entry.result.mean_agreement,
                share=round(proposal.share, 4),
            )
        )
    return found, len(was_corrected)


def features_of(scans: Sequence[ScanFile]) -> Values:
    """Return the features by which N scans are compared, an array (N, F).

    Features are the logarithm of each structure's volume in mm³, followed by the agreement between
    views for each structure. NaN for structures that were not found or not measured.
    """
    results = [scan.entry.result for scan in scans]
    volumes = [result.volumes_mm3 for result in results]
    agreements = [result.agreement for result in results]
    structures = sorted({name for named in volumes for name in named})
    compared = sorted({name for named in agreements for name in named})
    rows = []
    for volume_of, agreement_of in zip(volumes, agreements, strict=True):
        row = []
        for name in structures:
            mm3 = volume_of.get(name) or np.nan
            row.append(np.log(mm3))
        for name in compared:
            agreement = agreement_of.get(name)
            row.append(np.nan if agreement is None else agreement)
        rows.append(row)
    return np.array(rows, np.float64).reshape(len(scans), -1)


def doubts_of(scans: Sequence[ScanFile]) -> Values:
    """Return the doubt about each of N scans, (N,): 1 minus the mean Dice between its views.

    It is 1 if the Dice is unknown.
    """
    doubts = []
    for scan in scans:
        agreement = scan.entry.result.mean_agreement
        doubts.append(1.0 if agreement is None else 1 - agreement)
    return np.array(doubts)


def likeness(features: Values) -> Values:
    """Return the similarity of each pair of N scans, (N, N) from 0 to 1, from features (N, F).

    Features have equal weight: each is standardised, and unknown values (NaN) count as average. Two
    scans at the median distance have the similarity 0.61.
    """
    known = ~np.isnan(features)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, features, 0).sum(0) / count
    deviations = np.where(known, features - mean, 0)
    spread = np.sqrt((deviations**2).sum(0) / count)
    scaled = deviations / np.where(spread > 0, spread, 1)
    lengths = (scaled**2).sum(1)
    # Rounding may make a square negative.
    squares = np.maximum(lengths[:, None] + lengths - 2 * scaled @ scaled.T, 0)
    of_pairs = squares[np.triu_indices(len(squares), 1)]
    usual = float(np.median(of_pairs)) if len(of_pairs) else 0.0
    if usual == 0:
        usual = 1.0
    return np.asarray(np.exp(-squares / (2 * usual)))


def propose(
    alike: Values,
    doubts: Values,
    participants: Sequence[str],
    corrected: Sequence[int],
    most: int,
) -> list[Proposal]:
    """Choose the scans to correct next: at most `most`, and one per participant, the best first.

    `alike` (N, N) has the similarity of each pair of scans, 0 to 1. `doubts` (N,) is the doubt
    about each scan, 0 or more. `participants` has the participant of each scan, `corrected` the
    indices of corrected scans. Participants with a corrected scan are skipped. A correction removes
    doubt about other scans in proportion to their similarity.
    """
    total = float(doubts.sum())
    done = {participants[scan] for scan in corrected}
    taught = np.zeros(len(doubts))
    if corrected:
        taught = alike[list(corrected)].max(0)
    proposals: list[Proposal] = []
    while len(proposals) < most:
        free = [
            scan
            for scan, participant in enumerate(participants)
            if participant not in done
        ]
        if not free:
            break
        # Doubt that each scan would cover beyond what is covered already.
        more = np.maximum(alike[free] - taught, 0) @ doubts
        best = int(np.argmax(more))
        scan = free[best]
        share = float(more[best]) / total if total > 0 else 0.0
        proposals.append(Proposal(scan, share))
        done.add(participants[scan])
        taught = np.maximum(taught, alike[scan])
    return proposals
