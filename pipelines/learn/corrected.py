"""Which scans of a folder of results were corrected, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trinat.pipelines.evaluate.pairing import Pair
from trinat.pipelines.scans.corrections import correction_of, mask_path
from trinat.pipelines.scans.files import ScanFile, find_files
from trinat.pipelines.web.study import Item, Study, digest
from trinat.segmentation.data.identity import Identity, identity_of, told_apart
from trinat.segmentation.errors import EvaluationError

_CORRECT = "correct one with `trinat view`, or give --labels"


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
    """Whose each scan of a folder of results is, by its name and its folders."""
    identities = []
    for item in items:
        *folders, name = item.name.split("/")
        identities.append(identity_of(name, folders) or Identity(item.name))
    return [identity.person for identity in told_apart(identities)]


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
        if study.against is not None:
            labels = study.other(item)
        elif item.labels is not None:
            correction = correction_of(item.labels)
            if correction is not None:
                labels = correction.path
            if correction is not None and correction.facts is not None:
                mask = mask_path(item.labels)
                structures = frozenset(correction.facts.structures)
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
