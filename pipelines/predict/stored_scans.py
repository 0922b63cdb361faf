"""Requests to segment the scans of a slice store: a part of its split, or its folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.study.naming import FOLD
from trinat.pipelines.study.stored import stored_cases
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.zoo import find_model


def stored_requests(
    request: PredictRequest,
    store: Store,
    part: Literal["train", "validation", "test"],
    *,
    folds: bool = False,
) -> list[PredictRequest]:
    """Return the request to segment the original scans of a part of a store's split.

    With `folds` there is a request for the test scans of each fold of a cross-validation, whatever
    `part` is. A fold has its own model in the folder `request.model`, and its own folder of
    results. Scans are read with the settings that they were read with for the store, unless the
    request sets its own. DatasetError is raised if the store has no split, or no split of the
    requested kind, and ModelError if the models of the folds differ in their views.
    """
    output = request.output
    if output.trust_affine is None:
        output = replace(output, trust_affine=store.info.trust_affine)
    if store.info.fill_nonfinite:
        output = replace(output, fill_nonfinite=True)
    request = replace(request, output=output)
    if not folds:
        return [replace(request, found=stored_cases(store, store.part(part)))]
    requests = []
    for number, split in enumerate(store.folds):
        fold = FOLD.format(number)
        of_fold = replace(
            request,
            found=stored_cases(store, store.part("test", split)),
            out=request.out / fold,
            model=f"{request.model}/{fold}/model",
        )
        requests.append(of_fold)
    _refuse_missing_views([of_fold.model for of_fold in requests])
    return requests


def _refuse_missing_views(models: Sequence[str]) -> None:
    """Raise ModelError if the models of the folds differ in their views.

    Then a fold is not fully trained. The error names the first fold that lacks a view.
    """
    views_of = {}
    for model in models:
        info = read_info(find_model(model))
        views_of[model] = {view.value for view in info.architectures}
    for model, views in views_of.items():
        missing = sorted(set().union(*views_of.values()) - views)
        if missing:
            names = " and no ".join(missing)
            raise ModelError(
                f"has no network for the view {names}, unlike another fold",
                where=Path(model).parent,
                remedy="finish this fold with trinat train --fold",
            )
