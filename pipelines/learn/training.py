"""Training of networks on corrected scans, by `trinat prepare`, `split` and `train`.

Beside the new model there is a folder with the store, its split and the run: the same command goes
on there where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.optim.swa_utils import AveragedModel

from trinat.pipelines.common.config import check
from trinat.pipelines.common.models import description_of
from trinat.pipelines.learn.corrected import Corrected
from trinat.pipelines.learn.settings import DEFAULT_RECIPE, LearnSettings
from trinat.pipelines.prepare.making import prepare_store
from trinat.pipelines.prepare.options import PrepareConfig
from trinat.pipelines.study.study import Structure
from trinat.pipelines.train.from_python import train
from trinat.pipelines.train.result import CONFIG
from trinat.segmentation.data.sources.base import safe_component
from trinat.segmentation.data.splitting import split_store
from trinat.segmentation.data.store import Store
from trinat.segmentation.io.files import read_bytes, write_tsv
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import Model, load_model, save_changed
from trinat.segmentation.models.zoo import MODEL_FILE
from trinat.segmentation.space.morphology import dilated
from trinat.segmentation.space.views import View

_log = logging.getLogger(__name__)

# A few structures are learnt in fewer steps than a whole convention of labels: three views take
# less than ten minutes on two cores.
_PAINTED_STEPS = 100
# One person in five is held out for validation.
_RATIOS = (4.0, 1.0, 0.0)
# Around a structure that was corrected, what it borders on counts, too.
_AROUND_MM = 3.0


@dataclass(frozen=True)
class Trained:
    """Result of a training in the folder `run`, and the scans that were held out.

    `models` are the weights as they were trained, and their mean with those they started from:
    folders, by what people are told of them, the nearer to the start first. `held_out` are names of
    scans.
    """

    run: Path
    models: Mapping[str, Path]
    held_out: frozenset[str]


def train_on(
    corrected: Sequence[Corrected],
    model: Model,
    structures: Sequence[Structure],
    settings: LearnSettings,
    *,
    progress: bool,
) -> Trained:
    """Train a model's networks on corrected scans, without those of some persons.

    `structures` are those of the results, with their numbers in label maps.
    """
    work = settings.out.with_name(f"{settings.out.name}-training")
    work.mkdir(parents=True, exist_ok=True)
    # Long names of two scans of a person must not become one.
    subjects = {safe_component(each.item.name): each for each in corrected}
    _write_table(work, subjects, structures)
    store = work / "store"
    config: dict[str, Any] = {"source": "pairs", "root": work / "pairs.tsv"}
    config["labels"] = str(model.label_table or model.info.labels)
    config["grid"] = model.info.preprocessing.shape
    config["fold"] = settings.numbering
    config["trust_affine"] = settings.trust_affine
    checked = check(PrepareConfig, config, model.folder)
    summary = prepare_store(checked, store)
    for row in summary.rows:
        if row.status == "failed":
            _log.info("not used for learning: %s: %s", row.subject, row.reason)
    ((path, split),) = split_store(store, ratios=_RATIOS)
    _log.info(
        "trained on %d scans, judged by %d", len(split.train), len(split.validation)
    )

    # Other corrections, another recipe or another model are another run.
    identity = Store(store).fingerprint.encode() + read_bytes(path)
    identity += read_bytes(model.folder / MODEL_FILE)
    identity += json.dumps([settings.recipe, str(model.folder)]).encode()
    run = work / f"run-{hashlib.sha256(identity).hexdigest()[:8]}"
    done = train(
        settings.recipe,
        run,
        store=store,
        settings=recipe_changes(corrected, model, settings),
        resume=(run / CONFIG).is_file(),
        seconds=settings.seconds,
        device=settings.device,
        progress=progress,
    )
    averaged = run / "averaged"
    _save_mean(load_model(done.model), model, averaged)
    return Trained(
        run=run,
        models={"averaged": averaged, "trained": done.model},
        held_out=frozenset(subjects[name].item.name for name in split.validation),
    )


def recipe_changes(
    corrected: Sequence[Corrected], model: Model, settings: LearnSettings
) -> dict[str, Any]:
    """Return the settings of the recipe that follow from the model and the corrections."""
    changed: dict[str, Any] = {
        "start": model.folder.resolve(),
        "contrast": model.info.contrast,
        "reverse_contrast": model.info.reverse_contrast,
        "stripped_by": model.info.stripped_by,
    }
    is_painted = all(each.structures is not None for each in corrected)
    if is_painted and settings.recipe == DEFAULT_RECIPE:
        changed["schedule.steps"] = _PAINTED_STEPS
    return changed


def counted_voxels(
    corrected: Corrected, structures: Sequence[Structure]
) -> Volume | None:
    """Return the voxels of a correction that count in training, as 1; None if all do.

    Those that a person has changed, and the structures in which that was, as they were and as they
    are, with a rim of what they border on: a network that saw nothing but its own mistakes would
    overdo it.
    """
    if corrected.mask is None or corrected.structures is None:
        return None
    assert corrected.item.labels is not None
    mask = Volume.read(corrected.mask, labels=True)
    names = corrected.structures
    numbers = [each.number for each in structures if each.name in names]
    counted = mask.data > 0
    for path in (corrected.labels, corrected.item.labels):
        counted |= np.isin(Volume.read(path, labels=True).data, numbers)
    reach = [max(1, round(_AROUND_MM / side)) for side in mask.spacing_mm]
    return Volume(dilated(counted, reach).astype(np.uint8), mask.affine, mask.codes)


def _write_table(
    work: Path,
    subjects: Mapping[str, Corrected],
    structures: Sequence[Structure],
) -> None:
    """Write the table of pairs that a store is made from, and the masks that it names."""
    masks = work / "masks"
    masks.mkdir(exist_ok=True)
    rows = []
    for name, corrected in subjects.items():
        counted = counted_voxels(corrected, structures)
        mask = None
        if counted is not None:
            mask = (masks / f"{name}.nii.gz").resolve()
            counted.write(mask, labels=True)
        paths = (corrected.scan.resolve(), corrected.labels.resolve(), mask)
        rows.append((name, corrected.item.person, *paths))
    write_tsv(
        work / "pairs.tsv", ("subject", "person", "image", "labels", "mask"), rows
    )


def _save_mean(trained: Model, start: Model, out: Path) -> None:
    """Write the model halfway between one that was trained and the one that it started from."""
    networks: dict[View, Network] = {}
    for view, network in trained.networks.items():
        networks[view] = network
        if view in start.networks:
            networks[view] = _mean_of(network, start.networks[view])
    save_changed(trained, out, description_of(trained, out), networks, overwrite=True)


def _mean_of(first: Network, second: Network) -> Network:
    """Average the weights of two networks, and the statistics of their norms."""
    mean = AveragedModel(first, use_buffers=True)
    mean.update_parameters(first)
    mean.update_parameters(second)
    assert isinstance(mean.module, Network)
    return mean.module
