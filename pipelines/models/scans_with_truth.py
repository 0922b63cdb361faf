"""Scans with truth for `trinat fit` and `trinat learn`: pairing, reading and refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trinat.pipelines.models.held_out import name_of
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.study.pairing import Pair, Pairing, pair_files
from trinat.segmentation.errors import EvaluationError, TrinatError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FoldingTable
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.overlap import dice
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.space.conform import Conformed, conform

# Minimum Dice of a truth with the model's labels. A truth of another participant has 0.2 to 0.3,
# one with left and right exchanged less than 0.3. With the right truth, the lowest Dice of `fast`
# is 0.7 (docs/models.md).
_SAME_HEAD_DICE = 0.5
# Most frequent remedy if truths cannot be used.
NUMBERS = "if the truths do not have FreeSurfer's numbers, add --numbering"

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reader:
    """Reader of scans with their truth.

    `numbering` is that of the truths; None stands for FreeSurfer's. `trust_affine` is the affine to
    use if the header of a file does not decide ("sform", "qform" or "header"); None if not given.
    """

    numbering: FoldingTable | None
    trust_affine: TrustAffine | None

    def read(
        self, segmenter: Predictor, pair: Pair
    ) -> tuple[Conformed, NDArray[np.uint8]]:
        """Return a scan, prepared for the networks, and its true classes (X, Y, Z) on its grid.

        The "prediction" of the pair is the scan itself. EvaluationError is raised if the truth has
        no structure that the model predicts.
        """
        model = segmenter.model
        scan = Volume.read(pair.prediction.path, trust_affine=self.trust_affine)
        truth = Volume.read(
            pair.truth.path, labels=True, trust_affine=self.trust_affine
        )
        prepared = segmenter.prepare(scan)
        truth_on_scan, _ = on_grid_of(truth, scan)
        numbers = conform(truth_on_scan, labels=True, plan=prepared.plan).volume
        classes = model.scheme.from_freesurfer(
            numbers.data,
            spacing_mm=numbers.spacing_mm,
            fold=self.numbering,
            where=pair.truth.path,
        )
        if np.isin(classes, [0, *not_compared(model)]).all():
            raise EvaluationError(
                f"has nothing of {model.scheme.name}", where=pair.truth.path
            )
        return prepared, classes


def pair_scans(scans: Path, truth: Path) -> Pairing:
    """Pair scans with the label maps that are their truth, by name; log pairs to be checked.

    `scans` and `truth` are folders or files. In each pair of the result, `prediction` is the scan:
    `Pair` is made for predictions, and there are none yet.
    """
    pairing = pair_files(find_files(truth), find_files(scans, suffix="T1w"))
    for guess in pairing.guesses:
        _log.info("check it: %s", guess)
    return pairing


def without_partner(
    pairing: Pairing, files: Sequence[ScanFile], missing: str
) -> list[str]:
    """Return a message for each file, which says why it has no partner.

    `files` have no partner in `pairing`. `missing` is a word for the partner, such as "scan".
    """
    lines = []
    for file in files:
        why = pairing.doubts.get(file.path, f"no {missing}")
        lines.append(f"{file.name}: {why}")
    return lines


def work_on_each(
    pairs: Sequence[Pair],
    work: Callable[[Pair], Result],
) -> tuple[list[Pair], list[Result], list[str]]:
    """Call `work` with each pair, and log the progress.

    Returns the pairs that could be used, their results, and a message for each of the other pairs.
    """
    used = []
    results = []
    failures = []
    for number, pair in enumerate(pairs, start=1):
        try:
            result = work(pair)
        except (TrinatError, OSError) as error:
            failures.append(f"{pair.truth.name}: {error}")
            continue
        used.append(pair)
        results.append(result)
        _log.info("%s: segmented, %d of %d", name_of(pair), number, len(pairs))
    return used, results, failures


def require_scans(
    used: Sequence[object],
    failures: Sequence[str],
    where: Path | None = None,
    remedy: str = "",
) -> None:
    """Raise EvaluationError, with the first of `failures`, if `used` is empty."""
    if used:
        return
    what = "no scan"
    if failures:
        what = f"no scan can be used; the first: {failures[0]}"
    raise EvaluationError(what, where=where, remedy=remedy)


def refuse_another_head(
    joints: Sequence[NDArray[np.int64]], model: Model, where: Path
) -> None:
    """Raise EvaluationError if a truth agrees so little with a model that it is of another head.

    Each of `joints` (K, K) counts voxels by true class and found class; the one with the highest
    Dice is used. `where` is the path of the truth. If left and right are exchanged, the error says
    so.
    """
    without = without_odds(model)
    agreement = max(_mean_dice(joint, without) for joint in joints)
    if agreement >= _SAME_HEAD_DICE:
        return
    what = (
        f"agrees with the model's labels by a Dice of {agreement:.2f}, "
        f"and {_SAME_HEAD_DICE:g} is needed"
    )
    partners = model.scheme.partner_permutation
    exchanged = max(_mean_dice(joint[partners], without) for joint in joints)
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


def _mean_dice(joint: NDArray[np.int64], without: Sequence[int]) -> float:
    """Return the mean Dice of the classes that are in the truth, without the classes `without`.

    `joint` (K, K) counts voxels by true class and found class. The mean is 0 if no class is left.
    """
    is_there = joint.sum(1) > 0
    is_there[list(without)] = False
    if not is_there.any():
        return 0.0
    return float(dice(joint)[is_there].mean())


def without_odds(model: Model) -> list[int]:
    """Return the classes (indices) without odds: background, CSF, and structures not predicted."""
    fluids = [label.index for label in model.scheme.labels if label.group == CSF_GROUP]
    return sorted({0, *fluids, *not_compared(model)})


def not_compared(model: Model) -> list[int]:
    """Return the classes (indices) that cannot be compared with a truth.

    These are structures that the model does not predict, and CSF if the model's CSF is more than a
    small region.
    """
    info = model.info
    made = Made(source=model.scheme, not_predicted=info.not_predicted, csf=info.csf)
    names = made.left_out(model.scheme, truth_csf="region")
    return [model.scheme.names.index(name) for name in names]
