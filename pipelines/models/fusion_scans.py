"""Scans with truth as trinat fuse-weights and fit-odds look at them: the undecided voxels kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.pipelines.evaluate.pairing import Pair, Pairing, pair_files
from trinat.pipelines.evaluate.user_tables import Mappings
from trinat.pipelines.scans.files import ScanFile, find_files
from trinat.segmentation.errors import EvaluationError
from trinat.segmentation.grid import Box, around_both
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    ViewLikelihoods,
    find_ambiguous,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.prior import most_probable
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.label import CSF_GROUP
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.counted import Made
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.space.conform import Conformed, conform
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, to_slices
from trinat.segmentation.training.odds_fit import DoubtfulVoxels

# A truth of another person has 0.2 to 0.3, one whose sides are exchanged less than 0.3; the least
# that `fast` has for a scan of its own is 0.7 (docs/models.md).
_SAME_HEAD_DICE = 0.5


@dataclass(frozen=True, eq=False)
class SegmentedScan:
    """What is kept of a scan: evidence to fit weights to, and a file to score weights with.

    `person` decides which scans are left out together when weights are judged.
    """

    name: str
    person: str
    evidence: ViewLikelihoods
    file: Path

    def save(self, ambiguous: AmbiguousVoxels) -> None:
        """Write the voxels whose class depends on the weights.

        The format is NumPy's .npz, without compression. An existing file is replaced.
        """
        probabilities: dict[str, Any] = {}
        for view, values in ambiguous.probabilities.items():
            probabilities[view.value] = values
        np.savez(
            self.file,
            truth=ambiguous.truth,
            decided=ambiguous.decided,
            **probabilities,
        )

    def load(self) -> AmbiguousVoxels:
        """What `save` has written."""
        with np.load(self.file) as stored:
            probabilities = {view: stored[view.value] for view in self.evidence.views}
            return AmbiguousVoxels(stored["truth"], probabilities, stored["decided"])


def pair_scans(scans: Path, truth: Path, say: Callable[[str], None]) -> Pairing:
    """Scans and their truths, by name; the scans stand in for predictions.

    Pairs that are guessed are named by `say`.
    """
    pairing = pair_files(find_files(truth), find_files(scans, suffix="T1w"))
    for guess in pairing.guesses:
        say(f"check it: {guess}")
    return pairing


def without_partner(
    pairing: Pairing, files: Sequence[ScanFile], missing: str
) -> list[str]:
    """A line for each of the files that are in no pair: why, or what is `missing` of it."""
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
    """By person, the fold in which that person's scans are left out together.

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
    """A table for people: Dice of each scan, a column a kind, and how that was judged.

    `what` was fitted, such as weights; `held_out` is whether without the scan's person.
    """
    judged = "fitted to this very person"
    if held_out:
        judged = "fitted without its person"
    table = pd.DataFrame(dict(columns), list(scans)).rename_axis(columns="scan")
    table.loc["mean"] = table.mean()
    rows = table.to_string(float_format="{:.4f}".format).splitlines()
    return [f"Mean Dice over structures of each scan, with {what} {judged}:", *rows]


