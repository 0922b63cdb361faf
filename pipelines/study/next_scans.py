"""Which scans of a folder of results to correct next (trinat next, and the viewer).

A correction teaches the scans that are like its own, each in proportion to its doubt. Scans are
ranked greedily: each pick covers as much of the remaining doubt as possible (facility location,
Nemhauser et al. 1978: the result is never far from the best choice). Only ledgers are read: the
agreement of the views and the volume of each structure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.study.corrections import correction_of
from trinat.pipelines.study.study import Item, Study
from trinat.segmentation.data.identity import Named, identify
from trinat.segmentation.errors import EvaluationError

Values = NDArray[np.float64]

# So many scans are compared with each other, beside those that were corrected: the most doubtful.
_MOST_COMPARED = 2000


def persons_of(items: Sequence[Item]) -> list[str]:
    """Whose each scan of a folder of results is.

    As it was segmented together with others of its person; else by its name and its folders.
    """
    identities = identify([Named.of_path(item.name) for item in items])
    persons = []
    for item, identity in zip(items, identities, strict=True):
        together = item.entry.result.longitudinal
        persons.append(identity.person if together is None else together.person)
    return persons


@dataclass(frozen=True)
class Proposal:
    """A scan by its number; `share` of all doubt is what its correction is expected to teach."""

    scan: int
    share: float


@dataclass(frozen=True)
class Next:
    """A scan to correct; `share` of all doubt is what its correction is expected to teach."""

    scan: str
    person: str
    grade: str
    agreement: float | None
    share: float

    @property
    def facts(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return asdict(self)


def next_of(
    study: Study, most: int, elsewhere: Collection[str] = ()
) -> tuple[list[Next], int]:
    """Return the scans of a study to correct next, `most` at most, and how many were corrected.

    Scans named in `elsewhere` were corrected, too. EvaluationError if no scan has a result.
    """
    items = [item for item in study.items if item.entry.status == "done"]
    if not items:
        raise EvaluationError("no scan has a result here", where=study.folder)
    persons = dict(zip((item.name for item in items), persons_of(items), strict=True))
    was_corrected = {item.name for item in items if item.name in elsewhere}
    for item in items:
        if item.labels is not None and correction_of(item.labels) is not None:
            was_corrected.add(item.name)
    rest = [item for item in items if item.name not in was_corrected]
    compared = [item for item in items if item.name in was_corrected]
    compared += nsmallest(_MOST_COMPARED, rest, key=lambda item: item.entry.doubt)

    proposals = propose(
        likeness(features_of(compared)),
        doubts_of(compared),
        [persons[item.name] for item in compared],
        range(len(was_corrected)),
        most,
    )
    found = []
    for proposal in proposals:
        item = compared[proposal.scan]
        found.append(
            Next(
                scan=item.name,
                person=persons[item.name],
                grade=item.entry.grade,
                agreement=item.agreement,
                share=round(proposal.share, 4),
            )
        )
    return found, len(was_corrected)


def features_of(items: Sequence[Item]) -> Values:
    """What scans are compared by, (N, F): logarithms of volumes, and agreements of the views.

    NaN where a structure was not found or not measured.
    """
    results = [item.entry.result for item in items]
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
    return np.array(rows, np.float64).reshape(len(items), -1)


def doubts_of(items: Sequence[Item]) -> Values:
    """How far the views of each scan disagree, (N,); 1 where nobody knows."""
    doubts = []
    for item in items:
        agreement = item.agreement
        doubts.append(1.0 if agreement is None else 1 - agreement)
    return np.array(doubts)


def likeness(features: Values) -> Values:
    """How alike scans are, (N, N) from 0 to 1, by their features (N, F).

    Features count alike: each is taken in its standard deviations; what is not known (NaN) is as
    usual. Two scans that are as far apart as is usual (the median) have the likeness 0.61.
    """
    known = ~np.isnan(features)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, features, 0).sum(0) / count
    deviations = np.where(known, features - mean, 0)
    spread = np.sqrt((deviations**2).sum(0) / count)
    scaled = deviations / np.where(spread > 0, spread, 1)
    lengths = (scaled**2).sum(1)
    # Rounding may take a square below 0.
    squares = np.maximum(lengths[:, None] + lengths - 2 * scaled @ scaled.T, 0)
    of_pairs = squares[np.triu_indices(len(squares), 1)]
    usual = float(np.median(of_pairs)) if len(of_pairs) else 0.0
    if usual == 0:
        usual = 1.0
    return np.asarray(np.exp(-squares / (2 * usual)))


def propose(
    alike: Values,
    doubts: Values,
    persons: Sequence[str],
    corrected: Sequence[int],
    most: int,
) -> list[Proposal]:
    """The scans to correct next, the first first; at most so many, and of no person two.

    `alike` (N, N) is from `likeness`, `doubts` (N,) are 0 or more. Those of `corrected` scans'
    persons are not proposed, and what is like them is taught already.
    """
    total = float(doubts.sum())
    done = {persons[scan] for scan in corrected}
    taught = np.zeros(len(doubts))
    if corrected:
        taught = alike[list(corrected)].max(0)
    proposals: list[Proposal] = []
    while len(proposals) < most:
        free = [scan for scan, person in enumerate(persons) if person not in done]
        if not free:
            break
        # What each would teach of each scan, beyond what is taught already.
        more = np.maximum(alike[free] - taught, 0) @ doubts
        best = int(np.argmax(more))
        scan = free[best]
        share = float(more[best]) / total if total > 0 else 0.0
        proposals.append(Proposal(scan, share))
        done.add(persons[scan])
        taught = np.maximum(taught, alike[scan])
    return proposals
