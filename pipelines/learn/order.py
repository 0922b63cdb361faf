"""Which scans of a folder of results were corrected, and which to correct next (trinat next).

A correction teaches the scans that are like its own, each as far as it is in doubt. So the scan
comes first that is like the most doubt, next the one that is like most of what is left. That is the
greedy choice of facilities (Nemhauser et al. 1978): it is never far from the best choice. Of each
scan the ledger alone is read: the agreement of the views and the volume of each structure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.evaluate.pairing import Pair
from trinat.pipelines.learn.settings import NextSettings
from trinat.pipelines.study.corrections import correction_of, mask_path
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.view.study import Item, Study, digest
from trinat.segmentation.data.identity import Identity, identity_of, told_apart
from trinat.segmentation.errors import EvaluationError

Values = NDArray[np.float64]

_CORRECT = "correct one with `trinat view`, or give --labels"
# So many scans are compared with each other, beside those that were corrected: the most doubtful.
_MOST_COMPARED = 2000


@dataclass(frozen=True)
class Corrected:
    """A scan of the list of results, and its corrected label map.

    Of a correction that was painted here, `mask` says which voxels a person has changed, and
    `structures` what these are or were. They are None of a label map from elsewhere, of which all
    counts. `model` is the hash of the model that made the result.
    """

    item: Item
    person: str
    scan: Path
    labels: Path
    mask: Path | None
    structures: frozenset[str] | None

    @property
    def pair(self) -> Pair:
        """The label map as a truth, and the scan in the place of a prediction."""
        name = self.item.name
        truth = ScanFile(name, self.labels, name, person=self.person)
        scan = ScanFile(name, self.scan, name, person=self.person)
        return Pair(truth, scan, how="its name in the results")


def persons_of(items: Sequence[Item]) -> list[str]:
    """Whose each scan of a folder of results is.

    As it was segmented together with others of its person; else by its name and its folders.
    """
    identities = []
    for item in items:
        *folders, name = item.name.split("/")
        identities.append(identity_of(name, folders) or Identity(item.name))
    persons = []
    for item, identity in zip(items, told_apart(identities), strict=True):
        together = item.entry.result.longitudinal
        persons.append(identity.person if together is None else together.person)
    return persons


def find_corrected(study: Study) -> tuple[list[Corrected], list[str]]:
    """The corrected scans of a study, and a line for each label map that cannot be used.

    Where the study is compared with other label maps (`against`), these are the corrected ones.
    EvaluationError where nothing was corrected.
    """
    found = []
    failures = []
    used = set()
    for item, person in zip(study.items, persons_of(study.items), strict=True):
        labels = None
        mask = None
        structures = None
        corrected_scan = ""
        if study.against is not None:
            labels = study.other(item)
        elif item.labels is not None:
            correction = correction_of(item.labels)
            if correction is not None:
                labels = correction.path
            if correction is not None and correction.facts is not None:
                mask = mask_path(item.labels)
                structures = frozenset(correction.facts.structures)
                corrected_scan = correction.facts.scan_sha256
                if not correction.facts.changed_voxels:
                    failures.append(f"{item.name}: its correction changes nothing")
                    continue
        elif item.entry.is_kept:
            failures.append(f"{item.name}: its result was changed since it was written")
        if labels is None:
            continue
        used.add(labels)
        scan = study.image(item)
        if scan is None:
            failures.append(f"{item.name}: its scan is not where it was: give --images")
            continue
        segmented = item.entry.input_sha256
        # Elsewhere it may be packed otherwise.
        if study.images is None and segmented and digest(scan) != segmented:
            failures.append(f"{item.name}: its scan was changed since it was segmented")
            continue
        if corrected_scan and segmented and corrected_scan != segmented:
            failures.append(
                f"{item.name}: its scan was replaced since it was corrected"
            )
            continue
        found.append(Corrected(item, person, scan, labels, mask, structures))
    if study.against is not None:
        failures.extend(
            f"{file.name}: no result is of its scan"
            for file in find_files(study.against)
            if file.path not in used
        )
    if not found and not failures:
        raise EvaluationError(
            "nothing is corrected here", where=study.folder, remedy=_CORRECT
        )
    return found, failures


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
