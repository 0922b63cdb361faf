"""Scans with truth that trinat fuse-weights and fit-odds fit to: found, read, and refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.study.files import ScanFile, find_files
from trinat.pipelines.study.pairing import Pair, Pairing, pair_files
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.overlap import dice
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.space.conform import Conformed, conform

# A truth of another person has 0.2 to 0.3, one whose sides are exchanged less than 0.3; the least
# that `fast` has for a scan of its own is 0.7 (docs/models.md).
_SAME_HEAD_DICE = 0.5


def pair_scans(scans: Path, truth: Path, say: Callable[[str], None]) -> Pairing:
    """Pair scans and truths by name; the scans stand in for predictions.

    Pairs that are guessed are named by `say`.
    """
    pairing = pair_files(find_files(truth), find_files(scans, suffix="T1w"))
    for guess in pairing.guesses:
        say(f"check it: {guess}")
    return pairing


def without_partner(
    pairing: Pairing, files: Sequence[ScanFile], missing: str
) -> list[str]:
    """Write a line for each file that is in no pair: why, or what is `missing` of it."""
    lines = []
    for file in files:
        why = pairing.doubts.get(file.path, f"no {missing}")
        lines.append(f"{file.name}: {why}")
    return lines


def require_scans(
    used: Sequence[object], failures: Sequence[str], where: Path, remedy: str
) -> None:
    """Refuse to go on where no scan can be used: an EvaluationError that names the first reason."""
    if used:
        return
    what = "no scan"
    if failures:
        what = f"no scan can be used; the first: {failures[0]}"
    raise EvaluationError(what, where=where, remedy=remedy)


def folds_of(persons: Collection[str], most: int) -> dict[str, int]:
    """Give each person the fold in which that person's scans are left out together.

    There are at most so many folds. A single person cannot be left out: there is then one.
    """
    different = sorted(set(persons))
    folds = min(len(different), most)
    return {person: number % folds for number, person in enumerate(different)}


def dice_lines(
    columns: Mapping[str, Sequence[float]],
    scans: Sequence[str],
    what: str,
    *,
    held_out: bool,
) -> list[str]:
    """Write a table for people: Dice of each scan, a column a kind, and how that was judged.

    `what` was fitted, such as weights; `held_out` is whether without the scan's person.
    """
    judged = "fitted to this very person"
    if held_out:
        judged = "fitted without its person"
    table = pd.DataFrame(dict(columns), list(scans)).rename_axis(columns="scan")
    table.loc["mean"] = table.mean()
    rows = table.to_string(float_format="{:.4f}".format).splitlines()
    return [f"Mean Dice over structures of each scan, with {what} {judged}:", *rows]


def prepare_pair(
    segmenter: Predictor,
    pair: Pair,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> tuple[Conformed, NDArray[np.uint8]]:
    """Read a scan as the networks take it, and its truth's classes (X, Y, Z) on the same grid.

    The "prediction" of the pair is the scan itself. A truth with no structure that the model
    predicts is an EvaluationError.
    """
    model = segmenter.model
    scan = Volume.read(pair.prediction.path, trust_affine=trust_affine)
    truth = Volume.read(pair.truth.path, labels=True, trust_affine=trust_affine)
    prepared = segmenter.prepare(scan)
    truth_on_scan, _ = on_grid_of(truth, scan)
    numbers = conform(truth_on_scan, labels=True, plan=prepared.plan).volume
    classes = model.scheme.from_freesurfer(
        numbers.data,
        spacing_mm=numbers.spacing_mm,
        extra=mapping.truth,
        fold=mapping.truth_numbering,
        where=pair.truth.path,
    )
    if np.isin(classes, [0, *not_compared(model)]).all():
        raise EvaluationError(
            f"has nothing of {model.scheme.name}", where=pair.truth.path
        )
    return prepared, classes


def refuse_another_head(
    joints: Sequence[NDArray[np.int64]],
    scheme: LabelScheme,
    without: Sequence[int],
    where: Path,
) -> None:
    """Raise EvaluationError where a truth is not of the head in which a model found its labels.

    Each of `joints` (K, K) counts voxels by true and found class; the one that agrees best counts.
    Classes of `without` do not. Where left and right are exchanged, the error says so.
    """
    agreement = max(_mean_dice(joint, without) for joint in joints)
    if agreement >= _SAME_HEAD_DICE:
        return
    what = (
        f"agrees with what the model finds by a Dice of {agreement:.2f}, "
        f"and {_SAME_HEAD_DICE:g} is needed"
    )
    partners = scheme.partner_permutation
    exchanged = max(_mean_dice(joint[partners], without) for joint in joints)
    if exchanged >= _SAME_HEAD_DICE:
        raise EvaluationError(
            f"{what}; with left and right exchanged it is {exchanged:.2f}",
            where=where,
            remedy="exchange its numbers, or mend the orientation of either",
        )
    raise EvaluationError(
        what,
        where=where,
        remedy="check that it is of this person, lies on the scan and has the right numbers; "
        "a model that is this far off has to be trained on such labels first (trinat train)",
    )


def _mean_dice(joint: NDArray[np.int64], without: Sequence[int]) -> float:
    """Compute the mean Dice of the classes that are in the truth, but for some; 0 of none."""
    is_there = joint.sum(1) > 0
    is_there[list(without)] = False
    if not is_there.any():
        return 0.0
    return float(dice(joint)[is_there].mean())


def without_odds(model: Model) -> list[int]:
    """List classes that have no factor: background, CSF of any kind, and what is not predicted."""
    fluids = [label.index for label in model.scheme.labels if label.group == CSF_GROUP]
    return sorted({0, *fluids, *not_compared(model)})


def not_compared(model: Model) -> list[int]:
    """List classes that a truth says nothing of: not predicted, or CSF of more than a region."""
    info = model.info
    made = Made(source=model.scheme, not_predicted=info.not_predicted, csf=info.csf)
    names = made.left_out(model.scheme, truth_csf="region")
    return [model.scheme.names.index(name) for name in names]
