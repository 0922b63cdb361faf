"""Agreement, uncertainty and clean-up, against cases worked out by hand."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from helpers.fourclass import label

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.prediction import Prediction, clean_up, with_classes
from trinat.segmentation.inference.uncertainty import (
    Samples,
    dice_of_maps,
    entropy_of,
    view_agreement,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.conform import ConformPlan
from trinat.segmentation.space.views import View

SCHEME = LabelScheme(
    "three",
    (
        label(0, "background"),
        label(1, "Left-A", 2, "left"),
        label(2, "Right-A", 1, "right"),
    ),
)


def cells(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1)


def test_dice_of_two_maps() -> None:
    # Class 1: 2 voxels and 3, 2 in common: 4 / 5. Class 2: absent from both.
    found = dice_of_maps(cells([1, 1, 0, 0]), cells([1, 1, 1, 0]), 3)
    np.testing.assert_allclose(found, [2 / 3, 0.8, np.nan])


def test_agreement_with_a_view_that_knows_no_sides() -> None:
    maps = {
        View.CORONAL: cells([1, 1, 2, 0]),
        View.AXIAL: cells([1, 1, 2, 0]),
        View.SAGITTAL: cells([1, 1, 0, 0]),
    }
    found = view_agreement(maps, SCHEME, (View.SAGITTAL,))
    # Left: 1 between the sided views, and twice 4/5 for the merged structure.
    np.testing.assert_allclose(found[1:], [(1 + 0.8 + 0.8) / 3] * 2)


def test_entropy_is_zero_when_certain_and_log_k_when_not() -> None:
    found = entropy_of(torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]]))
    np.testing.assert_allclose(found, [0, log(4)], rtol=1e-6)


def one_hot(values: list[int]) -> torch.Tensor:
    return torch.nn.functional.one_hot(cells(values).long(), 3).half()


def test_samples_are_summed_up_per_structure() -> None:
    samples = Samples()
    for values in ([1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]):
        samples.add(one_hot(values))
    found = samples.summarise()
    assert found.iou[1] == pytest.approx(2 / 4)
    assert found.pairwise_dice[1] == pytest.approx((4 / 5 + 4 / 6 + 6 / 7) / 3)
    assert found.volume_cv[1] == pytest.approx(1 / 3)  # volumes 2, 3, 4
    assert np.isnan(found.iou[2])
    thirds = -(1 / 3 * log(1 / 3) + 2 / 3 * log(2 / 3))
    np.testing.assert_allclose(found.entropy.ravel(), [0, 0, thirds, thirds], atol=2e-3)


def test_a_structure_that_one_sample_alone_has_agrees_in_none() -> None:
    samples = Samples()
    for values in ([1, 2, 0], [1, 0, 0], [1, 0, 0]):
        samples.add(one_hot(values))
    found = samples.summarise()
    # Pairs of samples that both lack the structure do not count.
    assert found.pairwise_dice[2] == 0
    assert found.iou[2] == 0
    assert found.volume_cv[2] == pytest.approx(3**0.5)  # volumes 1, 0, 0


def test_cleaned_probabilities_have_the_cleaned_classes_and_the_same_entropy() -> None:
    rows = [[0.1, 0.7, 0.2], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.4, 0.3, 0.3]]
    given = torch.tensor(rows).half().view(4, 1, 1, 3)
    before = np.array([1, 0, 1, 0], np.uint8).reshape(4, 1, 1)
    after = np.array([1, 1, 2, 2], np.uint8).reshape(4, 1, 1)
    found = with_classes(given, before, after)
    assert found.argmax(-1).flatten().tolist() == [1, 1, 2, 2]
    np.testing.assert_allclose(found.sum(-1), 1, atol=2e-3)
    np.testing.assert_allclose(found[3, 0, 0], [0.3, 0.3, 0.4], atol=1e-3)
    np.testing.assert_allclose(entropy_of(found), entropy_of(given), atol=2e-3)
    assert given.argmax(-1).flatten().tolist() == [1, 0, 1, 0]


def test_all_that_a_cleaned_segmentation_shows_is_cleaned() -> None:
    labels = np.zeros((12, 6, 6), np.uint8)
    labels[1:5, 1:5, 1:5] = 1
    labels[9, 3, 3] = 1
    fused = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), 3).half()
    grid = Grid(labels.shape, np.eye(4))
    image = Volume(labels.astype(np.float32), grid.affine)
    plan = ConformPlan(grid, (1, 1), grid)
    found, changed = Prediction(
        fused, SCHEME, plan, image, (), None, None, ()
    ).cleaned()
    assert changed == {"Left-A": pytest.approx(1 / 65)}
    assert found.voxels["Left-A"] == 64
    assert found.labels.data[9, 3, 3] == 0
    assert found.working.data[9, 3, 3] == 0
    assert found.probabilities("Left-A").data[9, 3, 3] == 0


def test_clean_up_keeps_the_largest_piece_and_fills_holes() -> None:
    labels = np.zeros((12, 7, 7), np.uint8)
    labels[1:6, 1:6, 1:6] = 1
    labels[3, 3, 3] = 0  # a hole
    labels[9, 3, 3] = 1  # a speck in the background
    labels[2, 2, 2] = 2  # another structure inside stays
    cleaned, changed = clean_up(labels, 3)
    assert cleaned[3, 3, 3] == 1
    assert cleaned[9, 3, 3] == 0
    assert cleaned[2, 2, 2] == 2
    assert changed == {1: pytest.approx(2 / 124)}
    assert labels[9, 3, 3] == 1


def test_a_lost_piece_becomes_what_surrounds_it() -> None:
    labels = np.full((7, 5, 5), 2, np.uint8)
    labels[0] = 1
    labels[4, 2, 2] = 1
    cleaned, _ = clean_up(labels, 3)
    assert cleaned[4, 2, 2] == 2
