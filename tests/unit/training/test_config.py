"""Recipes: what stages share, what they change, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from trinat.segmentation.training.config import Recipe, ValidationConfig
from trinat.segmentation.training.state import check_identity

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


def test_a_run_from_before_the_keys_of_a_pass_is_the_same_run() -> None:
    """What older runs wrote to config.yaml and to their states."""
    store = {"path": "s", "split": "s.json"}
    recipe = Recipe.model_validate(
        {**SHARED, "data": {"store": store}, "validation": {"scans": 2}}
    )
    (stage,) = recipe.model_dump(mode="json")["stages"]
    assert "balanced_share" not in stage["data"]["store"]
    assert "mean" not in stage["loss"]
    before = {"every_epochs": 1, "patience": None, "scans": 2}
    check_identity({**stage, "validation": before}, stage, Path("run"))


def test_a_share_of_balanced_draws_that_is_not_the_usual_one_is_written() -> None:
    store = {"path": "s", "split": "s.json", "balanced_share": 0}
    loss = {"mean": "plain"}
    recipe = Recipe.model_validate({**SHARED, "data": {"store": store}, "loss": loss})
    (stage,) = recipe.model_dump(mode="json")["stages"]
    assert stage["data"]["store"]["balanced_share"] == 0
    assert stage["loss"]["mean"] == "plain"
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_sessions_of_a_person_validate_together() -> None:
    persons = ["ann", "ann", "bob", "eve", "eve"]
    for seed in range(20):
        chosen = ValidationConfig(persons=1).choose(persons, seed)
        assert chosen in ([0, 1], [2], [3, 4])
    assert ValidationConfig(persons=9).choose(persons, 0) == [0, 1, 2, 3, 4]


def test_who_validates_is_drawn_or_the_first_not_both() -> None:
    with pytest.raises(ValidationError, match="persons or scans, not both"):
        ValidationConfig(persons=3, scans=2)


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
        {"views": ["coronal", "coronal"]},
        # Synthetic slices are new each time: there is no pass over them.
        {"data": {"synthetic": {"heads": "phantom"}, "epoch_slices": None}},
        {"stages": [{"name": "a"}, {"name": "a"}]},
        # Of two sources nobody would know how much each gives.
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
