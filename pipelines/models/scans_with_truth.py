"""Scans with true (manual) label maps for `trinat fit` and `trinat learn`: pairing and reading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.study.files import ScanFile, find_images
from trinat.pipelines.study.images import read_image
from trinat.pipelines.study.pairing import pair_files
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import EvaluationError, TrinatError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.overlap import mean_dice
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.space.conform import Conformed, conform

# Minimum Dice of a truth with the model's labels. A truth of another participant has 0.2 to 0.3,
# one with left and right exchanged less than 0.3. With the right truth, the lowest Dice of `fast`
# is 0.7 (docs/models.md).
_SAME_HEAD_DICE = 0.5
# Most frequent remedy if truths cannot be used.
NUMBERS = "if the truths do not have FreeSurfer's numbers, add --numbering"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScanWithTruth:
    """Paths of a scan (`image`) and of its true label map (`labels`), with the names of the scan.

    `name` names the scan in messages, and `participant` and `session` in tables. `unfit` is the
    reason not to use the label map; "" if it can be used.
    """

    participant: str
    name: str
    image: Path
    labels: Path
    session: str = ""
    unfit: str = ""

    @property
    def title(self) -> str:
        """Participant and session, as in tables."""
        return f"{self.participant} {self.session}".strip()


ScanT = TypeVar("ScanT", bound=ScanWithTruth)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Reader:
    """Reader of a scan and its true label map.

    `numbering` is the table that converts the label numbers to FreeSurfer's; None if they are
    FreeSurfer's. `trust_affine` is the affine to use if the header of a file does not decide
    ("sform", "qform" or "header"); None if not given.
    """

    numbering: FoldingTable | None
    trust_affine: TrustAffine | None

    def read(
        self, segmenter: Predictor, scan: ScanWithTruth
    ) -> tuple[Conformed, NDArray[np.uint8]]:
        """Read a scan and its true label map; return both on the grid of the networks.

        The label map is returned as indices of the model's classes, (X, Y, Z). `segmenter` has the
        model, and prepares the scan for its networks. EvaluationError is raised if the label map
        has no structure that the model predicts.
        """
        model = segmenter.model
        image = read_image(scan.image, scan.labels, trust_affine=self.trust_affine)
        truth = Volume.read(scan.labels, labels=True, trust_affine=self.trust_affine)
        prepared = segmenter.prepare(image)

        def to_classes(volume: Volume) -> NDArray[np.uint8]:
            return model.scheme.from_freesurfer(
                volume.data,
                spacing_mm=volume.spacing_mm,
                fold=self.numbering,
                where=scan.labels,
            )

        on_scan, _ = on_grid_of(truth, image, to_classes=to_classes)
        classes = conform(on_scan, labels=True, plan=prepared.plan).volume.data
        if np.isin(classes, [0, *not_compared(model)]).all():
            raise EvaluationError(
                f"has nothing of {model.scheme.name}", where=scan.labels
            )
        return prepared, classes


def pair_scans(scans: Path, truth: Path) -> tuple[list[ScanWithTruth], list[str]]:
    """Pair each scan with its true label map, by file name.

    `scans` and `truth` are folders or files. Returns the pairs, and a message for each true label
    map without a scan. Pairs to be checked and files without a partner are logged. Raises
    EvaluationError if there are no pairs.
    """
    study = Study(truth)
    truths = study.checked(study.label_maps())
    images = find_images(scans, [file.path for file in truths])
    pairing = pair_files(truths, images)
    for guess in pairing.guesses:
        _log.info("check it: %s", guess)

    def why_alone(file: ScanFile, missing: str) -> str:
        why = pairing.doubts.get(file.path, f"no {missing}")
        return f"{file.name}: {why}"

    skipped = [why_alone(file, "truth") for file in pairing.predictions_alone]
    failures = [why_alone(file, "scan") for file in pairing.truths_alone]
    for reason in [*skipped, *failures]:
        _log.info("not used: %s", reason)
    paired = [
        ScanWithTruth(
            pair.truth.participant,
            pair.truth.name,
            pair.prediction.path,
            pair.truth.path,
            pair.truth.session,
            pair.truth.unfit,
        )
        for pair in pairing.pairs
    ]
    require_scans(paired, failures, scans, "name scans and truths alike")
    return paired, failures


def work_on_each(
    scans: Sequence[ScanT],
    work: Callable[[ScanT], Result],
) -> tuple[list[ScanT], list[Result], list[str]]:
    """Call `work` with each scan, and log the progress.

    Returns the scans for which it succeeded, their results, and a message for each of the other
    scans.
    """
    used = []
    results = []
    failures = []
    for number, scan in enumerate(scans, start=1):
        if scan.unfit:
            failures.append(f"{scan.name}: {scan.unfit}")
            continue
        try:
            result = work(scan)
        except (TrinatError, OSError) as error:
            failures.append(f"{scan.name}: {error}")
            continue
        used.append(scan)
        results.append(result)
        _log.info("%s: segmented, %d of %d", scan.title, number, len(scans))
    return used, results, failures


def require_scans(
    used: Sequence[object],
    failures: Sequence[str],
    where: Path | None = None,
    remedy: str = "",
) -> None:
    """Raise EvaluationError if no scan could be used.

    `used` are the scans that could be used. `failures` has a message for each other scan; the error
    contains the first. `where` is the path and `remedy` the advice in the error.
    """
    if used:
        return
    what = "no scan"
    if failures:
        what = f"no scan can be used; the first: {failures[0]}"
    raise EvaluationError(what, where=where, remedy=remedy)


def refuse_another_head(
    joints: Sequence[NDArray[np.int64]], model: Model, where: Path
) -> None:
    """Raise EvaluationError if a true label map seems to show another head than its scan.

    Its mean Dice with the model's segmentation is then below 0.5. Each of `joints` (K, K) counts
    the voxels of a segmentation by true class (rows) and predicted class; the one with the highest
    Dice is used. `where` is the path of the true label map. If left and right are exchanged, the
    error says so.
    """
    without = without_odds(model)
    agreement = max(mean_dice(joint, without) for joint in joints)
    if agreement >= _SAME_HEAD_DICE:
        return
    what = (
        f"agrees with the model's labels by a Dice of {agreement:.2f}, "
        f"and {_SAME_HEAD_DICE:g} is needed"
    )
    partners = model.scheme.partner_permutation
    exchanged = max(mean_dice(joint[partners], without) for joint in joints)
    if exchanged >= _SAME_HEAD_DICE:
        raise EvaluationError(
            f"{what}; with left and right exchanged it is {exchanged:.2f}",
            where=where,
            remedy="exchange its numbers, or correct the orientation of either",
        )
    raise EvaluationError(
        what,
        where=where,
        remedy="check that it is of this participant, lies on the scan and has the right numbers; "
        "a model that is this far off has to be trained on such labels first (trinat train)",
    )


def without_odds(model: Model) -> list[int]:
    """Return the classes (indices) whose probability is never multiplied by a factor (odds).

    These are background, CSF, and structures that the model does not predict.
    """
    fluids = [label.index for label in model.scheme.labels if label.group == CSF_GROUP]
    return sorted({0, *fluids, *not_compared(model)})


def not_compared(model: Model) -> list[int]:
    """Return the classes (indices) that cannot be compared with a true label map.

    These are structures that the model does not predict, and CSF if the model labels all fluid as
    CSF: in true label maps, CSF is a small region.
    """
    info = model.info
    made = Made(source=model.scheme, not_predicted=info.not_predicted, csf=info.csf)
    names = made.left_out(model.scheme, truth_csf="region")
    return [model.scheme.names.index(name) for name in names]
