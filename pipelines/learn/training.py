"""Training of networks on corrected scans, by `trinat prepare`, `split` and `train`.

The folder NAME-training beside the new model has the store, its split and the run. If training was
interrupted, the same command resumes it there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from trinat.pipelines.common.config import check
from trinat.pipelines.common.models import save_copy
from trinat.pipelines.learn.corrected import Corrected
from trinat.pipelines.learn.settings import DEFAULT_RECIPE, LearnSettings
from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.train.from_python import as_overrides, train
from trinat.pipelines.train.result import CONFIG
from trinat.pipelines.train.run import read_recipe
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.data.splitting import split_store
from trinat.segmentation.data.store import Store
from trinat.segmentation.io.files import read_bytes, write_tsv
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.zoo import MODEL_FILE
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import TRUNK

_log = logging.getLogger(__name__)

# Changes of the recipe for painted corrections, which train the last layer only: the features of
# the networks suffice to move a border, and a structure that nobody changed keeps its labels
# (docs/notes/learning.md).
_PAINTED = {
    "optimiser.parts": dict.fromkeys(TRUNK, 0),
    "optimiser.rate": 1e-2,
    "schedule.steps": 100,
    "ema": 0.9,
}
# One participant in five is held out for validation.
_RATIOS = (4.0, 1.0, 0.0)


@dataclass(frozen=True)
class Trained:
    """Result of a training: the new models and the scans that were held out.

    `models` maps the name of a new model to its folder. "averaged" has the mean of the weights
    before and after training (missing if only the last layer was trained), and "trained" the
    weights after training; the model that changes less comes first. `held_out` are the names of
    scans.
    """

    models: Mapping[str, Path]
    held_out: frozenset[str]


def train_on(
    corrected: Sequence[Corrected],
    model: Model,
    classes: Sequence[int],
    settings: LearnSettings,
    *,
    progress: bool,
) -> Trained:
    """Train the networks of a model on corrected scans; hold out one participant in five.

    If all corrections were painted in the viewer and the `settings` name no recipe, only the
    `classes` (indices) that were changed are learnt. A painted correction is a whole label map:
    where nobody painted, its labels are the results of the model. Returns the folders of the new
    models and the names of the scans that were held out. A training that was interrupted is
    resumed. With `progress`, its progress is shown on stderr.
    """
    work = settings.out.with_name(f"{settings.out.name}-training")
    work.mkdir(parents=True, exist_ok=True)
    # `safe_component` keeps long names apart, so that two scans of a participant stay two subjects.
    subjects = {safe_component(each.scan.case): each for each in corrected}
    rows = [
        (name, each.scan.participant, each.image.resolve(), each.labels.resolve())
        for name, each in subjects.items()
    ]
    write_tsv(work / "pairs.tsv", ("subject", "participant", "image", "labels"), rows)
    store = work / "store"
    config = {
        "source": "pairs",
        "root": work / "pairs.tsv",
        "labels": str(model.label_table or model.info.labels),
        "grid": model.info.preprocessing.shape,
        "numbering": settings.numbering,
        "trust_affine": settings.trust_affine,
        # A scan with such voxels has results only because the run filled them.
        "fill_nonfinite": True,
    }
    checked = check(PrepareConfig, config, model.folder)
    summary = prepare_store(checked, store)
    for row in summary.rows:
        if row.status == "failed":
            _log.info("not used for learning: %s: %s", row.subject, row.reason)
    ((path, split),) = split_store(store, ratios=_RATIOS)
    _log.info(
        "trained on %d scans, judged by %d", len(split.train), len(split.validation)
    )

    # Name the run after corrections, model, recipe and settings, so that it is resumed only if all
    # are the same.
    changes = recipe_changes(corrected, model, settings)
    identity = Store(store).fingerprint.encode() + read_bytes(path)
    identity += read_bytes(model.folder / MODEL_FILE)
    recipe = read_recipe(settings.recipe, as_overrides(changes))
    identity += f"{recipe.model_dump_json()} {settings.seconds}".encode()
    run = work / f"run-{hashlib.sha256(identity).hexdigest()[:8]}"
    done = train(
        settings.recipe,
        run,
        store=store,
        settings=changes,
        resume=(run / CONFIG).is_file(),
        seconds=settings.seconds,
        device=settings.device,
        progress=progress,
    )
    models = {"trained": done.model}
    if _trains_last_layer(corrected, settings):
        models["trained"] = run / "trained"
        save_learnt_classes(load_model(done.model), model, classes, run / "trained")
    else:
        models = {"averaged": run / "averaged", **models}
        _save_mean(load_model(done.model), model, run / "averaged")
    return Trained(
        models=models,
        held_out=frozenset(subjects[name].scan.case for name in split.validation),
    )


def recipe_changes(
    corrected: Sequence[Corrected], model: Model, settings: LearnSettings
) -> dict[str, Any]:
    """Return the settings that replace those of the training recipe, by key (such as "start").

    They follow from `model`, the model to improve: it is the start of the training. If all
    corrections were painted in the viewer and no recipe is given, they also limit the training to
    the last layer.
    """
    changed: dict[str, Any] = {
        "start": model.folder.resolve(),
        "contrast": model.info.contrast,
        "reverse_contrast": model.info.reverse_contrast,
        "stripped_by": model.info.stripped_by,
    }
    if _trains_last_layer(corrected, settings):
        changed |= _PAINTED
    return changed


def _trains_last_layer(corrected: Sequence[Corrected], settings: LearnSettings) -> bool:
    """Return True if only the last layer of the networks is trained.

    That is so if all corrections were painted in the viewer and no recipe is given.
    """
    is_painted = all(each.structures is not None for each in corrected)
    return is_painted and settings.recipe == DEFAULT_RECIPE


def save_learnt_classes(
    trained: Model, start: Model, classes: Sequence[int], out: Path
) -> None:
    """Write a trained model in which only `classes` (indices) have new weights in the last layer.

    All other classes get back the weights and the factors of `start`, the model before training, so
    that borders between two of them do not move. The model is written to the folder `out`.
    """
    for view, network in trained.networks.items():
        count = len(trained.classes_of(view))
        learnt = np.asarray(classes)
        if count < len(trained.scheme):
            learnt = trained.scheme.merged.to_merged[learnt]
        others = torch.from_numpy(np.setdiff1d(np.arange(count), learnt))
        old = start.networks[view].classifier.by_class()
        for name, values in network.classifier.by_class().items():
            values[others] = old[name][others]
    odds = dict(start.info.fusion.class_odds)
    for index in classes:
        odds.pop(trained.scheme.names[index], None)
    fusion = trained.info.fusion.model_copy(update={"class_odds": odds})
    save_copy(trained, out, overwrite=True, fusion=fusion)


def _save_mean(trained: Model, start: Model, out: Path) -> None:
    """Write a model with the mean of the weights after (`trained`) and before training (`start`).

    Statistics of normalisation are averaged, too. A network for a view that `start` lacks keeps its
    trained weights. The model is written to `out`.
    """
    networks: dict[View, Network] = {}
    for view, network in trained.networks.items():
        networks[view] = network
        if view in start.networks:
            mean = AveragedModel(network, use_buffers=True)
            mean.update_parameters(network)
            mean.update_parameters(start.networks[view])
            assert isinstance(mean.module, Network)
            networks[view] = mean.module
    save_copy(replace(trained, networks=networks), out, overwrite=True)
