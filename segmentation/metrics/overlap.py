"""Overlap and volumes of two label maps, all computed from one joint histogram.

The joint histogram, `joint`, has K rows and K columns, where K is the number of classes: `joint[t,
p]` counts the voxels with class t in the truth and class p in the prediction. A ratio with a
denominator of zero is NaN: undefined, neither good nor bad.
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
    """Count voxels by true and predicted class index, from two maps (X, Y, Z) to (K, K).

    `classes` is the number of classes, K. Row t, column p of the result counts the voxels with
    class t in the truth and p in the prediction. Raises EvaluationError if the shapes differ, or if
    a map has an index outside 0 to K - 1.
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
    """Return the Dice of each class, 2 |T and P| / (|T| + |P|), from (K, K) to (K,)."""
    true = joint.sum(1)
    predicted = joint.sum(0)
    return _ratio(2 * joint.diagonal(), true + predicted)


def mean_dice(joint: Counts, without: Collection[int]) -> float:
    """Return the mean Dice of the classes that the truth has, except the class indices `without`.

    It is 0 if no class is left.
    """
    is_there = joint.sum(1) > 0
    is_there[list(without)] = False
    if not is_there.any():
        return 0.0
    return float(dice(joint)[is_there].mean())


def iou(joint: Counts) -> Values:
    """Return the IoU of each class, |T and P| / |T or P|, from (K, K) to (K,)."""
    true = joint.sum(1)
    predicted = joint.sum(0)
    in_both = joint.diagonal()
    in_either = true + predicted - in_both
    return _ratio(in_both, in_either)


def precision(joint: Counts) -> Values:
    """Return the share of each class of the prediction that is correct, from (K, K) to (K,)."""
    return _ratio(joint.diagonal(), joint.sum(0))


def recall(joint: Counts) -> Values:
    """Return the share of each class of the truth that was found, from (K, K) to (K,)."""
    return _ratio(joint.diagonal(), joint.sum(1))


def generalised_dice(joint: Counts, without: Collection[int] = ()) -> float:
    """Return the Dice over all classes together, each weighted by 1 / (true volume)^2.

    Background and the class indices in `without` are excluded. A class that the truth lacks gets
    the largest weight of the classes that are in the truth, as in MONAI, so that false positives
    lower the value.
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
    """Return the share of a structure's overlap that is labelled as the other side, (K,).

    `partners` (K,) has the class index of the same structure on the other side, or a class's own
    index if it lies on the midline. The share is over both sides of a pair: 0 is correct, 1 is a
    prediction with left and right exchanged. It is NaN for midline classes.
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
    """Convert voxel counts of classes, (K,), to cubic millimetres."""
    return np.asarray(voxels * float(np.prod(spacing_mm)), np.float64)


def volume_difference_percent(truth_mm3: Values, prediction_mm3: Values) -> Values:
    """Return (prediction - truth) / truth in percent, (K,); NaN if the true volume is 0."""
    return 100 * _ratio(prediction_mm3 - truth_mm3, truth_mm3)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    """Divide element by element, (K,); NaN where the whole is 0."""
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
