"""Scans of a store become requests: each fold's own scans, model and folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.refusals import refusal
from helpers.small_model import network

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.recorder import Outcome, sum_of
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest
from trinat.pipelines.predict.stored_scans import stored_requests
from trinat.pipelines.study.cases import Case, Found
from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View

FIRST = Found((Case("a", Path("a.nii"), "a"),))
SECOND = Found((Case("b", Path("b.nii"), "b"),))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a store with two folds, whose scans were read by the qform and with NaN as 0."""
    found = {"first": FIRST, "second": SECOND}
    monkeypatch.setattr(
        "trinat.pipelines.predict.stored_scans.stored_cases",
        lambda store, subjects: found[subjects],
    )
    return SimpleNamespace(
        info=SimpleNamespace(trust_affine="qform", fill_nonfinite=True),
        folds=("first", "second"),
        part=lambda part, split="first": split,
    )


def save_folds(folder: Path, *views_of_folds: tuple[View, ...]) -> None:
    for number, views in enumerate(views_of_folds):
        networks = dict.fromkeys(views, network())
        model = folder / f"fold-{number}/model"
        save_model(model, Description(name="tiny"), networks)


def test_each_fold_has_its_scans_its_model_and_its_folder(
    store: Any, tmp_path: Path
) -> None:
    save_folds(tmp_path, (View.AXIAL,), (View.AXIAL,))
    asked = PredictRequest((), Path("out"), str(tmp_path))
    requests = stored_requests(asked, store, "test", folds=True)
    assert [request.found for request in requests] == [FIRST, SECOND]
    assert [request.out for request in requests] == [
        Path("out/fold-0"),
        Path("out/fold-1"),
    ]
    assert [request.model for request in requests] == [
        f"{tmp_path}/fold-0/model",
        f"{tmp_path}/fold-1/model",
    ]
    assert {request.output.trust_affine for request in requests} == {"qform"}
    assert all(request.output.fill_nonfinite for request in requests)


def test_folds_whose_models_differ_in_their_views_are_refused(
    store: Any, tmp_path: Path
) -> None:
    save_folds(tmp_path, (View.AXIAL,), (View.AXIAL, View.CORONAL))
    asked = PredictRequest((), Path("out"), str(tmp_path))
    with refusal(ModelError, tmp_path / "fold-0"):
        stored_requests(asked, store, "test", folds=True)


def test_a_part_keeps_model_and_folder_and_what_is_asked_for_holds(store: Any) -> None:
    store.info.fill_nonfinite = False
    output = OutputSettings(trust_affine="sform", fill_nonfinite=True)
    asked = PredictRequest((), Path("out"), "fast", output=output)
    (request,) = stored_requests(asked, store, "test")
    assert (request.out, request.model) == (Path("out"), "fast")
    assert request.found == FIRST
    assert request.output == output


def test_runs_one_after_another_add_up_and_an_interrupted_one_counts() -> None:
    first = Outcome(2, 0, 1, False, grades={"pass": 2}, spent={"read": (1.0, 2.0)})
    second = Outcome(
        1, 3, 0, True, grades={"look": 1, "pass": 0}, spent={"read": (0.5, 0.5)}
    )
    whole = sum_of([first, second])
    assert (whole.done, whole.skipped, whole.failed) == (3, 3, 1)
    assert whole.grades == {"pass": 2, "look": 1}
    assert whole.spent == {"read": (1.5, 2.5)}
    assert whole.exit == Exit.INTERRUPTED
    assert sum_of([first]).exit == Exit.SOME_FAILED
