"""Recipes: settings shared by stages, their changes, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import NetworkPart, Recipe, ValidationConfig

SHARED = {
    "name": "two",
    "data": {"synthetic": {"heads": "phantom"}, "rows": 64},
    "schedule": {"kind": "cosine", "steps": 100, "warmup_steps": 5},
    "batch": 6,
}


def test_without_stages_there_is_one() -> None:
    recipe = Recipe.model_validate(SHARED)
    assert [stage.name for stage in recipe.stages] == ["train"]
    assert recipe.stages[0].batch == 6


def test_stages_share_what_stands_above_them_and_may_differ() -> None:
    recipe = Recipe.model_validate(
        {
            **SHARED,
            "stages": [{"name": "a"}, {"name": "b", "batch": 2, "data": {"rows": 96}}],
        }
    )
    first, second = recipe.stages
    assert (first.batch, first.data.rows) == (6, 64)
    assert (second.batch, second.data.rows) == (2, 96)
    assert second.data.synthetic == first.data.synthetic


def test_a_stage_of_another_length_keeps_the_rest_of_the_schedule() -> None:
    recipe = Recipe.model_validate({**SHARED, "stages": [{"schedule": {"epochs": 9}}]})
    schedule = recipe.stages[0].schedule
    assert (schedule.steps, schedule.epochs, schedule.warmup_steps) == (None, 9, 5)


def test_a_resolved_recipe_resolves_to_itself() -> None:
    recipe = Recipe.model_validate(
        {**SHARED, "stages": [{"name": "a"}, {"name": "b", "batch": 2}]}
    )
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_the_start_of_a_stage_is_for_views_that_no_earlier_stage_trains() -> None:
    stages = [
        {"name": "a", "views": ["coronal"], "start": "manual"},
        {"name": "b", "views": ["axial"]},
        {"name": "c", "views": ["coronal", "axial"]},
        {"name": "d", "start": "any"},
    ]
    recipe = Recipe.model_validate({**SHARED, "start": "fast", "stages": stages})
    third, last = recipe.stages[2:]
    assert recipe.start_of(third, View.CORONAL) is None
    assert recipe.start_of(last, View.CORONAL) is None
    assert recipe.start_of(last, View.SAGITTAL) == Path("any")
    assert Recipe.model_validate(recipe.model_dump()) == recipe


def test_sessions_of_a_participant_validate_together() -> None:
    participants = ["ann", "ann", "bob", "eve", "eve"]
    for seed in range(20):
        chosen = ValidationConfig(participants=1).choose(participants, seed)
        assert chosen in ([0, 1], [2], [3, 4])
    assert ValidationConfig(participants=9).choose(participants, 0) == [0, 1, 2, 3, 4]


def test_an_old_word_for_a_precision_is_answered_with_the_new_ones() -> None:
    with pytest.raises(
        ValidationError, match="'auto', 'float32', 'bfloat16' or 'float16'"
    ):
        Recipe.model_validate({**SHARED, "precision": "bf16"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": 3},
        {"data": {"synthetic": {"heads": "phantom", "skulls": 1}}},
        {"stages": [{"rate": 1}]},
        {"batch": 0},
        # A negative rate would increase the loss.
        {"optimiser": {"parts": {"encoders": -1}}},
        {"optimiser": {"parts": dict.fromkeys(get_args(NetworkPart), 0)}},
        {"optimiser": {"rate": float("inf")}},
        {"loss": {"boundary": float("inf")}},
        {"loss": {"kind": "DiceCELoss", "lambda_ce": float("inf")}},
        {"views": ["coronal", "coronal"]},
        # Synthetic slices are new each time, so there are no epochs over them.
        {"data": {"synthetic": {"heads": "phantom"}, "epoch_slices": None}},
        {"stages": [{"name": "a"}, {"name": "a"}]},
        # Stage b goes on from stage a.
        {"stages": [{"name": "a"}, {"name": "b", "start": "fast"}]},
        # The shares of two sources would be undefined.
        {
            "data": {"synthetic": {"heads": "phantom"}},
            "stages": [
                {"name": "drawn"},
                {"name": "real", "data": {"store": {"path": "s", "split": "s.json"}}},
            ],
        },
    ],
)
def test_what_no_recipe_says_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate({**SHARED, **wrong})
