"""trinat fit: adapt a model to scans with manual labels without training, in up to three steps.

The steps fit the weights of the views, the odds of structures (a factor on the probability of each
structure), and the limits of the grade (the agreement between views below which a structure is
graded look or reject). The first two steps need scans with their true label maps, and are kept only
if the Dice of held-out participants rises. The networks stay as they are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import get_args

from pydantic import JsonValue

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.models import check_out, description_of, save_copy
from trinat.pipelines.common.text import count
from trinat.pipelines.models.fit_limits import fit_limits
from trinat.pipelines.models.fit_odds import describe_odds, fit_structure_odds
from trinat.pipelines.models.fit_weights import describe_weights, fit_view_weights
from trinat.pipelines.models.held_out import BEFORE, WORTHWHILE
from trinat.pipelines.models.scans_with_truth import (
    Reader,
    ScanWithTruth,
    pair_scans,
)
from trinat.pipelines.models.settings import FitSettings, Step
from trinat.segmentation.errors import ConfigError, TrinatError
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.models.checkpoint import (
    Model,
    load_model,
    update_info,
)
from trinat.segmentation.models.zoo import shipped_models

_log = logging.getLogger(__name__)

_STEPS: tuple[Step, ...] = get_args(Step)
# Steps that need scans: the functions that fit and describe, and the key under `metrics`.
_FITTED_TO_SCANS = {
    "weights": (fit_view_weights, describe_weights, "fusion_weights"),
    "odds": (fit_structure_odds, describe_odds, "class_odds"),
}


@dataclass(frozen=True)
class Fitted:
    """Outcome of `fit`.

    `lines` say what each step did or why it was skipped. `changed` is True if the model has
    changed. `exit` is the exit status of the command.
    """

    lines: tuple[str, ...]
    changed: bool
    exit: Exit


def fit(settings: FitSettings) -> Fitted:
    """Fit weights, odds and limits of a model as far as the data allow; write it if it changed.

    Scans that cannot be used are logged, and count as failed. Raises EvaluationError if no scan can
    be used, and ConfigError if no step is possible.
    """
    start = load_model(settings.model)
    _refuse_bad_out(settings, start)
    skipped = _impossible_steps(settings, start)
    if len(skipped) == len(_STEPS):
        reasons = "; ".join(f"{step}: {why}" for step, why in skipped.items())
        raise ConfigError(f"nothing can be fitted ({reasons})", where=start.folder)

    numbering = None
    if settings.numbering is not None:
        numbering = load_folding(settings.numbering)
    reader = Reader(numbering, settings.trust_affine)
    model = start
    lines = []
    scans: list[ScanWithTruth] = []
    failures: list[str] = []
    metrics: dict[str, JsonValue] = {}
    for step, (fit_step, describe, entry) in _FITTED_TO_SCANS.items():
        if step in skipped:
            lines.append(f"{step}: skipped, {skipped[step]}")
            continue
        if not scans:
            assert settings.scans is not None
            assert settings.truth is not None
            scans, failures = pair_scans(settings.scans, settings.truth)
        found, scans, failed = fit_step(model, scans, reader, device=settings.device)
        failures += failed
        for reason in failed:
            _log.info("not used: %s", reason)
        lines += [f"{step}: fitted to {count(len(scans), 'scan')}", *found.table()]
        if found.chosen == BEFORE:
            lines.append(f"{step}: unchanged, as the mean gains less than {WORTHWHILE}")
            continue
        fusion = found.fusions[found.chosen]
        metrics[entry] = found.figures(found.chosen)
        # The model's other metrics were measured with another fusion, so they are dropped.
        model = _with_info(model, fusion=fusion, metrics=metrics)
        lines.append(f"{step}: {describe(fusion)}")

    why = skipped.get("limits") or _reason_to_keep_limits(settings, start, model)
    if why:
        lines.append(f"limits: skipped, {why}")
    else:
        try:
            quality, found_limits = fit_limits(model, device=settings.device)
        except TrinatError as error:
            # Weights and odds that were fitted before are written all the same. Limits of the
            # model as it was do not apply to them.
            model = _with_info(model, quality=None)
            lines.append(f"limits: not found, {error}")
        else:
            model = _with_info(model, quality=quality)
            lines += [f"limits: {line}" for line in found_limits]

    changed = model.info != start.info
    if changed:
        _write(settings, model)
    exit_status = batch_exit(done=len(scans), failed=len(failures))
    return Fitted(tuple(lines), changed, exit_status)


def _refuse_bad_out(settings: FitSettings, model: Model) -> None:
    """Raise ConfigError or ModelError, before any work, if the new model could not be written."""
    if settings.out is not None:
        check_out(settings.out, settings.overwrite)
        description_of(model, settings.out)
    elif model.folder in shipped_models().values():
        raise ConfigError(
            f"{settings.model} comes with trinat and is not changed",
            remedy="add --out FOLDER",
        )


def _impossible_steps(settings: FitSettings, model: Model) -> dict[str, str]:
    """Return the steps to skip, each with the reason: it is impossible, or was not requested.

    Keys are "weights", "odds" and "limits". Raises ConfigError if only one of scans and true label
    maps is given.
    """
    if (settings.scans is None) != (settings.truth is None):
        raise ConfigError("--scans and --truth belong together", remedy="give both")
    skipped: dict[str, str] = {}
    if len(model.networks) < 2:
        (view,) = model.networks
        alone = (
            f"the model has the {view.value} view alone (join views by trinat bundle)"
        )
        skipped |= {"weights": alone, "limits": alone}
    if model.info.fusion.class_odds:
        # Candidate weights are compared by the labels that they give without factors.
        skipped["weights"] = "the model has odds, and weights are fitted before odds"
    if all(model.is_merged(view) for view in model.networks):
        skipped["odds"] = "no view of the model tells left from right"
    if settings.scans is None:
        no_scans = "--scans and --truth are not given"
        skipped |= {"weights": no_scans, "odds": no_scans}
    if settings.only is not None:
        for step in _STEPS:
            if step != settings.only:
                skipped[step] = f"--only {settings.only}"
    return skipped


def _reason_to_keep_limits(settings: FitSettings, start: Model, model: Model) -> str:
    """Return why the limits of the model's grades stay valid; "" if they must be fitted again.

    These limits apply to the agreement between the views, so they depend on the weights of the
    views and on the kind of mean. `start` is the model before all steps, `model` the model after
    the steps "weights" and "odds".
    """
    asked_for = settings.scans is None or settings.only == "limits"
    if asked_for or start.info.quality is None:
        return ""
    before = start.info.fusion
    after = model.info.fusion
    if (before.mean, before.weights) != (after.mean, after.weights):
        return ""
    # Odds do not change the agreement between views, which the limits apply to.
    return "those of the model hold, as the weights are the same"


def _with_info(model: Model, **changes: object) -> Model:
    """Return a model with changed fields of its `ModelInfo`; nothing is written."""
    return replace(model, info=model.info.model_copy(update=changes))


def _write(settings: FitSettings, model: Model) -> None:
    """Save the fitted model as a new model in the folder `settings.out`.

    Without `settings.out`, model.yaml of the given model is changed.
    """
    if settings.out is None:
        info = model.info
        update_info(
            model.folder,
            fusion=info.fusion,
            quality=info.quality,
            metrics=info.metrics,
        )
        return
    save_copy(model, settings.out, overwrite=settings.overwrite)
