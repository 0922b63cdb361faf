"""trinat fuse-weights: how views are joined, fitted to scans with truth."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from numpy.typing import NDArray
from pydantic import JsonValue

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.scanfiles import find_files
from trinat.pipelines.evaluate.pairing import Mappings, Pair, pair_files, read_mapping
from trinat.pipelines.models.bundle import load_views
from trinat.segmentation.errors import ConfigError, EvaluationError, TrinatError
from trinat.segmentation.inference.fusion_fit import (
    Contested,
    Evidence,
    contest,
    fit_weights,
)
from trinat.segmentation.inference.segmenter import Segmenter
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.common_grid import on_grid_of
from trinat.segmentation.metrics.overlap import dice
from trinat.segmentation.models.checkpoint import class_weights, read_info, update_info
from trinat.segmentation.models.model_info import Fusion, Mean
from trinat.segmentation.space.conform import conform
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, to_slices

Say = Callable[[str], None]
Weights = dict[View, NDArray[np.floating]]

BEFORE, BY_VIEW, BY_CLASS = "as they were", "by view", "by view and structure"
_MEANS: dict[str, Mean] = {"": "arithmetic", ", geometric": "geometric"}
# In the order in which they are tried.
_KINDS = tuple(weights + mean for weights in (BY_VIEW, BY_CLASS) for mean in _MEANS)
# Weights fitted less often than this to be tried on persons that they have not seen.
_FOLDS = 10
# Weights that gain less Dice than this on persons they have not seen are not worth having.
_WORTHWHILE = 0.001
_DIGITS = 4


@dataclass(frozen=True)
class Settings:
    model: str
    scans: Path
    truth: Path
    out: Path | None = None  # a file of weights; else the model is brought up to date
    mapping: Path | None = None
    trust_affine: TrustAffine | None = None
    device: str = "auto"
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """Mean Dice over structures of each scan, with weights that have not seen its person."""

    scans: tuple[str, ...]
    dice: dict[str, tuple[float, ...]]  # by kind of fusion
    chosen: str
    fusion: Fusion
    held_out: bool  # False with one person: the same scans fit and score
    exit: Exit

    def mean(self, kind: str) -> float:
        return float(np.mean(self.dice[kind]))

    def lines(self) -> list[str]:
        """The figures for people."""
        judged = (
            "fitted without its person"
            if self.held_out
            else "fitted to this very person"
        )
        weights = ", ".join(
            f"{view.value} {w:.2f}" for view, w in self.fusion.weights.items()
        )
        table = pd.DataFrame(self.dice, self.scans).rename_axis(columns="scan")
        table.loc["mean"] = table.mean()
        return [
            f"Mean Dice over structures of each scan, with weights {judged}:",
            *table.to_string(float_format="{:.4f}".format).splitlines(),
            f"best: {self.chosen} ({self.fusion.mean} mean; {weights})",
        ]


@dataclass(frozen=True, eq=False)
class _Scan:
    name: str
    person: str
    evidence: Evidence
    file: Path  # its contested voxels


def fuse_weights(settings: Settings, say: Say = lambda line: None) -> Found:
    """Fit, try on persons left out, keep what is best there, and write it down."""
    if settings.out is not None and not settings.out.resolve().parent.is_dir():
        raise ConfigError(
            "its folder is not there", where=settings.out, remedy="create it first"
        )
    changed = settings.out is None
    segmenter = load_views(
        settings.model, settings.device, "add --out FILE", changed=changed
    )
    mapping = read_mapping(settings.mapping) if settings.mapping else Mappings()
    pairing = pair_files(
        find_files(settings.truth), find_files(settings.scans, suffix="T1w")
    )
    failures = [f"{file.name}: no scan" for file in pairing.truths_alone]
    scans: list[_Scan] = []
    with tempfile.TemporaryDirectory(prefix="trinat-") as kept:
        for number, pair in enumerate(pairing.pairs):
            # Drawn by the scan's own number: one scan more changes no other's sample.
            generator = np.random.default_rng((settings.seed, number))
            file = Path(kept) / f"{number}.npz"
            try:
                scans.append(_look(segmenter, pair, file, generator, mapping, settings))
                say(
                    f"{scans[-1].name}: segmented, {number + 1} of {len(pairing.pairs)}"
                )
            except (TrinatError, OSError) as error:
                failures.append(f"{pair.truth.name}: {error}")
        if not scans:
            what = (
                f"no scan can be used; the first: {failures[0]}"
                if failures
                else "no scan"
            )
            raise EvaluationError(
                what, where=settings.scans, remedy="name scans and truths alike"
            )
        found = _choose(segmenter, scans, len(failures))
    skipped = [f"{file.name}: no truth" for file in pairing.predictions_alone]
    for reason in (*skipped, *failures):
        say(f"not used: {reason}")
    _write(settings, segmenter.model.folder, found)
    return found


def _look(
    segmenter: Segmenter,
    pair: Pair,
    file: Path,
    generator: np.random.Generator,
    mapping: Mappings,
    settings: Settings,
) -> _Scan:
    """Run all views over a scan, and keep what depends on their weights."""
    scheme = segmenter.model.scheme
    # Here the "prediction" of the pair is the scan itself.
    scan = Volume.read(pair.prediction.path, trust_affine=settings.trust_affine)
    truth = Volume.read(
        pair.truth.path, labels=True, trust_affine=settings.trust_affine
    )
    prepared = segmenter.prepare(scan)
    numbers = conform(
        on_grid_of(truth, scan)[0], labels=True, plan=prepared.plan
    ).volume
    classes = scheme.from_freesurfer(
        numbers.data,
        spacing_mm=numbers.spacing_mm,
        extra=mapping.truth,
        where=pair.truth.path,
    )
    never = segmenter.model.not_predicted.tolist()
    if np.isin(classes, [0, *never]).all():
        raise EvaluationError(f"has nothing of {scheme.name}", where=pair.truth.path)
    image = torch.from_numpy(prepared.volume.data)
    seen, true = segmenter.find_brain(image).box, occupied_box(classes > 0)
    box = tuple(
        slice(min(a.start, b.start), max(a.stop, b.stop))
        for a, b in zip(seen, true, strict=True)
    )
    image = image[box]
    probabilities: dict[View, torch.Tensor] = {}
    for view, part in segmenter.each_view(image):
        found = part.probabilities
        if view not in probabilities:
            probabilities[view] = torch.zeros(
                (*image.shape, found.shape[-1]), dtype=torch.float16
            )
        axes = segmenter.model.info.preprocessing.slice_axes(view)
        slices = to_slices(probabilities[view], axes, trailing=1)
        slices[part.slices] = found.half().cpu()
    contested = contest(np.ascontiguousarray(classes[box]), probabilities, scheme)
    by_view: dict[str, Any] = {
        view.value: p for view, p in contested.probabilities.items()
    }
    np.savez(file, truth=contested.truth, decided=contested.decided, **by_view)
    evidence = Evidence.of(contested, scheme, generator, without=never)
    name = f"{pair.truth.subject} {pair.truth.scan}".strip()
    return _Scan(name, pair.truth.subject, evidence, file)


def _choose(segmenter: Segmenter, scans: Sequence[_Scan], failed: int) -> Found:
    """The kind of fusion that does best on persons left out."""
    scheme, views = segmenter.model.scheme, segmenter.views
    before = segmenter.model.info.fusion
    fitted = _fit(scans, scheme)
    persons = sorted({scan.person for scan in scans})
    scores: dict[str, list[float]] = {kind: [] for kind in (BEFORE, *_KINDS)}
    folds = min(len(persons), _FOLDS)
    # A person's scans are left out together. One person alone cannot be: it is scored on itself.
    fold_of = {person: number % folds for number, person in enumerate(persons)}
    held_out = {
        fold: _fit([s for s in scans if fold_of[s.person] != fold], scheme)
        if folds > 1
        else fitted
        for fold in range(folds)
    }
    for scan in scans:
        with np.load(scan.file) as stored:
            probabilities = {view: stored[view.value] for view in scan.evidence.views}
            contested = Contested(stored["truth"], probabilities, stored["decided"])
        for kind, fusion in {BEFORE: before, **held_out[fold_of[scan.person]]}.items():
            rows = class_weights(fusion, scheme, views, segmenter.model.folder)
            weights: Weights = dict(zip(views, rows, strict=True))
            values = dice(contested.joint(scheme, weights, fusion.mean))
            values[[0, *segmenter.model.not_predicted]] = np.nan
            scores[kind].append(float(np.nanmean(values)))
    means = {kind: float(np.nanmean(values)) for kind, values in scores.items()}
    chosen = BEFORE
    # One person says how far to believe views, not how far for each structure.
    for kind in _KINDS if folds > 1 else _KINDS[: len(_MEANS)]:
        if means[kind] >= means[chosen] + _WORTHWHILE:
            chosen = kind
    return Found(
        tuple(scan.name for scan in scans),
        {kind: tuple(values) for kind, values in scores.items()},
        chosen,
        {BEFORE: before, **fitted}[chosen],
        folds > 1,
        batch_exit(done=len(scans), failed=failed),
    )


def _fit(scans: Sequence[_Scan], scheme: LabelScheme) -> dict[str, Fusion]:
    overall, by_class = fit_weights([scan.evidence for scan in scans], scheme)
    weights = {view: round(weight, _DIGITS) for view, weight in overall.items()}
    per_class = {
        name: {
            view: round(float(values[k]), _DIGITS) for view, values in by_class.items()
        }
        for k, name in enumerate(scheme.names)
    }
    return {
        kind + name: Fusion(mean=mean, weights=weights, per_class=structures)
        for kind, structures in ((BY_VIEW, {}), (BY_CLASS, per_class))
        for name, mean in _MEANS.items()
    }


def _write(settings: Settings, folder: Path, found: Found) -> None:
    figures: dict[str, JsonValue] = {
        "weights": found.chosen,
        "scans": len(found.scans),
        "mean_dice_before": round(found.mean(BEFORE), 4),
        "mean_dice_after": round(found.mean(found.chosen), 4),
    }
    if settings.out is not None:
        said = [
            "Of trinat fuse-weights, for trinat bundle --weights. Measured with them:"
        ]
        said += [f"{key}: {value}" for key, value in figures.items()]
        fusion = yaml.safe_dump(found.fusion.model_dump(mode="json"), sort_keys=False)
        write_whole(settings.out, "".join(f"# {line}\n" for line in said) + fusion)
    elif found.chosen != BEFORE:
        metrics = {**read_info(folder).metrics, "fusion_weights": figures}
        update_info(folder, fusion=found.fusion, metrics=metrics)
