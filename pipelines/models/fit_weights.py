"""Step of `trinat fit`: the weights of the views, and the kind of mean that fuses them.

Each scan is segmented once by all views. Then its Dice is computed with each candidate: each
combination of weights and kind of mean that is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.pipelines.models.held_out import FittedFusion, fit_held_out
from trinat.pipelines.models.scans_with_truth import (
    NUMBERS,
    Reader,
    ScanWithTruth,
    not_compared,
    refuse_another_head,
    require_scans,
    work_on_each,
)
from trinat.segmentation.grid import around_both, occupied_box
from trinat.segmentation.inference.fusion import most_probable, weights_for_voxels
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    find_ambiguous,
    weights_to_try,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.metrics.overlap import joint_histogram, mean_dice
from trinat.segmentation.models.checkpoint import Model, normalised_weights
from trinat.segmentation.models.model_info import Fusion, Mean
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.space.views import View, to_slices

# Mean Dice over structures of one scan with each candidate, in the order of the candidates.
_Scores = NDArray[np.float64]


def fit_view_weights(
    model: Model, scans: Sequence[ScanWithTruth], reader: Reader, *, device: str
) -> tuple[FittedFusion, list[ScanWithTruth], list[str]]:
    """Fit the weights of the views to scans with true label maps, scored on held-out participants.

    The best weights are searched for each kind of mean over the views. `reader` reads the scans and
    their label maps. Returns the model's own weights and the fitted weights with the Dice of each
    scan, the scans that could be used, and a message for each other scan. EvaluationError is raised
    if no scan could be used.
    """
    segmenter = Predictor(model, device=device)
    own = model.info.fusion
    candidates = [own]
    for mean in get_args(Mean):
        for weights in weights_to_try(segmenter.views):
            changed = {"mean": mean, "weights": weights}
            candidates.append(own.model_copy(update=changed))

    def score_all(scan: ScanWithTruth) -> _Scores:
        ambiguous, plan = _ambiguous_voxels(segmenter, scan, reader)
        scores = [_score(segmenter, ambiguous, plan, each) for each in candidates]
        return np.array(scores)

    def fit(scans: Sequence[_Scores]) -> Mapping[str, Fusion]:
        best_first = np.argsort(-np.mean(scans, axis=0), kind="stable")
        ordered = [candidates[place] for place in best_first if place > 0]
        best = {}
        for mean in get_args(Mean):
            best[f"{mean} mean"] = next(each for each in ordered if each.mean == mean)
        return best

    def score(scan: _Scores, fusion: Fusion) -> float:
        return float(scan[candidates.index(fusion)])

    used, scores, failures = work_on_each(scans, score_all)
    require_scans(used, failures, remedy=NUMBERS)
    return fit_held_out(used, scores, own, fit, score), used, failures


def describe_weights(fusion: Fusion) -> str:
    """Return the kind of mean over views and the weight of each view as one line of text."""
    weights = ", ".join(
        f"{view.value} {weight:.2f}" for view, weight in fusion.weights.items()
    )
    return f"{fusion.mean} mean; {weights}"


def _score(
    segmenter: Predictor, scan: AmbiguousVoxels, plan: ConformPlan, fusion: Fusion
) -> float:
    """Return the mean Dice of a scan over structures, if its views are combined by `fusion`.

    `fusion` has the weights of the views and the kind of mean. `scan` has the voxels on which the
    views differ, so that their class depends on the weights, and `plan` the size of its voxels.
    Structures that the model does not predict, or that are not in the true label map, are left out
    of the mean.
    """
    model = segmenter.model
    weights = weights_for_voxels(
        normalised_weights(fusion.weights, segmenter.views, model.folder),
        segmenter.axes,
        plan.voxel_sides_mm,
        fusion.blur_exponent,
    )
    joint = scan.joint(model.scheme, weights, fusion.mean)
    return mean_dice(joint, [0, *not_compared(model)])


def _ambiguous_voxels(
    segmenter: Predictor, scan: ScanWithTruth, reader: Reader
) -> tuple[AmbiguousVoxels, ConformPlan]:
    """Segment a scan by each view; return the voxels whose class depends on the views' weights.

    These have the probabilities by each view and the true class of each such voxel. Also returns
    the plan of the scan. `reader` reads the scan and its true label map. EvaluationError is raised
    if they seem to be of different heads.
    """
    model = segmenter.model
    prepared, classes = reader.read(segmenter, scan)
    image = segmenter.image_of(prepared).cpu()
    box = around_both(segmenter.find_brain(image).box, occupied_box(classes > 0))
    probabilities = _probabilities_of_views(segmenter, image[box])
    true_in_box = np.ascontiguousarray(classes[box])
    _refuse_another_head(model, probabilities, true_in_box, scan.labels)
    ambiguous = find_ambiguous(true_in_box, probabilities, model.scheme)
    return ambiguous, prepared.plan


def _probabilities_of_views(
    segmenter: Predictor, image: torch.Tensor
) -> dict[View, torch.Tensor]:
    """Return the class probabilities that each view's network gives for an image (X, Y, Z).

    They are float16 on the CPU, (X, Y, Z, K) for K classes. A view that does not tell left from
    right has fewer classes, because the classes of the two sides are merged.
    """
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


def _refuse_another_head(
    model: Model,
    probabilities: Mapping[View, torch.Tensor],
    truth: NDArray[np.uint8],
    where: Path,
) -> None:
    """Raise EvaluationError if a true label map seems to show another head than its scan.

    Its Dice with the labels that each view predicts is then low. Only views whose network tells
    left from right are compared. `probabilities` has the class probabilities of each view, (X, Y,
    Z, K). `truth` (X, Y, Z) has the true class of each of these voxels, and `where` is the path of
    the true label map.
    """
    joints = []
    for view, values in probabilities.items():
        if not model.is_merged(view):
            found = most_probable(values)[1].numpy()
            joints.append(joint_histogram(truth, found, len(model.scheme)))
    refuse_another_head(joints, model, where)
