"""Overlap and volumes of two label maps, all computed from one joint histogram.

`joint[t, p]` counts the voxels with class t in the truth and class p in the prediction, (K, K).
A ratio with a denominator of zero is NaN: undefined, neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import EvaluationError

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


def check_shapes(truth: NDArray[Any], prediction: NDArray[Any]) -> None:
    """Raise EvaluationError unless both maps have the same three-dimensional shape."""
    if truth.shape != prediction.shape or truth.ndim != 3:
        raise EvaluationError(
            f"the truth has {truth.shape} voxels and the prediction {prediction.shape}"
        )


def joint_histogram(
    truth: NDArray[Any], prediction: NDArray[Any], classes: int
) -> Counts:
    """Count voxels by true and predicted class index, from two (X, Y, Z) maps to (K, K).

    Row t, column p counts the voxels with class t in the truth and p in the prediction. Raises
    EvaluationError for different shapes and for indices that are no class.
    """
    check_shapes(truth, prediction)
    _check_classes("truth", truth, classes)
    _check_classes("prediction", prediction, classes)
    joint = np.zeros(classes * classes, np.int64)
    # Slab by slab: bincount widens its input to 64 bits, 134 MB for a whole 256 cube.
    for true_slab, predicted_slab in zip(truth, prediction, strict=True):
        # Widened before the product: 33 * 33 - 1 does not fit into a uint8.
        pairs = true_slab.astype(np.intp) * classes + predicted_slab
        joint += np.bincount(pairs.ravel(), minlength=classes * classes)
    return joint.reshape(classes, classes)


def _check_classes(name: str, labels: NDArray[Any], classes: int) -> None:
    """Raise EvaluationError for class indices that are not in 0 to `classes` - 1."""
    if not labels.size:
        return
    lowest = int(labels.min())
    highest = int(labels.max())
    if lowest < 0 or highest >= classes:
        raise EvaluationError(
            f"the {name} has class indices {lowest} to {highest}, "
            f"where 0 to {classes - 1} are known"
        )


def dice(joint: Counts) -> Values:
    """Return 2 |T and P| / (|T| + |P|) of each class, (K,)."""
    true = joint.sum(1)
    predicted = joint.sum(0)
    return _ratio(2 * joint.diagonal(), true + predicted)


def iou(joint: Counts) -> Values:
    """Return |T and P| / |T or P| of each class, (K,)."""
    true = joint.sum(1)
    predicted = joint.sum(0)
    in_both = joint.diagonal()
    in_either = true + predicted - in_both
    return _ratio(in_both, in_either)


def precision(joint: Counts) -> Values:
    """Return the share of the prediction that is correct, (K,)."""
    return _ratio(joint.diagonal(), joint.sum(0))


def recall(joint: Counts) -> Values:
    """Return the share of the truth that was found, (K,)."""
    return _ratio(joint.diagonal(), joint.sum(1))


def generalised_dice(joint: Counts, without: Collection[int] = ()) -> float:
    """Return the Dice over all classes, each weighted by 1 / (true volume)^2.

    Background and the classes `without` are excluded. A class that the truth lacks gets the
    largest weight among the classes that it has, as in MONAI, so that false positives lower the
    value.
    """
    classes = [n for n in range(1, len(joint)) if n not in without]
    true = joint.sum(1)[classes].astype(float)
    predicted = joint.sum(0)[classes].astype(float)
    if not true.any():
        return float("nan")
    smallest = true[true > 0].min()
    weights = 1 / np.where(true > 0, true, smallest) ** 2
    both = joint.diagonal()[classes]
    weighted_both = weights @ both
    weighted_sizes = weights @ (true + predicted)
    return float(2 * weighted_both / weighted_sizes)


def side_swap(joint: Counts, partners: NDArray[np.integer[Any]]) -> Values:
    """Return the share of a paired structure's overlap that carries the other side's label, (K,).

    0 is correct, 1 is a prediction with left and right exchanged; NaN for midline classes.
    """
    classes = np.arange(len(joint))
    straight = joint.diagonal()
    crossed = joint[classes, partners]
    # Sum over both sides of a pair.
    wrong = crossed + crossed[partners]
    right = straight + straight[partners]
    shares = _ratio(wrong, right + wrong)
    return np.where(partners == classes, np.nan, shares)


def volumes_mm3(voxels: Counts, spacing_mm: tuple[float, float, float]) -> Values:
    """Convert voxel counts to cubic millimetres."""
    return np.asarray(voxels * float(np.prod(spacing_mm)), np.float64)


def volume_difference_percent(truth_mm3: Values, prediction_mm3: Values) -> Values:
    """Return (prediction - truth) / truth in percent; NaN if the true volume is 0."""
    return 100 * _ratio(prediction_mm3 - truth_mm3, truth_mm3)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    """Divide element by element, (K,); NaN where the whole is 0."""
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
