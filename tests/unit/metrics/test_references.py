"""Metrics compared with two independent implementations, on random label maps.

Two hundred seeded pairs, half with anisotropic spacing. The default run takes every thirtieth,
`.ci/run` every tenth. Numbers are equal for equal definitions; where definitions differ by a
known amount, the difference is bounded by it (docs/notes/statistics.md lists the differences).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage

from trinat.segmentation.metrics import overlap
from trinat.segmentation.metrics.surface import (
    average_symmetric_distance_mm,
    hausdorff_mm,
    surface_dice,
    surface_distances,
)


def marks_of(seed: int) -> list[pytest.MarkDecorator]:
    if seed % 30 == 0:
        return []
    if seed % 10 == 0:
        return [pytest.mark.slow, pytest.mark.important]
    return [pytest.mark.slow]


SEEDS = [pytest.param(seed, marks=marks_of(seed)) for seed in range(200)]
CLASSES = 5


@dataclass(frozen=True)
class Pair:
    truth: np.ndarray
    prediction: np.ndarray
    spacing_mm: tuple[float, float, float]

    @property
    def joint(self) -> np.ndarray:
        return overlap.joint_histogram(self.truth, self.prediction, CLASSES)

    @property
    def present(self) -> list[int]:
        """Return the classes in both maps; absent ones have their own tests."""
        return [
            k
            for k in range(1, CLASSES)
            if (self.truth == k).any() & (self.prediction == k).any()
        ]

    @property
    def voxel_diagonal_mm(self) -> float:
        return math.hypot(*self.spacing_mm)


@cache
def random_pair(seed: int) -> Pair:
    """Return blobs with soft borders, and the same blobs somewhat displaced."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(14, 26, 3))
    fields = ndimage.gaussian_filter(rng.normal(size=(CLASSES, *shape)), (0, 2, 2, 2))
    noise = ndimage.gaussian_filter(
        rng.normal(size=(CLASSES, *shape)), (0, 1.5, 1.5, 1.5)
    )
    truth = fields.argmax(0).astype(np.uint8)
    prediction = (fields + rng.uniform(0.05, 0.8) * noise).argmax(0).astype(np.uint8)
    spacing = (
        rng.uniform(0.4, 3.0, 3)
        if seed % 4 < 2
        else np.full(3, rng.choice([0.7, 1.0, 2.0]))
    )
    return Pair(truth, prediction, tuple(float(s) for s in spacing))


def one_hot(labels: np.ndarray) -> torch.Tensor:
    return torch.nn.functional.one_hot(
        torch.from_numpy(labels.astype(np.int64)), CLASSES
    ).movedim(-1, 0)[None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # it uses old scipy namespaces
def test_surface_distance(seed: int) -> None:
    """DeepMind's definitions are the same, so all values are equal."""
    theirs: Any = pytest.importorskip("surface_distance")
    pair = random_pair(seed)
    for k in pair.present:
        truth, prediction = pair.truth == k, pair.prediction == k
        ours = surface_distances(truth, prediction, pair.spacing_mm)
        reference = theirs.compute_surface_distances(truth, prediction, pair.spacing_mm)
        assert ours is not None
        for percent in (50, 95, 100):
            expected = theirs.compute_robust_hausdorff(reference, percent)
            assert hausdorff_mm(ours, percent) == pytest.approx(expected)
        for tolerance_mm in (1.0, 2.0):
            expected = theirs.compute_surface_dice_at_tolerance(
                reference, tolerance_mm + 1e-6
            )
            assert surface_dice(ours, tolerance_mm) == pytest.approx(expected)
        # It returns the two directed means; ours is over both surfaces, weighted by their
        # areas.
        means = theirs.compute_average_surface_distance(reference)
        areas = reference["surfel_areas_gt"].sum(), reference["surfel_areas_pred"].sum()
        expected = np.average(means, weights=areas)
        assert average_symmetric_distance_mm(ours) == pytest.approx(expected)
        expected = theirs.compute_dice_coefficient(truth, prediction)
        assert overlap.dice(pair.joint)[k] == pytest.approx(expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings(
    "ignore:.*always_return_as_numpy:FutureWarning"
)  # by its own code
def test_monai(seed: int) -> None:
    """Overlap and, with sub-voxel surfaces, surface Dice are equal; Hausdorff is within a voxel.

    MONAI measures between the centres of border voxels, we between the corners around them: each
    of either kind has one of the other within half a voxel's diagonal, at both ends.
    """
    from monai.metrics import (
        compute_generalized_dice,
        compute_hausdorff_distance,
        compute_iou,
        compute_surface_dice,
        get_confusion_matrix,
    )
    from monai.metrics.meandice import compute_dice

    pair = random_pair(seed)
    truth, prediction = one_hot(pair.truth), one_hot(pair.prediction)
    foreground = {"y_pred": prediction, "y": truth, "include_background": False}
    joint, present = pair.joint, pair.present
    index = [k - 1 for k in present]

    def equal(ours: np.ndarray, theirs: torch.Tensor, relative: float = 1e-5) -> None:
        assert ours[present] == pytest.approx(theirs.numpy()[0][index], rel=relative)

    equal(overlap.dice(joint), compute_dice(**foreground))
    equal(overlap.iou(joint), compute_iou(**foreground))
    tp, fp, _, fn = get_confusion_matrix(**foreground).unbind(-1)
    equal(overlap.precision(joint), tp / (tp + fp))
    equal(overlap.recall(joint), tp / (tp + fn))
    generalised = compute_generalized_dice(
        prediction.float(),
        truth.float(),
        include_background=False,
        weight_type="square",
        sum_over_classes=True,
    )
    assert overlap.generalised_dice(joint) == pytest.approx(
        float(generalised), rel=1e-5
    )

    distances = {
        k: surface_distances(pair.truth == k, pair.prediction == k, pair.spacing_mm)
        for k in present
    }
    spacing = list(pair.spacing_mm)
    theirs = compute_surface_dice(
        **foreground,
        class_thresholds=[1.0] * (CLASSES - 1),
        spacing=spacing,
        use_subvoxels=True,
    )
    ours = np.full(CLASSES, np.nan)
    for k in present:
        ours[k] = surface_dice(distances[k], 1.0)
    equal(ours, theirs)
    theirs = compute_hausdorff_distance(**foreground, spacing=spacing)
    for k in present:
        within = pytest.approx(
            float(theirs[0, k - 1]), abs=pair.voxel_diagonal_mm * 1.0001
        )
        assert hausdorff_mm(distances[k]) == within
