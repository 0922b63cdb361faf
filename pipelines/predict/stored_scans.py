"""Requests to segment the scans of a slice store: a part of its split, or its folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trinat.pipelines.predict.settings import PredictRequest
from trinat.pipelines.study.cases import Found
from trinat.pipelines.study.naming import FOLD
from trinat.pipelines.study.stored import stored_cases
from trinat.segmentation.data.store import Store
from trinat.segmentation.errors import ModelError
from trinat.segmentation.models.checkpoint import read_info
from trinat.segmentation.models.zoo import find_model


@dataclass(frozen=True)
class StoredScans:
    """Scans of a slice store to segment, with the settings that they were read with for the store.

    `found` maps the name of an output folder to the scans that are segmented into it. With `folds`
    there is a folder for each fold, below the output folder and below the folder of the models.
    Without folds the only name is "", the output folder itself.
    """

    found: Mapping[str, Found]
    folds: bool
    trust_affine: Literal["sform", "qform", "header"] | None
    fill_nonfinite: bool

    @classmethod
    def find(
        cls,
        path: Path,
        part: Literal["train", "validation", "test"],
        *,
        folds: bool = False,
    ) -> StoredScans:
        """Find the original scans of a part of a store's split, such as the test scans.

        `path` is the folder of the store. With `folds`, the test scans of each fold of a
        cross-validation are found, whatever `part` is. DatasetError is raised if the store has no
        split, or no split of the requested kind.
        """
        store = Store(path)
        subjects = {}
        if folds:
            for number, split in enumerate(store.folds):
                subjects[FOLD.format(number)] = store.part("test", split)
        else:
            subjects[""] = store.part(part)
        found = {
            folder: stored_cases(store, names) for folder, names in subjects.items()
        }
        info = store.info
        return cls(found, folds, info.trust_affine, info.fill_nonfinite)

    def check_models(self, model: str) -> None:
        """Raise ModelError if the models of the folds differ in their views.

        Then a fold is not fully trained. The error names the first fold that lacks a view. `model`
        is the folder of all folds.
        """
        if not self.folds:
            return
        views_of = {}
        for folder in self.found:
            info = read_info(find_model(f"{model}/{folder}/model"))
            views_of[folder] = {view.value for view in info.architectures}
        for folder, views in views_of.items():
            missing = sorted(set().union(*views_of.values()) - views)
            if missing:
                names = " and no ".join(missing)
                raise ModelError(
                    f"has no network for the view {names}, unlike another fold",
                    where=f"{model}/{folder}",
                    remedy="finish this fold with trinat train --fold",
                )

    def requests(self, request: PredictRequest) -> list[PredictRequest]:
        """Return a request for each folder: its scans and, with folds, the fold's own model.

        Scans are read with the settings of the store unless the request sets its own.
        """
        output = request.output
        if output.trust_affine is None:
            output = replace(output, trust_affine=self.trust_affine)
        if self.fill_nonfinite:
            output = replace(output, fill_nonfinite=True)
        requests = []
        for folder, found in self.found.items():
            model = request.model
            if self.folds:
                model = f"{model}/{folder}/model"
            out = request.out / folder
            requests.append(
                replace(request, output=output, found=found, out=out, model=model)
            )
        return requests
