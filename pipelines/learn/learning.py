"""Learn the best model that the available corrected label maps allow: `trinat learn`.

With few participants, the networks stay as they are, and only factors that multiply the
probabilities of structures are fitted. With more participants, networks are trained, too, and
participants that were held out decide which model is better. A model that is no better than the one
before is not written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.models import check_out, description_of, save_copy
from trinat.pipelines.common.text import count
from trinat.pipelines.learn.corrected import Corrected, find_corrected
from trinat.pipelines.learn.forecast import compare_with_results
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.learn.training import Trained, train_on
from trinat.pipelines.models.fit_odds import (
    FITTED,
    classes_without_odds,
    describe_odds,
    find_odds,
    segment_all,
)
from trinat.pipelines.models.held_out import (
    BEFORE,
    WORTHWHILE,
    FittedFusion,
    Scores,
)
from trinat.pipelines.models.scans_with_truth import (
    Reader,
    require_scans,
    without_odds,
)
from trinat.pipelines.study.study import Study
from trinat.segmentation.errors import ConfigError, EvaluationError
from trinat.segmentation.io.files import sha256_of
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.checkpoint import Model, load_model
from trinat.segmentation.models.zoo import MODEL_FILE, shipped_models
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
)

_log = logging.getLogger(__name__)

# Fewest participants to train with. Of two, one would be held out and only one left to learn from;
# factors on the probabilities of structures are fitted to both.
_FEWEST_TO_TRAIN = 3
_FACTORS = "factors"
SEE = "see what is wrong with it"


@dataclass(frozen=True)
class Learnt:
    """Messages and exit status of `learn`, for the command line.

    `lines` say what was done, why, and the Dice before and after.
    """

    lines: tuple[str, ...]
    exit: Exit


@dataclass(frozen=True)
class _Material:
    """Data to learn from: the corrected scans, segmented with the model that is to be improved.

    `corrected` and `scans` have an entry for each usable scan: its files, and its `DoubtfulVoxels`,
    the voxels whose class can change if the probabilities of structures are multiplied by factors.
    `model` is the model to improve.
    `reader` has read the label maps. `counted` are the classes (indices) that enter mean Dice
    scores. `failed` is the number of scans that could not be used.
    """

    corrected: Sequence[Corrected]
    model: Model
    reader: Reader
    scans: Sequence[DoubtfulVoxels]
    counted: Sequence[int]
    failed: int

    @property
    def participants(self) -> list[str]:
        """Participant of each scan."""
        return [each.participant for each in self.corrected]


def learn(
    settings: LearnSettings,
    *,
    progress: bool = False,
    study: Study | None = None,
) -> Learnt:
    """Improve a model with corrected scans; write it if the Dice of held-out participants rises.

    Corrected scans are taken from `study`; if it is None, from the results folder in the
    `settings`. Scans that cannot be used are logged, and count as failed. EvaluationError is raised
    if none can be used, or if the new model is no better; then no model is written. With
    `progress`, the progress of a training is shown on stderr. Returns messages on what was done,
    and the exit status.
    """
    check_out(settings.out, settings.overwrite)
    if study is None:
        study = Study(settings.results, images=settings.images, against=settings.labels)
    material = _prepare_material(study, settings)
    participants = len(set(material.participants))
    what = f"{count(len(material.scans), 'corrected scan')} of {count(participants, 'participant')}"
    trains = settings.method == "training"
    if settings.method == "auto":
        trains = participants >= _FEWEST_TO_TRAIN
    if not trains:
        why = f"{what}: factors of structures are fitted, the networks stay as they are"
        return _fit_factors(material, settings, why)
    if participants < 2:
        raise ConfigError(
            f"{what}: no other participant is left to validate the training",
            where=settings.results,
            remedy="correct a scan of another participant, or leave --method out",
        )
    trained = train_on(
        material.corrected,
        material.model,
        material.counted,
        settings,
        progress=progress,
    )
    return _choose_training(material, trained, settings, what)


def _prepare_material(study: Study, settings: LearnSettings) -> _Material:
    """Find the corrected scans and segment them with the model that is to be improved.

    Returns the usable scans with their segmentations. The reasons for which others cannot be used,
    and the gain to expect, are logged. Raises EvaluationError if no scan can be used,
    or if there is nothing to gain.
    """
    corrected, failures = find_corrected(study)
    require_scans(corrected, failures, settings.results, SEE)
    model = load_model(settings.model or find_source_model(corrected))
    # Raises for an invalid name of the model before any work is done.
    description_of(model, settings.out)
    numbering = None
    if settings.numbering is not None:
        numbering = load_folding(settings.numbering)
    reader = Reader(numbering, settings.trust_affine)
    changed = structures_corrected(corrected, model.scheme)
    counted = sorted({*changed} - {*without_odds(model)})
    if not counted:
        raise EvaluationError(
            "only CSF, or structures that the model does not find, were corrected",
            where=settings.results,
            remedy="correct other structures",
        )
    agreement = compare_with_results(corrected, model.scheme, counted, numbering)
    if agreement is not None:
        counted = sorted(agreement.changed)
        made_by = {each.scan.entry.model for each in corrected}
        # Only if the model to improve made the results, their Dice is the one to be improved.
        if made_by == {sha256_of(model.folder / MODEL_FILE)}:
            if 1 - agreement.dice < WORTHWHILE:
                raise EvaluationError(
                    "the corrections differ too little from the results to learn from: "
                    f"{agreement}",
                    where=settings.results,
                    remedy="correct scans with larger errors",
                )
            _log.info("%s", agreement)
    corrected, scans, failed = segment_all(
        model, corrected, reader, device=settings.device
    )
    failures += failed
    for reason in failures:
        _log.info("not used: %s", reason)
    require_scans(scans, failures, settings.results, SEE)
    return _Material(corrected, model, reader, scans, counted, failed=len(failures))


def _fit_factors(material: _Material, settings: LearnSettings, why: str) -> Learnt:
    """Fit a factor on the probability of each structure; write the new model if its Dice is better.

    The factors of the new model are fitted to all scans. Whether it is better is decided by scores
    of each scan with factors that were fitted to other participants; EvaluationError is raised if
    it is not. `material` has the corrected scans and the old model. `why` is the first message for
    the user, on why the networks are not trained. Returns this and further messages with the exit
    status.
    """
    found = find_odds(
        material.model, material.corrected, material.scans, material.counted
    )
    refuse_if_no_better(found, FITTED, settings.out)
    _save_factors(material, found, settings)
    factors = f"fitted to all: {describe_odds(found.fusions[FITTED])}"
    lines = (why, *found.table(), factors, found.describe(FITTED))
    exit_status = batch_exit(done=len(material.scans), failed=material.failed)
    return Learnt(lines, exit_status)


def _save_factors(
    material: _Material, found: FittedFusion, settings: LearnSettings
) -> None:
    """Write a copy of the model with the same networks and new factors on structures.

    The fitted factors (`found`) are in its `fusion` settings; they multiply the probability of each
    structure.
    """
    save_copy(
        material.model,
        settings.out,
        overwrite=settings.overwrite,
        fusion=found.fusions[FITTED],
        # The other metrics of the model were measured with its old factors, so they are dropped.
        metrics={"class_odds": found.figures(FITTED)},
    )


def _choose_training(
    material: _Material,
    trained: Trained,
    settings: LearnSettings,
    what: str,
) -> Learnt:
    """Score the old model and the new ones on held-out scans; write the best of the new ones.

    New models are the old networks with new factors on the probabilities of structures, and the
    trained networks. EvaluationError is raised if none is better than the old model. `what` is the
    start of the first message, with the number of scans and participants. Returns the messages for
    the user and the exit status.
    """
    left_out = []
    rest = []
    for each, scan in zip(material.corrected, material.scans, strict=True):
        if each.name in trained.held_out:
            left_out.append((each, scan))
        else:
            rest.append(scan)
    corrected = [each for each, _ in left_out]
    scores = Scores(
        participants=tuple(each.participant for each in corrected),
        scans=tuple(each.name for each in corrected),
        dice={
            **_dice_of_factors(material, [scan for _, scan in left_out], rest),
            **_dice_of_trained(material, trained, corrected, settings),
        },
    )
    chosen = scores.chosen
    refuse_if_no_better(scores, chosen, settings.out)
    if chosen == _FACTORS:
        found = find_odds(
            material.model, material.corrected, material.scans, material.counted
        )
        _save_factors(material, found, settings)
    else:
        _save_trained(material, trained, scores, settings)
    lines = (
        f"{what}, {count(len(set(scores.participants)), 'participant')} left out: {_WHY[chosen]}",
        *scores.table(),
        scores.describe(chosen),
    )
    exit_status = batch_exit(done=len(material.scans), failed=material.failed)
    return Learnt(lines, exit_status)


def _dice_of_factors(
    material: _Material,
    left_out: Sequence[DoubtfulVoxels],
    rest: Sequence[DoubtfulVoxels],
) -> dict[str, list[float]]:
    """Return the mean Dice of each scan in `left_out`, with the old and with new factors.

    The factors multiply the probabilities of structures; the networks are those of the old model.
    The new factors are fitted to the scans in `rest`. The result maps `BEFORE` (old factors) and
    `_FACTORS` (new factors) to a list of scores, one for each scan. `left_out` and `rest` hold, for
    each scan, only the voxels whose class can change with the factors.
    """
    model = material.model
    fixed = classes_without_odds(model, material.scans, material.counted)
    own = model.info.fusion.class_odds
    odds = {BEFORE: own, _FACTORS: fit_odds(rest, model.scheme, fixed, own)}
    scores = {}
    for name, of_structures in odds.items():
        logarithms = logarithms_of(of_structures, model.scheme)
        scores[name] = [scan.mean_dice(logarithms, fixed) for scan in left_out]
    return scores


def _dice_of_trained(
    material: _Material,
    trained: Trained,
    left_out: Sequence[Corrected],
    settings: LearnSettings,
) -> dict[str, list[float]]:
    """Return the mean Dice of each held-out scan with each model that was trained.

    The result maps the name of a model to a list of scores, one for each scan in `left_out`:
    "trained" for the networks after training, and "averaged" for networks whose weights are the
    mean of those before and after training (missing if only the last layer was trained). A scan
    whose segmentation hardly agrees with its corrected label map has a Dice of 0. `material` has
    the model that is to be improved and the reader of label maps.
    """
    scheme = material.model.scheme
    fixed = classes_without_odds(material.model, material.scans, material.counted)
    scores = {}
    for name, folder in trained.models.items():
        _log.info("judging what was %s", name)
        candidate = load_model(folder)
        used, found, _ = segment_all(
            candidate,
            left_out,
            material.reader,
            device=settings.device,
        )
        own = logarithms_of(candidate.info.fusion.class_odds, scheme)
        dice_of = {}
        for each, scan in zip(used, found, strict=True):
            dice_of[each.name] = scan.mean_dice(own, fixed)
        # `segment_all` leaves out scans whose segmentation agrees so little with the corrected
        # label map that this may belong to another participant. Here it is known to belong to the
        # scan, so the model is bad: the Dice is 0.
        scores[name] = [dice_of.get(each.name, 0.0) for each in left_out]
    return scores


# Message for each candidate that may be chosen.
_WHY = {
    _FACTORS: "factors of structures do as well as training, so the networks stay as they are",
    "averaged": "the networks are the mean of those before and after training",
    "trained": "the networks are those after training",
}


def _save_trained(
    material: _Material,
    trained: Trained,
    scores: Scores,
    settings: LearnSettings,
) -> None:
    """Write the best trained model as the new model, with its scores and how it was trained.

    `scores` are those of the held-out scans; they tell which of `trained.models` is the best.

    If all corrections were painted, structures that nobody changed were not learnt. The new model
    then keeps what the old one says on CSF, on structures that it does not predict, and on the
    fusion of views.
    """
    model = load_model(trained.models[scores.chosen])
    figures: dict[str, JsonValue] = {
        "kind": scores.chosen,
        "scans_left_out": len(scores.scans),
        **scores.mean_dice(scores.chosen),
    }
    changed: dict[str, Any] = {"metrics": {"learn": figures}}
    if all(each.structures is not None for each in material.corrected):
        start = material.model.info
        changed["csf"] = start.csf
        changed["not_predicted"] = start.not_predicted
        odds = model.info.fusion.class_odds
        changed["fusion"] = start.fusion.model_copy(update={"class_odds": odds})
    save_copy(
        model,
        settings.out,
        beside=material.model,
        overwrite=settings.overwrite,
        **changed,
    )


def refuse_if_no_better(scores: Scores, candidate: str, out: Path) -> None:
    """Raise EvaluationError if a candidate gains less than `WORTHWHILE` of mean Dice.

    `out` is the folder for the new model.
    """
    if scores.gain(candidate) < WORTHWHILE:
        raise EvaluationError(
            f"no model is written, as it would be no better: {scores.describe(candidate)}",
            where=out,
            remedy="correct more scans, of other participants",
        )


def structures_corrected(
    corrected: Sequence[Corrected], scheme: LabelScheme
) -> list[int]:
    """Return the classes (indices of `scheme`) of the structures that raters have changed.

    The same structure on the other side is always included. If any corrected label map is an
    imported one, so that changes are not known, all classes are returned, with background.
    """
    names: set[str] = set()
    for each in corrected:
        if each.structures is None:
            return list(range(len(scheme)))
        names |= each.structures
    classes = set()
    for index, name in enumerate(scheme.names):
        if name in names:
            classes |= {index, int(scheme.partner_permutation[index])}
    return sorted(classes)


def find_source_model(corrected: Sequence[Corrected]) -> str:
    """Return the name of the model that made the results, one of those that come with trinat.

    ConfigError is raised if another model, or more than one, made them.
    """
    hashes = {each.scan.entry.model for each in corrected}
    for name, folder in shipped_models().items():
        if hashes == {sha256_of(folder / MODEL_FILE)}:
            return name
    names = {each.scan.entry.result.model for each in corrected}
    made_by = ", ".join(sorted(names - {""})) or "an unknown model"
    raise ConfigError(
        f"made by {made_by}, which is not one that comes with trinat",
        where=corrected[0].scan.folder,
        remedy="name the model to improve with --model",
    )
