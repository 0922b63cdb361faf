"""Losses against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.models.losses import (
    LossConfig,
    SegmentationLoss,
    _Softmax,
    _sums_by_index,
    _sums_one_hot,
    boundaries,
    build_loss,
    median_frequency_weights,
)

Sums = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]


def loss(weights: list[float], **settings: float | str) -> SegmentationLoss:
    return SegmentationLoss(
        LossConfig(**{"boundary": 0, **settings}), torch.tensor(weights)
    )


def confident(labels: Tensor, classes: int, logit: float = 100) -> Tensor:
    """Return logits (N, K, H, W) with all probability on the labels (N, H, W)."""
    one_hot = torch.nn.functional.one_hot(labels.long(), classes)
    return ((2 * one_hot - 1) * logit).permute(0, 3, 1, 2).float()


def test_median_frequency_weights_are_floats_and_0_for_an_absent_class() -> None:
    # Present: 800, 100, 50; their median is 100.
    weights = median_frequency_weights(np.array([800, 100, 0, 50]))
    assert weights.dtype == torch.float32
    assert weights.tolist() == [0.125, 1.0, 0.0, 2.0]


def test_an_even_number_of_classes_has_its_median_between_two() -> None:
    assert median_frequency_weights(torch.tensor([100, 300])).tolist() == pytest.approx(
        [2, 2 / 3]
    )


def test_balance_dampens_the_weights() -> None:
    counts = np.array([400, 100, 25])
    assert median_frequency_weights(counts, 0.5).tolist() == [0.5, 1.0, 2.0]
    assert median_frequency_weights(np.array([400, 0]), 0.0).tolist() == [1.0, 0.0]


def test_boundaries_are_the_in_plane_neighbours_of_another_label() -> None:
    labels = torch.tensor([[[0, 0, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0], [0, 0, 0, 0]]])
    expected = [[0, 0, 1, 0], [0, 1, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert boundaries(labels).int().tolist() == [expected]


def test_boundaries_ignore_neighbouring_slices() -> None:
    labels = torch.stack([torch.zeros(3, 3), torch.ones(3, 3)])
    assert not boundaries(labels).any()


def test_cross_entropy_is_the_weighted_mean_over_pixels() -> None:
    labels = torch.tensor([[[0, 1]]])
    # Pixel 0: p_0 = 3/4; pixel 1: p_1 = 1/2.
    logits = torch.tensor([[[[math.log(3), 0.0]], [[0.0, 0.0]]]])
    got, _ = loss([1.0, 3.0]).parts(logits, labels)
    assert got.item() == pytest.approx((1 * math.log(4 / 3) + 3 * math.log(2)) / 4)


def test_the_boundary_adds_its_share_of_the_largest_weight() -> None:
    labels = torch.tensor([[[0, 0, 1]]])
    # p of the label: 3/4, 1/2, 1/2. omega: 1, 1 + 2 * 3, 3 + 2 * 3.
    logits = torch.tensor([[[[math.log(3), 0.0, 0.0]], [[0.0, 0.0, 0.0]]]])
    got, _ = loss([1.0, 3.0], boundary=2).parts(logits, labels)
    expected = (1 * math.log(4 / 3) + 7 * math.log(2) + 9 * math.log(2)) / 17
    assert got.item() == pytest.approx(expected)


def test_a_plain_mean_is_over_pixels_and_over_all_classes() -> None:
    # The last pixel is not labelled, and the third class is absent.
    labels = torch.tensor([[[0, 1, IGNORE]]])
    logits = torch.tensor(
        [[[[math.log(3), 0.0, 0.0]], [[0.0, 0.0, 0.0]], [[-100.0, -100.0, -100.0]]]]
    )
    cross_entropy, dice = loss([1.0, 3.0, 2.0], mean="plain").parts(logits, labels)
    expected = (1 * math.log(4 / 3) + 3 * math.log(2)) / 2
    assert cross_entropy.item() == pytest.approx(expected)
    # Class 0: 2 * 3/4 / (3/4 + 1/2 + 1) = 2/3. Class 1: 2 * 1/2 / (1/4 + 1/2 + 1) = 4/7.
    assert dice.item() == pytest.approx(1 - (2 / 3 + 4 / 7) / 3)


def test_dice_uses_one_softmax() -> None:
    labels = torch.tensor([[[0, 1]]])
    logits = torch.tensor([[[[math.log(3), 0.0]], [[0.0, 0.0]]]])
    _, got = loss([1.0, 1.0]).parts(logits, labels)
    # Class 0: 2 * 3/4 / (3/4 + 1/2 + 1) = 2/3. Class 1: 2 * 1/2 / (1/4 + 1/2 + 1) = 4/7.
    assert got.item() == pytest.approx(1 - (2 / 3 + 4 / 7) / 2)


@pytest.mark.parametrize("classes", [2, 33])
def test_a_perfect_prediction_has_a_dice_loss_of_0(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(
        0, classes, (8, 96, 96), generator=generator, dtype=torch.uint8
    )
    _, dice = loss([1.0] * classes).parts(confident(labels, classes), labels)
    assert dice.item() == pytest.approx(0, abs=1e-6)


def test_a_wrong_prediction_has_a_dice_loss_of_1() -> None:
    labels = torch.tensor([[[0, 1], [1, 0]]])
    _, dice = loss([1.0, 1.0]).parts(confident(1 - labels, 2), labels)
    assert dice.item() == pytest.approx(1, abs=1e-6)


def test_a_class_absent_from_the_batch_neither_rewards_nor_punishes() -> None:
    labels = torch.tensor([[[0, 1], [1, 0]]])
    logits = torch.randn(1, 2, 2, 2)
    # The third class has practically no probability anywhere: as if it did not exist.
    with_third = torch.cat((logits, torch.full((1, 1, 2, 2), -100.0)), 1)
    two, three = loss([1.0, 1.0]), loss([1.0, 1.0, 1.0])
    torch.testing.assert_close(three(with_third, labels), two(logits, labels))


@pytest.mark.parametrize("label", [IGNORE, 2], ids=["IGNORE", "weight 0"])
def test_ignored_pixels_stay_out_of_everything(label: int) -> None:
    labels = torch.tensor([[[0, 1, label, label]]], dtype=torch.uint8)
    logits = torch.randn(1, 3, 1, 4, requires_grad=True)
    got = loss([1.0, 2.0, 0.0])(logits, labels)
    expected = loss([1.0, 2.0, 0.0])(logits[..., :2], labels[..., :2])
    torch.testing.assert_close(got, expected)
    got.backward()
    assert (logits.grad[..., 2:] == 0).all()
    assert (logits.grad[..., :2] != 0).all()


def test_nothing_but_ignored_pixels_is_a_loss_of_0_with_gradients_of_0() -> None:
    logits = torch.randn(1, 2, 2, 2, requires_grad=True)
    got = loss([1.0, 1.0])(logits, torch.full((1, 2, 2), IGNORE))
    got.backward()
    assert got.item() == 0
    assert (logits.grad == 0).all()


def test_a_label_that_is_no_class_is_noticed() -> None:
    assert loss([1.0, 1.0])(torch.zeros(1, 2, 1, 2), torch.tensor([[[0, 2]]])).isnan()


def test_the_parts_are_added_as_configured() -> None:
    labels, logits = torch.tensor([[[0, 1]]]), torch.randn(1, 2, 1, 2)
    both = loss([1.0, 1.0], cross_entropy=0.5, dice=3)
    cross_entropy, dice = both.parts(logits, labels)
    torch.testing.assert_close(both(logits, labels), 0.5 * cross_entropy + 3 * dice)


def test_gradients_are_the_derivatives() -> None:
    """Against central differences, on logits in double precision behind the float loss."""
    labels = torch.tensor([[[0, 1, 1], [2, 0, IGNORE]]])
    logits = torch.randn(1, 3, 2, 3, generator=torch.Generator().manual_seed(0))
    both = loss([1.0, 2.0, 0.5], boundary=2)
    leaf = logits.clone().requires_grad_()
    both(leaf, labels).backward()
    step = 1e-2
    for index in np.ndindex(*logits.shape):
        up, down = logits.clone(), logits.clone()
        up[index] += step
        down[index] -= step
        slope = (both(up, labels) - both(down, labels)) / (2 * step)
        assert leaf.grad[index].item() == pytest.approx(slope.item(), abs=2e-4)


def test_half_precision_logits_give_a_float_loss() -> None:
    labels = torch.zeros(1, 4, 4, dtype=torch.uint8)
    logits = torch.randn(1, 2, 4, 4).bfloat16()
    got = loss([1.0, 1.0])(logits, labels)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, loss([1.0, 1.0])(logits.float(), labels))


@pytest.mark.parametrize("sums", [_sums_by_index, _sums_one_hot])
def test_sums_per_class_are_those_of_a_loop(sums: Sums) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(50, generator=generator)
    target = torch.randint(0, 3, (50,), generator=generator)
    valid = torch.rand(50, generator=generator) > 0.3
    overlap, truth = sums(own, target, valid, 4)
    for k in range(4):
        mine = (target == k) & valid
        assert truth[k] == mine.sum()
        assert overlap[k].item() == pytest.approx(own[mine].sum().item())


def test_by_default_classes_weigh_by_median_frequency() -> None:
    chosen = build_loss(LossConfig(), np.array([400, 100, 25]))
    assert chosen.class_weights[:3].tolist() == [0.25, 1.0, 4.0]


@pytest.mark.parametrize(
    "setting", [{"kind": "dice"}, {"dice": -1}, {"balance": 2}, {"edge": 1}]
)
def test_settings_that_make_no_loss_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LossConfig.model_validate(setting)


@pytest.mark.gpu
def test_a_gpu_gives_the_loss_and_gradients_of_a_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (2, 16, 16), generator=generator, dtype=torch.uint8)
    logits = torch.randn(2, 5, 16, 16, generator=generator)
    results = []
    for device in ("cpu", "cuda"):
        leaf = logits.to(device).requires_grad_()
        value = loss([1.0, 2.0, 0.5, 0.0, 3.0], boundary=2).to(device)(
            leaf, labels.to(device)
        )
        value.backward()
        results.append((value.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("all_count", [True, False])
def test_the_gradient_of_the_softmax_is_that_of_differences(all_count: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 3, 1, 2, 0, 0, 3])
    valid = None if all_count else torch.tensor([1, 0, 1, 1, 0, 1, 1]).bool()

    def both(rows: Tensor) -> tuple[Tensor, Tensor]:
        return _Softmax.apply(rows, target, valid)

    assert torch.autograd.gradcheck(both, rows.requires_grad_())
