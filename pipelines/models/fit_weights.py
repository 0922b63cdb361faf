"""Step of `trinat fit`: the weights of the views, and the kind of mean.

All views run once over each scan. The voxels whose class depends on the weights are kept in a
temporary file, so that any number of weights can be scored on them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from trinat.pipelines.models.held_out import FittedFusion, fit_held_out
from trinat.pipelines.models.scans_with_truth import (
    NUMBERS,
    Reader,
    not_compared,
    refuse_another_head,
    require_scans,
    work_on_each,
)
from trinat.pipelines.study.pairing import Pair
from trinat.segmentation.grid import around_both
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    ViewLikelihoods,
    find_ambiguous,
    fit_weights,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.prior import most_probable
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.checkpoint import Model, class_weights
from trinat.segmentation.models.model_info import Fusion, Mean
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, to_slices

Say = Callable[[str], None]

_DIGITS = 4


@dataclass(frozen=True, eq=False)
class _Scan:
    """A segmented scan: a sample of voxels to fit weights to, and a file to score weights with."""

    sample: ViewLikelihoods
    file: Path

    def save(self, ambiguous: AmbiguousVoxels) -> None:
        """Write the voxels whose class depends on the weights, as .npz without compression."""
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
        """Read the file written by `save`."""
        with np.load(self.file) as stored:
            probabilities = {view: stored[view.value] for view in self.sample.views}
            return AmbiguousVoxels(stored["truth"], probabilities, stored["decided"])


def fit_view_weights(
    model: Model, pairs: Sequence[Pair], reader: Reader, *, device: str, say: Say
) -> tuple[FittedFusion, list[Pair], list[str]]:
    """Fit the weights of the views, for either kind of mean.

    Returns the result, the pairs that could be used, and the reasons why others could not.
    EvaluationError if none could.
    """
    segmenter = Predictor(model, device=device)
    own = model.info.fusion
    left_out = [0, *not_compared(model)]
    with tempfile.TemporaryDirectory(prefix="trinat-") as folder:

        def segment(number: int, pair: Pair) -> _Scan:
            return _segment(segmenter, pair, reader, Path(folder), number)

        def fit(scans: Sequence[_Scan]) -> Mapping[str, Fusion]:
            fitted = fit_weights([scan.sample for scan in scans])
            weights = {view: round(weight, _DIGITS) for view, weight in fitted.items()}
            changed = {"weights": weights, "per_class": {}}
            return {
                f"{mean} mean": own.model_copy(update={"mean": mean, **changed})
                for mean in get_args(Mean)
            }

        def score(scan: _Scan, fusion: Fusion) -> float:
            rows = class_weights(fusion, model.scheme, segmenter.views, model.folder)
            weights = dict(zip(segmenter.views, rows, strict=True))
            values = dice(scan.load().joint(model.scheme, weights, fusion.mean))
            values[left_out] = np.nan
            return float(np.nanmean(values))

        used, scans, failures = work_on_each(pairs, segment, say)
        require_scans(scans, failures, remedy=NUMBERS)
        return fit_held_out(used, scans, own, fit, score), used, failures


def describe_weights(fusion: Fusion) -> str:
    """Describe the weights of a fusion in one line."""
    weights = ", ".join(
        f"{view.value} {weight:.2f}" for view, weight in fusion.weights.items()
    )
    return f"{fusion.mean} mean; {weights}"


def _segment(
    segmenter: Predictor, pair: Pair, reader: Reader, folder: Path, number: int
) -> _Scan:
    """Run all views over a scan, and keep the voxels whose class depends on their weights."""
    model = segmenter.model
    prepared, classes = reader.read(segmenter, pair)
    image = segmenter.image_of(prepared).cpu()
    box = around_both(segmenter.find_brain(image).box, occupied_box(classes > 0))
    probabilities = _probabilities_of_views(segmenter, image[box])
    true_in_box = np.ascontiguousarray(classes[box])
    _refuse_another_head(model, probabilities, true_in_box, pair.truth.path)
    ambiguous = find_ambiguous(true_in_box, probabilities, model.scheme)
    # Seeded by the scan's number: one scan more does not change the sample of another.
    generator = np.random.default_rng(number)
    sample = ViewLikelihoods.of(
        ambiguous, model.scheme, generator, without=not_compared(model)
    )
    scan = _Scan(sample, folder / f"{number}.npz")
    scan.save(ambiguous)
    return scan


def _probabilities_of_views(
    segmenter: Predictor, image: torch.Tensor
) -> dict[View, torch.Tensor]:
    """Run each view over an image (X, Y, Z): probabilities (X, Y, Z, K or merged K) float16."""
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
    """Raise if the labels of no view that tells sides agree with the truth."""
    joints = []
    for view, values in probabilities.items():
        if not model.is_merged(view):
            found = most_probable(values)[1].numpy()
            joints.append(joint_histogram(truth, found, len(model.scheme)))
    refuse_another_head(joints, model, where)
