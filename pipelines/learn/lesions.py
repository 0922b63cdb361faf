"""Learn a network for lesions from corrected masks: `trinat learn --lesions`.

The networks for structures stay as they are. There are two candidates: the model's own network for
lesions, trained further, and a new one. Each scan is scored with networks that have not seen its
participant. A model that is no better than the one before is not written.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import JsonValue
from safetensors.torch import save

from trinat.pipelines.common.exits import batch_exit
from trinat.pipelines.common.models import check_out, description_of, save_copy
from trinat.pipelines.common.text import count
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.learn.learning import (
    SEE,
    Learnt,
    find_source_model,
    refuse_if_no_better,
)
from trinat.pipelines.learn.settings import FOR_STRUCTURES, LearnSettings
from trinat.pipelines.models.held_out import BEFORE, Scores, folds_of
from trinat.pipelines.models.scans_with_truth import require_scans, work_on_each
from trinat.pipelines.study.images import read_image
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.inference.lesion_network import (
    LesionNetwork,
    VoxelFeatures,
    features_of,
    groups_of,
    lesion_probability,
    load_lesion_network,
)
from trinat.segmentation.inference.lesions import LIKELY
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_lesions_file
from trinat.segmentation.space.conform import conform
from trinat.segmentation.training.lesion_fit import (
    VoxelSample,
    fit_lesion_network,
    sample_voxels,
)

_log = logging.getLogger(__name__)

_FURTHER = "trained further"
_NEW = "new"
_STEPS = {_FURTHER: 300, _NEW: 1000}
# Below this mean Dice, a network is unreliable.
_RELIABLE_DICE = 0.5
# A network is reliable in slices that are thinner by this factor than those that it was scored in.
_THINNER = 0.9


@dataclass(frozen=True, eq=False)
class _Patient:
    """A scan with a mask of its lesions.

    `features` are those of its voxels, in half precision: a scan has a million voxels. `lesions`
    (X, Y, Z) is the mask on the working grid, `sample` some of its voxels for training, and
    `thick_mm` the largest side of the scan's voxels.
    """

    participant: str
    name: str
    features: VoxelFeatures
    lesions: NDArray[np.bool_]
    sample: VoxelSample
    thick_mm: float

    def dice(self, network: LesionNetwork) -> float:
        """Return the Dice of the lesions that a network finds with those of the mask."""
        values = self.features.values.astype(np.float32)
        probability = lesion_probability(network, replace(self.features, values=values))
        found = probability >= LIKELY
        both = np.count_nonzero(found & self.lesions)
        either = np.count_nonzero(found) + np.count_nonzero(self.lesions)
        return 2 * both / either


def learn_lesions(settings: LearnSettings) -> Learnt:
    """Improve a model's network for lesions; write it if Dice of held-out participants rises.

    Scans without lesions are learnt from, but have no Dice. Returns messages on what was done, and
    the exit status. EvaluationError is raised if the new model is no better, ConfigError if there
    are lesions of less than two participants, or if settings apply only without lesions.
    """
    _refuse_others(settings)
    check_out(settings.out, settings.overwrite)
    study = Study(
        settings.results,
        images=settings.images,
        against=settings.labels,
        kind="lesions",
    )
    corrected, failures = find_corrected(study)
    require_scans(corrected, failures, settings.results, SEE)
    _require_two({each.scan.participant for each in corrected}, settings)
    model = load_model(settings.model or find_source_model(corrected))
    # Raises for an invalid name of the model before any work is done.
    description_of(model, settings.out)
    start = load_lesion_network(find_lesions_file(model.folder))
    predictor = Predictor(model, device=settings.device)

    def read(scan: Corrected) -> _Patient:
        return _read(predictor, scan, start, settings)

    _, patients, failed = work_on_each(corrected, read)
    failures += failed
    for reason in failures:
        _log.info("not used: %s", reason)
    require_scans(patients, failures, settings.results, SEE)
    scored = [patient for patient in patients if patient.lesions.any()]
    participants = {patient.participant for patient in scored}
    _require_two(participants, settings)
    scores = Scores(
        participants=tuple(patient.participant for patient in scored),
        scans=tuple(patient.name for patient in scored),
        dice=_held_out_dice(patients, scored, start),
    )
    chosen = scores.chosen
    refuse_if_no_better(scores, chosen, settings.out)
    network = _fit(patients, start, chosen)
    limits = [_thinnest_mm(scored, scores.dice[chosen])]
    if chosen == _FURTHER:
        limits.append(float(start.thinnest_mm))
    network.thinnest_mm.fill_(min(limits))
    figures: dict[str, JsonValue] = {
        "kind": chosen,
        "scans": len(patients),
        **scores.mean_dice(chosen),
    }
    save_copy(
        model,
        settings.out,
        lesions=save(network.state_dict()),
        overwrite=settings.overwrite,
        metrics={**model.info.metrics, "lesions": figures},
    )
    lines = (
        f"{count(len(patients), 'mask')} of lesions, {count(len(participants), 'participant')} "
        f"left out in turn: the network for lesions is the one {chosen}",
        *scores.table(),
        scores.describe(chosen),
    )
    exit_status = batch_exit(done=len(patients), failed=len(failures))
    return Learnt(lines, exit_status)


def _refuse_others(settings: LearnSettings) -> None:
    """Raise ConfigError if a setting is changed that applies only to structures."""
    for field in fields(settings):
        changed = getattr(settings, field.name) != field.default
        if changed and field.name in FOR_STRUCTURES:
            raise ConfigError(
                f"--{field.name} has no effect with --lesions",
                remedy="leave one of them out",
            )


def _require_two(participants: Collection[str], settings: LearnSettings) -> None:
    """Raise ConfigError if masks are of fewer than two participants."""
    if len(participants) < 2:
        raise ConfigError(
            f"masks with lesions are of {count(len(participants), 'participant')}: no other one is "
            "left to validate the training",
            where=settings.results,
            remedy="correct a scan of another participant",
        )


def _read(
    predictor: Predictor,
    corrected: Corrected,
    start: LesionNetwork,
    settings: LearnSettings,
) -> _Patient:
    """Read a scan and its mask of lesions, and find its structures as `trinat predict` does.

    EvaluationError is raised if the scan has too little white matter or cortex.
    """
    trust = settings.trust_affine
    scan = read_image(corrected.image, corrected.labels, trust_affine=trust)
    mask = Volume.read(corrected.labels, labels=True, trust_affine=trust)
    mask, _ = on_grid_of(mask, scan)
    prepared = predictor.prepare(scan)
    image = predictor.image_of(prepared)
    region, fused, _ = predictor.find_and_fuse(image, plan=prepared.plan)
    plan = prepared.plan.cropped(region.box)
    predictor.weigh(fused, plan)
    thick_mm = max(scan.spacing_mm)
    features = features_of(
        image[region.box].cpu().numpy(),
        groups_of(fused.cpu(), predictor.model.scheme),
        start.prior.numpy(),
        thick_mm,
    )
    if features is None:
        what = "too little white matter or cortex found"
        raise EvaluationError(what, where=corrected.image)
    on_scan = replace(mask, data=(mask.data > 0).astype(np.uint8))
    lesions = conform(on_scan, labels=True, plan=plan).volume.data > 0
    return _Patient(
        participant=corrected.participant,
        name=corrected.name,
        features=replace(features, values=features.values.astype(np.float16)),
        lesions=lesions,
        sample=sample_voxels(features, lesions, np.random.default_rng(0)),
        thick_mm=thick_mm,
    )


def _held_out_dice(
    patients: Sequence[_Patient], scored: Sequence[_Patient], start: LesionNetwork
) -> dict[str, list[float]]:
    """Return the Dice of each scored scan, by the name of the candidate.

    Candidates have learnt from `patients`, without those in the fold of the scan's participant.
    """
    fold_of = folds_of([patient.participant for patient in scored])
    dice = {BEFORE: [patient.dice(start) for patient in scored]}
    for kind in _STEPS:
        networks = {}
        for fold in set(fold_of.values()):
            others = [
                each for each in patients if fold_of.get(each.participant) != fold
            ]
            networks[fold] = _fit(others, start, kind)
        dice[kind] = [
            patient.dice(networks[fold_of[patient.participant]]) for patient in scored
        ]
        _log.info("network for lesions, %s: judged", kind)
    return dice


def _thinnest_mm(scored: Sequence[_Patient], dice: Sequence[float]) -> float:
    """Return the thickness below which a network is unreliable; infinity if it always is.

    `dice` has the Dice of each scan in `scored`. The limit is a little below the thinnest slices
    whose scans have a mean Dice of `_RELIABLE_DICE`.
    """
    thick_mm = [round(patient.thick_mm, 1) for patient in scored]
    means = pd.Series(dice).groupby(thick_mm).mean()
    reliable_mm = means.index[means >= _RELIABLE_DICE]
    return float(reliable_mm.min()) * _THINNER if len(reliable_mm) else math.inf


def _fit(
    patients: Sequence[_Patient], start: LesionNetwork, kind: str
) -> LesionNetwork:
    """Train a candidate: the network `start` further, or a new one."""
    samples = [patient.sample for patient in patients]
    return fit_lesion_network(samples, start, steps=_STEPS[kind], anew=kind == _NEW)
