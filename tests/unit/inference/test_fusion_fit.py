"""Weights fitted to probabilities whose worth is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.fourclass import SCHEME

from trinat.segmentation.inference.fusion import ViewAggregator
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    ViewLikelihoods,
    find_ambiguous,
    fit_weights,
)
from trinat.segmentation.models.model_info import DEFAULT_WEIGHTS, Mean
from trinat.segmentation.space.views import View, to_slices

C, A, S = View
SHAPE = (6, 20, 20)
MERGED = SCHEME.merged.to_merged


def truth_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, SHAPE).astype(np.uint8)


def sure(truth: np.ndarray, classes: int, certainty: float) -> torch.Tensor:
    """Each voxel's true class with `certainty`, the rest shared by the others."""
    rest = (1 - certainty) / (classes - 1)
    right = torch.nn.functional.one_hot(torch.from_numpy(truth).long(), classes)
    return rest + (certainty - rest) * right.float()


def noise(classes: int, seed: int) -> torch.Tensor:
    """Probabilities that know nothing of any truth."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((*SHAPE, classes), generator=generator).mul(3).softmax(-1)


def evidence(
    probabilities: dict[View, torch.Tensor], truth: np.ndarray
) -> ViewLikelihoods:
    ambiguous = find_ambiguous(truth, probabilities, SCHEME)
    return ViewLikelihoods.of(ambiguous, SCHEME, np.random.default_rng(0))


def test_views_that_are_equally_good_keep_the_default_weights() -> None:
    truth = truth_of(0)
    views = {C: sure(truth, 4, 0.6), A: sure(truth, 4, 0.6)}
    views[S] = views[C] @ torch.eye(3)[torch.from_numpy(MERGED.copy())]
    weights = fit_weights([evidence(views, truth)])
    assert weights == pytest.approx(DEFAULT_WEIGHTS, abs=1e-4)


@pytest.mark.parametrize("bad", list(View))
def test_a_view_of_noise_is_hardly_believed(bad: View) -> None:
    scans = []
    for seed in range(4):
        truth = truth_of(seed)
        views = {
            C: sure(truth, 4, 0.7),
            A: sure(truth, 4, 0.7),
            S: sure(MERGED[truth], 3, 0.7),
        }
        views[bad] = noise(views[bad].shape[-1], seed)
        scans.append(evidence(views, truth))
    weights = fit_weights(scans)
    assert weights[bad] < 0.05
    assert sum(weights.values()) == pytest.approx(1)


def test_the_prior_by_hand() -> None:
    # Two voxels, which count half each: the coronal view knows both, the axial one none.
    likelihoods = np.array([[1.0, 1.0], [0.01, 0.01]], np.float32)
    scan = ViewLikelihoods((C, A), likelihoods, np.array([0.5, 0.5]))
    # w = (share + 0.1 / 2) / 1.1, with share = w / (w + 0.01 (1 - w)): w = 0.954, share 0.9995.
    assert fit_weights([scan])[C] == pytest.approx((0.9995 + 0.05) / 1.1, abs=1e-3)


def test_a_structure_counts_as_much_as_any_other_and_a_scan_as_one() -> None:
    truth = np.zeros((1, 1, 12), np.uint8)
    truth[..., -3:] = 3
    views = {C: sure(truth, 4, 0.6), A: sure(truth, 4, 0.6)}
    scan = evidence(views, truth)
    # All voxels may be anything: background, A of either side and B have 12 voxels each.
    np.testing.assert_allclose(scan.shares, 1 / 36)
    assert scan.likelihoods.shape == (2, 36)


def test_classes_that_were_never_taught_say_nothing() -> None:
    truth = truth_of(0)
    views = {C: sure(truth, 4, 0.7), A: noise(4, 1)}
    ambiguous = find_ambiguous(truth, views, SCHEME)
    rng = np.random.default_rng(0)
    every = ViewLikelihoods.of(ambiguous, SCHEME, rng)
    found = ViewLikelihoods.of(ambiguous, SCHEME, rng, without=[3])
    assert found.likelihoods.shape[1] == every.likelihoods.shape[1] * 2 / 3
    assert found.shares.sum() == pytest.approx(1)
    nothing = ViewLikelihoods.of(ambiguous, SCHEME, rng, without=range(4))
    assert nothing.shares.sum() == 0
    assert fit_weights([nothing]) == pytest.approx({C: 0.5, A: 0.5})


def random_views(seed: int) -> dict[View, torch.Tensor]:
    """Views that mostly agree and are mostly certain, as networks are."""
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
        {C: [0.9, 0.1, 0.1, 0.5], A: [0.05, 0.1, 0.1, 0.5], S: [0.05, 0.8, 0.8, 0.001]},
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
    # Not sure enough of the second voxel; on the other side in the third view's eyes or not.
    views[A][0, 0, 1] = torch.tensor([0.1, 0.2, 0.7, 0.0])
    ambiguous = find_ambiguous(truth, views, SCHEME)
    assert ambiguous.truth.tolist() == [1]
    assert isinstance(ambiguous, AmbiguousVoxels)
    expected = np.zeros((4, 4), np.int64)
    expected[0, 0] = expected[3, 3] = expected[3, 1] = 1
    np.testing.assert_array_equal(ambiguous.decided, expected)