def segment_pair(
    segmenter: Predictor,
    pair: Pair,
    file: Path,
    generator: np.random.Generator,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> SegmentedScan:
    """Run all views over a scan, and keep what depends on their weights.

    The "prediction" of the pair is the scan itself. `generator` chooses the voxels of the evidence,
    and `file` is written. A truth with no structure that the model predicts is an EvaluationError.
    """
    model = segmenter.model
    without = not_compared(model)
    prepared, classes = _prepare_pair(segmenter, pair, mapping, trust_affine)
    image = segmenter.image_of(prepared).cpu()
    box = around_both(segmenter.find_brain(image).box, occupied_box(classes > 0))
    probabilities = _probabilities_of_views(segmenter, image[box])
    true_in_box = np.ascontiguousarray(classes[box])
    # Views are not joined yet, and one of them may see nothing.
    joints = []
    for view, values in probabilities.items():
        if not model.is_merged(view):
            found = most_probable(values)[1].numpy()
            joints.append(joint_histogram(true_in_box, found, len(model.scheme)))
    refuse_another_head(joints, model.scheme, without_odds(model), pair.truth.path)
    ambiguous = find_ambiguous(true_in_box, probabilities, model.scheme)
    segmented = SegmentedScan(
        name=f"{pair.truth.person} {pair.truth.visit}".strip(),
        person=pair.truth.person,
        evidence=ViewLikelihoods.of(
            ambiguous, model.scheme, generator, without=without
        ),
        file=file,
    )
    segmented.save(ambiguous)
    return segmented


def doubtful_voxels(
    segmenter: Predictor,
    pair: Pair,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> DoubtfulVoxels:
    """Segment a scan, and keep what depends on the odds of structures.

    The "prediction" of the pair is the scan itself, as for `segment_pair`.
    """
    prepared, classes = _prepare_pair(segmenter, pair, mapping, trust_affine)

    def work() -> tuple[Tensor, Box]:
        image = segmenter.image_of(prepared)
        region, fusion, _maps = segmenter.find_and_fuse(image)
        segmenter.weigh(fusion.fused, prepared.plan.cropped(region.box))
        return fusion.fused.cpu(), region.box

    probabilities, box = segmenter.with_less_memory(work)
    true_in_box = np.ascontiguousarray(classes[box])
    model = segmenter.model
    count = len(model.scheme)
    everywhere = np.bincount(classes.ravel(), minlength=count)
    in_box = np.bincount(true_in_box.ravel(), minlength=count)
    without = without_odds(model)
    doubtful = DoubtfulVoxels.of(
        probabilities, true_in_box, without, beyond=everywhere - in_box
    )
    joint = doubtful.joint(np.zeros(count))
    refuse_another_head([joint], model.scheme, without, pair.truth.path)
    return doubtful


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
    """The mean Dice of the classes that are in the truth, but for some; 0 of none."""
    is_there = joint.sum(1) > 0
    is_there[list(without)] = False
    if not is_there.any():
        return 0.0
    return float(dice(joint)[is_there].mean())


def without_odds(model: Model) -> list[int]:
    """Classes that have no factor: background, CSF of any kind, and what is not predicted."""
    fluids = [label.index for label in model.scheme.labels if label.group == CSF_GROUP]
    return sorted({0, *fluids, *not_compared(model)})


def not_compared(model: Model) -> list[int]:
    """Classes that a truth says nothing of: not predicted, or CSF that is more than a region."""
    info = model.info
    made = Made(source=model.scheme, not_predicted=info.not_predicted, csf=info.csf)
    names = made.left_out(model.scheme, truth_csf="region")
    return [model.scheme.names.index(name) for name in names]


def _prepare_pair(
    segmenter: Predictor,
    pair: Pair,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> tuple[Conformed, NDArray[np.uint8]]:
    """A scan as the networks take it, and its truth's classes (X, Y, Z) on the same grid."""
    model = segmenter.model
    scan = Volume.read(pair.prediction.path, trust_affine=trust_affine)
    truth = Volume.read(pair.truth.path, labels=True, trust_affine=trust_affine)
    prepared = segmenter.prepare(scan)
    truth_on_scan, _ = on_grid_of(truth, scan)
    classes = _true_classes(
        truth_on_scan, prepared, model.scheme, mapping, pair.truth.path
    )
    if np.isin(classes, [0, *not_compared(model)]).all():
        raise EvaluationError(
            f"has nothing of {model.scheme.name}", where=pair.truth.path
        )
    return prepared, classes


def _true_classes(
    truth: Volume,
    prepared: Conformed,
    scheme: LabelScheme,
    mapping: Mappings,
    where: Path,
) -> NDArray[np.uint8]:
    """Class indices (X, Y, Z) on the working grid, of a truth on the scan's grid."""
    numbers = conform(truth, labels=True, plan=prepared.plan).volume
    return scheme.from_freesurfer(
        numbers.data,
        spacing_mm=numbers.spacing_mm,
        extra=mapping.truth,
        fold=mapping.truth_numbering,
        where=where,
    )


def _probabilities_of_views(
    segmenter: Predictor, image: torch.Tensor
) -> dict[View, torch.Tensor]:
    """Each view's probabilities of an image (X, Y, Z): (X, Y, Z, K or merged K) float16."""
    probabilities: dict[View, torch.Tensor] = {}
    for view, part in segmenter.each_view(image):
        if view not in probabilities:
            classes = part.probabilities.shape[-1]
            probabilities[view] = torch.zeros(
                (*image.shape, classes), dtype=torch.float16
            )
        axes = segmenter.model.info.preprocessing.slice_axes(view)
        slices = to_slices(probabilities[view], axes, trailing=1)
        slices[part.slices] = part.probabilities.half().cpu()
    return probabilities
