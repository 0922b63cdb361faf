"""Scans of a store become requests: each fold's own scans, model and folder."""

from __future__ import annotations

from pathlib import Path

from helpers.refusals import refusal
from helpers.small_model import network

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.predict.recorder import Outcome, sum_of
from trinat.pipelines.predict.settings import OutputSettings, PredictRequest
from trinat.pipelines.predict.stored_scans import StoredScans
from trinat.pipelines.study.cases import Case, Found
from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.checkpoint import save_model
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.space.views import View

FIRST = Found((Case("a", Path("a.nii"), "a"),))
SECOND = Found((Case("b", Path("b.nii"), "b"),))


def test_each_fold_has_its_scans_its_model_and_its_folder() -> None:
    found = {"fold-0": FIRST, "fold-1": SECOND}
    stored = StoredScans(found, folds=True, trust_affine="qform", fill_nonfinite=True)
    requests = stored.requests(PredictRequest((), Path("out"), "runs/cv"))
    assert [request.found for request in requests] == [FIRST, SECOND]
    assert [request.out for request in requests] == [
        Path("out/fold-0"),
        Path("out/fold-1"),
    ]
    assert [request.model for request in requests] == [
        "runs/cv/fold-0/model",
        "runs/cv/fold-1/model",
    ]
    assert {request.output.trust_affine for request in requests} == {"qform"}
    assert all(request.output.fill_nonfinite for request in requests)


def test_folds_whose_models_differ_in_their_views_are_refused(tmp_path: Path) -> None:
    found = {"fold-0": FIRST, "fold-1": SECOND}
    stored = StoredScans(found, folds=True, trust_affine=None, fill_nonfinite=False)
    for fold, views in (
        ("fold-0", (View.AXIAL,)),
        ("fold-1", (View.AXIAL, View.CORONAL)),
    ):
        networks = dict.fromkeys(views, network())
        save_model(tmp_path / fold / "model", Description(name="tiny"), networks)
    with refusal(ModelError, tmp_path / "fold-0"):
        stored.check_models(str(tmp_path))


def test_a_part_keeps_model_and_folder_and_what_is_asked_for_holds() -> None:
    stored = StoredScans(
        {"": FIRST}, folds=False, trust_affine="qform", fill_nonfinite=False
    )
    output = OutputSettings(trust_affine="sform", fill_nonfinite=True)
    asked = PredictRequest((), Path("out"), "fast", output=output)
    (request,) = stored.requests(asked)
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
