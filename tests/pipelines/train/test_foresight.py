"""Before a run on a processor: steps that do not fit in memory are refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.refusals import refusal

from trinat.pipelines.train import foresight
from trinat.pipelines.train.result import plan_jobs
from trinat.segmentation.errors import DeviceError
from trinat.segmentation.training.config import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")
GIB = 2**30


def small(**stage: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "small",
            "network": {"filters": 16, "kernel": 3, "depth": 2},
            "data": {"rows": 64, "columns": 64, "epoch_slices": 100},
            "schedule": {"steps": 10},
            "precision": "float32",
            "batch": 64,
            **stage,
        }
    )


def test_a_step_that_does_not_fit_is_refused_with_what_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = small()
    jobs = plan_jobs(recipe, recipe.views)
    monkeypatch.setattr(foresight, "free_memory", lambda: 4 * GIB)
    foresight.refuse_too_large(recipe, jobs)
    monkeypatch.setattr(foresight, "free_memory", lambda: GIB // 5)
    with pytest.raises(DeviceError) as caught:
        foresight.refuse_too_large(recipe, jobs)
    said = str(caught.value)
    assert "a step of 64 slices of 64x64 needs about" in said
    assert "0.2 GiB are free" in said
    assert "accumulate to" in said
    assert "\n" not in said
    monkeypatch.setattr(foresight, "free_memory", lambda: 0)
    with refusal(DeviceError, "train"):
        foresight.refuse_too_large(recipe, jobs)
