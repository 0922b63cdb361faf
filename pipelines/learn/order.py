"""trinat next: the scans of a folder of results, in the order in which to correct them.

Of each scan the ledger alone is read: the agreement of the views and the volume of each structure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import Any

import numpy as np

from trinat.pipelines.learn.corrected import persons_of
from trinat.pipelines.learn.settings import NextSettings
from trinat.pipelines.predict.entry import doubt_of, grade_of
from trinat.pipelines.scans.corrections import correction_of
from trinat.pipelines.web.study import Item, Study
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.training.proposal import Values, likeness, propose

# So many scans are compared with each other, beside those that were corrected: the most doubtful.
_MOST_COMPARED = 2000


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


def next_scans(settings: NextSettings) -> tuple[list[Next], int]:
    """The scans to correct next, and how many were corrected already.

    EvaluationError where there is no scan with a result.
    """
    study = Study(settings.results, rater="", against=settings.labels)
    elsewhere = {item.name for item in study.items if study.other(item) is not None}
    return next_of(study, settings.most, elsewhere)


def next_of(
    study: Study, most: int, elsewhere: Collection[str] = ()
) -> tuple[list[Next], int]:
    """The same of a study, at most so many; scans of these names were corrected `elsewhere`."""
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
    compared += nsmallest(_MOST_COMPARED, rest, key=lambda item: doubt_of(item.entry))

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
                grade=grade_of(item.entry),
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
    volumes = [result.get("volumes_mm3", {}) for result in results]
    agreements = [result.get("agreement", {}) for result in results]
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
