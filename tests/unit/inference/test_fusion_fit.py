"""View weights: the candidates, and the voxels that decide between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.fourclass import SCHEME

from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    find_ambiguous,
    weights_to_try,
)
from trinat.segmentation.models.model_info import DEFAULT_WEIGHTS, Mean
from trinat.segmentation.space.views import View, to_slices

C, A, S = View
SHAPE = (6, 20, 20)
MERGED = SCHEME.merged.to_merged


def truth_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, SHAPE).astype(np.uint8)


def sure(truth: np.ndarray, classes: int, certainty: float) -> torch.Tensor:
    """Return probabilities with `certainty` for the true class; the others share the rest."""
    rest = (1 - certainty) / (classes - 1)
    right = torch.nn.functional.one_hot(torch.from_numpy(truth).long(), classes)
    return rest + (certainty - rest) * right.float()


def noise(classes: int, seed: int) -> torch.Tensor:
    """Return probabilities that are independent of any truth."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((*SHAPE, classes), generator=generator).mul(3).softmax(-1)


def test_weights_to_try_sum_to_1_and_leave_no_view_out() -> None:
    of_three = weights_to_try((C, A, S))
    # 10 steps in three parts of at least one: 9 * 8 / 2.
    assert len(of_three) == 36
    assert {C: 0.8, A: 0.1, S: 0.1} in of_three
    assert all(sum(weights.values()) == pytest.approx(1) for weights in of_three)
    assert len(weights_to_try((C, A))) == 9


def random_views(seed: int) -> dict[View, torch.Tensor]:
    """Return views that mostly agree and are mostly certain, as networks are."""
    truth = truth_of(seed)
    right = {
        C: sure(truth, 4, 0.97),
        A: sure(truth, 4, 0.97),
        S: sure(MERGED[truth], 3, 0.97),
    }
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(SHAPE, generator=generator) < 0.3
    for number, (view, given) in enumerate(right.items()):
        given[wrong] = noise(given.shape[-1], seed + number)[wrong]
        right[view] = given.half()
    return right


@pytest.mark.parametrize(
    "weights",
    [
        DEFAULT_WEIGHTS,
        {C: 0.1, A: 0.8, S: 0.1},
    ],
)
@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_counting_the_decided_and_fusing_the_rest_is_fusing_all(
    weights, mean: Mean
) -> None:
    views, truth = random_views(0), truth_of(0)
    ambiguous = find_ambiguous(truth, views, SCHEME)
    assert 0 < len(ambiguous.truth) < 0.6 * truth.size
    fusion = ViewAggregator(SHAPE, SCHEME, tuple(View), weights, mean=mean)
    for view, given in views.items():
        fusion.add(view, 0, to_slices(given.float(), view, trailing=1))
    fused = fusion.finish()
    torch.testing.assert_close(
        fused.float().sum(-1), torch.ones(SHAPE), atol=4e-3, rtol=0
    )
    expected = np.zeros((4, 4), np.int64)
    np.add.at(expected, (truth, fused.argmax(-1).numpy()), 1)
    np.testing.assert_array_equal(ambiguous.joint(SCHEME, weights, mean), expected)


def test_what_all_views_are_sure_of_is_counted_and_not_kept() -> None:
    truth = np.array([[[0, 1, 3, 3]]], np.uint8)
    seen = np.array([[[0, 1, 3, 1]]], np.uint8)
    views = {
        C: sure(seen, 4, 0.9),
        A: sure(seen, 4, 0.9),
        S: sure(MERGED[seen], 3, 0.9),
    }
    # The axial view prefers another class in the second voxel, so that voxel is ambiguous.
    views[A][0, 0, 1] = torch.tensor([0.1, 0.2, 0.7, 0.0])
    ambiguous = find_ambiguous(truth, views, SCHEME)
    assert ambiguous.truth.tolist() == [1]
    assert isinstance(ambiguous, AmbiguousVoxels)
    expected = np.zeros((4, 4), np.int64)
    expected[0, 0] = expected[3, 3] = expected[3, 1] = 1
    np.testing.assert_array_equal(ambiguous.decided, expected)
