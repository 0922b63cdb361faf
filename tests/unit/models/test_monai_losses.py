"""MONAI's losses in a recipe: values by hand, unknown pixels left out, kinds of stages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.models.losses import AnyLoss, LossConfig, build_loss
from trinat.segmentation.training.config import Recipe

ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyLoss)
KINDS = ("DiceCELoss", "DiceFocalLoss", "GeneralizedDiceLoss", "TverskyLoss")
COUNTS = np.array([100, 100])
# Two pixels, of class 0 and 1; the network gives both classes one half.
EVEN = torch.zeros(1, 2, 1, 2)
LABELS = torch.tensor([[[0, 1]]], dtype=torch.uint8)


def loss(kind: str, **keys: object) -> torch.nn.Module:
    return build_loss(ADAPTER.validate_python({"kind": kind, **keys}), COUNTS)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Each class: 2 * 0.5 / (1 + 1); cross entropy ln 2.
        ("DiceCELoss", 0.5 + math.log(2)),
        ("GeneralizedDiceLoss", 0.5),
        # Each class: 0.5 / (0.5 + 0.5 * 0.5 + 0.5 * 0.5).
        ("TverskyLoss", 0.5),
    ],
)
def test_values_by_hand(kind: str, expected: float) -> None:
    assert loss(kind)(EVEN, LABELS).item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_answer_costs_nothing_and_a_better_one_less(kind: str) -> None:
    right = torch.nn.functional.one_hot(LABELS.long(), 2).movedim(-1, 1) * 80.0 - 40.0
    assert loss(kind)(right, LABELS).item() == pytest.approx(0, abs=1e-4)
    better = right / 80
    assert loss(kind)(better, LABELS) < loss(kind)(EVEN, LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_pixels_change_nothing(kind: str) -> None:
    logits = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(2, 4, 4, dtype=torch.uint8)
    labels[:, 1:3] = 1
    labels[:, 3] = IGNORE
    seen = loss(kind)(logits[:, :, :3], labels[:, :3])
    assert loss(kind)(logits, labels).item() == pytest.approx(seen.item(), abs=1e-6)


def test_where_no_pixel_counts_the_loss_is_0_and_has_gradients() -> None:
    logits = torch.randn(1, 2, 2, 2, requires_grad=True)
    nothing = loss("DiceCELoss")(logits, torch.full((1, 2, 2), IGNORE))
    nothing.backward()
    assert nothing.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_a_label_that_is_no_class_is_noticed() -> None:
    assert loss("TverskyLoss")(EVEN, LABELS + 1).isnan()


def test_balance_weighs_classes_by_median_frequency_in_the_cross_entropy() -> None:
    """Counts 100 and 300: the median is 200, so the weights are 2 and 2/3."""
    config = ADAPTER.validate_python(
        {"kind": "DiceCELoss", "lambda_dice": 0, "balance": 1}
    )
    logits = torch.tensor([[[[0.0, 1.0]], [[0.0, 0.0]]]])
    weighted = build_loss(config, np.array([100, 300]))(logits, LABELS).item()
    of_first = math.log(2)
    of_second = math.log(1 + math.e)
    expected = (2 * of_first + 2 / 3 * of_second) / (2 + 2 / 3)
    assert weighted == pytest.approx(expected, abs=1e-5)


def test_a_recipe_without_a_kind_has_quicknats_loss() -> None:
    assert ADAPTER.validate_python({"boundary": 1}) == LossConfig(boundary=1)


def test_a_stage_with_another_kind_of_loss_has_that_alone() -> None:
    stages = [
        {"name": "first"},
        {"name": "second", "loss": {"kind": "TverskyLoss", "alpha": 0.3}},
    ]
    recipe = Recipe.model_validate(
        {
            "name": "two",
            "data": {"synthetic": {"heads": "phantom"}},
            "schedule": {"steps": 1},
            "loss": {"boundary": 0.2},
            "stages": stages,
        }
    )
    assert recipe.stages[0].loss == LossConfig(boundary=0.2)
    assert recipe.stages[1].loss == ADAPTER.validate_python(stages[1]["loss"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "DiceLoss"},
        {"kind": "TverskyLoss", "boundary": 1},
        {"kind": "DiceCELoss", "lambda_ce": -1},
    ],
)
def test_settings_that_make_no_loss_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(wrong)
