"""trinat fuse-weights: how views are joined, fitted to scans with truth.

All views run once over each scan. What their weights decide on is kept in a temporary file, so that
any number of weights can be tried on it. Weights are fitted without a person and scored on that
person's scans, and only those that do better than the model's own are written down.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import JsonValue

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.models import load_views
from trinat.pipelines.evaluate.user_tables import Mappings, read_mapping
from trinat.pipelines.models.scans_with_truth import (
    dice_lines,
    folds_of,
    not_compared,
    pair_scans,
    prepare_pair,
    refuse_another_head,
    require_scans,
    without_odds,
    without_partner,
)
from trinat.pipelines.models.settings import FuseSettings
from trinat.pipelines.study.pairing import Pair
from trinat.segmentation.errors import ConfigError, TrinatError
from trinat.segmentation.grid import around_both
from trinat.segmentation.inference.fusion_fit import (
    AmbiguousVoxels,
    ViewLikelihoods,
    find_ambiguous,
    fit_weights,
)
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.prior import most_probable
from trinat.segmentation.io.files import write_whole
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.metrics.overlap import dice, joint_histogram
from trinat.segmentation.models.checkpoint import class_weights, read_info, update_info
from trinat.segmentation.models.model_info import Fusion, Mean
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, to_slices

Say = Callable[[str], None]
Fusions = dict[str, Fusion]  # by kind of fusion

# Kinds of fusion, by the words that a person reads.
BEFORE = "as they were"
BY_VIEW = "by view"
BY_CLASS = "by view and structure"
# How the name of a kind ends, and the mean that it stands for.
_MEANS: dict[str, Mean] = {"": "arithmetic", ", geometric": "geometric"}
_KINDS_BY_VIEW = tuple(BY_VIEW + ending for ending in _MEANS)
_KINDS_BY_CLASS = tuple(BY_CLASS + ending for ending in _MEANS)
# In the order in which they are tried.
_KINDS = _KINDS_BY_VIEW + _KINDS_BY_CLASS
# Weights are fitted at most this often to be tried on persons that they have not seen.
_FOLDS = 10
# Weights that gain less Dice than this on persons they have not seen are not worth having.
_WORTHWHILE = 0.001
_DIGITS = 4


@dataclass(frozen=True, eq=False)
class _SegmentedScan:
    """What is kept of a scan: evidence to fit weights to, and a file to score weights with.

    `person` decides which scans are left out together when weights are judged.
    """

    name: str
    person: str
    evidence: ViewLikelihoods
    file: Path

    def save(self, ambiguous: AmbiguousVoxels) -> None:
        """Write the voxels whose class depends on the weights.

        The format is NumPy's .npz, without compression. An existing file is replaced.
        """
        probabilities: dict[str, Any] = {}
        for view, values in ambiguous.probabilities.items():
            probabilities[view.value] = values
        np.savez(
            self.file,
            truth=ambiguous.truth,
            decided=ambiguous.decided,
            **probabilities,
        )

    def load(self) -> AmbiguousVoxels:
        """Read what `save` has written."""
        with np.load(self.file) as stored:
            probabilities = {view: stored[view.value] for view in self.evidence.views}
            return AmbiguousVoxels(stored["truth"], probabilities, stored["decided"])


@dataclass(frozen=True)
class FoundWeights:
    """What was measured and chosen.

    `dice` has, by kind of fusion, the mean Dice over structures of each of the `scans`, with
    weights that have not seen its person. `held_out` is False with one person: the same scans fit
    and score. `fusion` is that of the `chosen` kind, fitted to all scans.
    """

    scans: tuple[str, ...]
    dice: dict[str, tuple[float, ...]]
    chosen: str
    fusion: Fusion
    held_out: bool
    exit: Exit

    def mean(self, kind: str) -> float:
        """Compute the mean over scans of a kind of fusion."""
        return float(np.mean(self.dice[kind]))

    def lines(self) -> list[str]:
        """Write the figures for people.

        Dice of each scan with each way of joining the views, then the best way with its weights.
        """
        table = dice_lines(self.dice, self.scans, "weights", held_out=self.held_out)
        weights = ", ".join(
            f"{view.value} {weight:.2f}" for view, weight in self.fusion.weights.items()
        )
        best = f"best: {self.chosen} ({self.fusion.mean} mean; {weights})"
        return [*table, best]


def fuse_weights(settings: FuseSettings, say: Say = lambda line: None) -> FoundWeights:
    """Fit weights, try them on persons left out, keep what is best there, and write it down.

    Scans that cannot be used are reported by `say`, and count as failed. Raises EvaluationError
    where no scan can be used.
    """
    if settings.out is not None and not settings.out.resolve().parent.is_dir():
        raise ConfigError(
            "its folder is not there", where=settings.out, remedy="create it first"
        )
    model_changes = settings.out is None
    segmenter = load_views(
        settings.model, settings.device, "add --out FILE", changed=model_changes
    )
    mapping = Mappings()
    if settings.mapping is not None:
        mapping = read_mapping(settings.mapping)
    pairing = pair_scans(settings.scans, settings.truth, say)
    failures = without_partner(pairing, pairing.truths_alone, "scan")
    with tempfile.TemporaryDirectory(prefix="trinat-") as folder:
        scans, failed = _segment_all(
            segmenter, pairing.pairs, Path(folder), mapping, settings, say
        )
        failures += failed
        skipped = without_partner(pairing, pairing.predictions_alone, "truth")
        for reason in [*skipped, *failures]:
            say(f"not used: {reason}")
        remedy = "name scans and truths alike"
        require_scans(scans, failures, settings.scans, remedy)
        found = _choose(segmenter, scans, len(failures))
    _write(settings, segmenter.model.folder, found)
    return found


def _segment_all(
    segmenter: Predictor,
    pairs: Sequence[Pair],
    folder: Path,
    mapping: Mappings,
    settings: FuseSettings,
    say: Say,
) -> tuple[list[_SegmentedScan], list[str]]:
    """Run all views over all scans; return the scans, and why others cannot be used."""
    scans = []
    failures = []
    for number, pair in enumerate(pairs):
        # By the scan's own number: one scan more changes no other's sample of voxels.
        generator = np.random.default_rng((settings.seed, number))
        file = folder / f"{number}.npz"
        try:
            scan = _segment_pair(
                segmenter, pair, file, generator, mapping, settings.trust_affine
            )
        except (TrinatError, OSError) as error:
            failures.append(f"{pair.truth.name}: {error}")
            continue
        scans.append(scan)
        say(f"{scan.name}: segmented, {number + 1} of {len(pairs)}")
    return scans, failures


def _segment_pair(
    segmenter: Predictor,
    pair: Pair,
    file: Path,
    generator: np.random.Generator,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> _SegmentedScan:
    """Run all views over a scan, and keep what depends on their weights.

    `generator` chooses the voxels of the evidence, and `file` is written.
    """
    model = segmenter.model
    without = not_compared(model)
    prepared, classes = prepare_pair(segmenter, pair, mapping, trust_affine)
    image = segmenter.image_of(prepared).cpu()
    box = around_both(segmenter.find_brain(image).box, occupied_box(classes > 0))
    probabilities = _probabilities_of_views(segmenter, image[box])
    true_in_box = np.ascontiguousarray(classes[box])
    # Views are not joined yet, and one of them may see nothing.
    joints = []
    for view, values in probabilities.items():
        if not model.is_merged(view):
            found = most_probable(values)[1].numpy()
            joints.append(joint_histogram(true_in_box, found, len(model.scheme)))
    refuse_another_head(joints, model.scheme, without_odds(model), pair.truth.path)
    ambiguous = find_ambiguous(true_in_box, probabilities, model.scheme)
    segmented = _SegmentedScan(
        name=f"{pair.truth.person} {pair.truth.visit}".strip(),
        person=pair.truth.person,
        evidence=ViewLikelihoods.of(
            ambiguous, model.scheme, generator, without=without
        ),
        file=file,
    )
    segmented.save(ambiguous)
    return segmented


def _probabilities_of_views(
    segmenter: Predictor, image: torch.Tensor
) -> dict[View, torch.Tensor]:
    """Run each view over an image (X, Y, Z): probabilities (X, Y, Z, K or merged K) float16."""
    probabilities: dict[View, torch.Tensor] = {}
    for view, part in segmenter.each_view(image):
        if view not in probabilities:
            classes = part.probabilities.shape[-1]
            probabilities[view] = torch.zeros(
                (*image.shape, classes), dtype=torch.float16
            )
        axes = segmenter.model.info.preprocessing.slice_axes(view)
        slices = to_slices(probabilities[view], axes, trailing=1)
        slices[part.slices] = part.probabilities.half().cpu()
    return probabilities


def _choose(
    segmenter: Predictor, scans: Sequence[_SegmentedScan], failed: int
) -> FoundWeights:
    """Fit all kinds of fusion, score them on the scans, and take the best kind.

    For the scores, persons are left out in turn: a scan is scored with weights fitted to the scans
    of other persons. A single person is scored with weights fitted to itself (`held_out` is
    False), and weights for each structure are then not taken. What is taken has weights fitted to
    all scans, or is the model's own fusion where no kind is clearly better.

    `failed` is the number of scans that could not be used; it decides the exit status.
    """
    scheme = segmenter.model.scheme
    before = segmenter.model.info.fusion
    fitted_to_all = _fit(scans, scheme)
    fold_of = folds_of([scan.person for scan in scans], _FOLDS)
    folds = sorted(set(fold_of.values()))
    held_out = len(folds) > 1
    fitted_without: dict[int, Fusions] = {}
    for fold in folds:
        if held_out:
            others = [scan for scan in scans if fold_of[scan.person] != fold]
            fitted_without[fold] = _fit(others, scheme)
        else:
            fitted_without[fold] = fitted_to_all

    # Of each kind, the mean Dice of each scan over its structures that the model predicts.
    scores: dict[str, list[float]] = {kind: [] for kind in (BEFORE, *_KINDS)}
    model = segmenter.model
    left_out = [0, *not_compared(model)]
    for scan in scans:
        ambiguous = scan.load()
        fusions = {BEFORE: before, **fitted_without[fold_of[scan.person]]}
        for kind, fusion in fusions.items():
            rows = class_weights(fusion, scheme, segmenter.views, model.folder)
            weights = dict(zip(segmenter.views, rows, strict=True))
            values = dice(ambiguous.joint(scheme, weights, fusion.mean))
            values[left_out] = np.nan
            scores[kind].append(float(np.nanmean(values)))

    # Of the kinds in turn each that is clearly better than what was chosen so far. One person says
    # how far to believe views, not how far for each structure.
    means = {kind: float(np.nanmean(values)) for kind, values in scores.items()}
    chosen = BEFORE
    for kind in _KINDS if held_out else _KINDS_BY_VIEW:
        if means[kind] >= means[chosen] + _WORTHWHILE:
            chosen = kind
    fusion = before
    if chosen != BEFORE:
        # CSF is not compared: how far it reaches is not a matter of these weights, nor are odds.
        kept = {"csf_odds": before.csf_odds, "class_odds": before.class_odds}
        fusion = fitted_to_all[chosen].model_copy(update=kept)
    return FoundWeights(
        scans=tuple(scan.name for scan in scans),
        dice={kind: tuple(values) for kind, values in scores.items()},
        chosen=chosen,
        fusion=fusion,
        held_out=held_out,
        exit=batch_exit(done=len(scans), failed=failed),
    )


def _fit(scans: Sequence[_SegmentedScan], scheme: LabelScheme) -> Fusions:
    """Make all kinds of fusion, with weights fitted to these scans."""
    overall, by_class = fit_weights([scan.evidence for scan in scans], scheme)
    weights = {view: round(weight, _DIGITS) for view, weight in overall.items()}
    per_class: dict[str, dict[View, float]] = {}
    for index, name in enumerate(scheme.names):
        per_class[name] = {}
        for view, values in by_class.items():
            per_class[name][view] = round(float(values[index]), _DIGITS)
    fusions: Fusions = {}
    for ending, mean in _MEANS.items():
        fusions[BY_VIEW + ending] = Fusion(mean=mean, weights=weights)
    for ending, mean in _MEANS.items():
        fusions[BY_CLASS + ending] = Fusion(
            mean=mean,
            weights=weights,
            per_class=per_class,
        )
    return fusions


def _write(settings: FuseSettings, folder: Path, found: FoundWeights) -> None:
    """Write a file of weights, or change the model's folder where new weights were chosen."""
    figures: dict[str, JsonValue] = {
        "weights": found.chosen,
        "scans": len(found.scans),
        "mean_dice_before": round(found.mean(BEFORE), 4),
        "mean_dice_after": round(found.mean(found.chosen), 4),
    }
    if found.fusion.class_odds:
        figures["measured"] = "without the odds of structures"
    if settings.out is not None:
        lines = [
            "# Of trinat fuse-weights, for trinat bundle --weights. Measured with them:"
        ]
        for key, value in figures.items():
            lines.append(f"# {key}: {value}")
        fusion = yaml.safe_dump(found.fusion.model_dump(mode="json"), sort_keys=False)
        write_whole(settings.out, "\n".join(lines) + "\n" + fusion)
    elif found.chosen != BEFORE:
        metrics = {**read_info(folder).metrics, "fusion_weights": figures}
        # What odds gain was measured with other weights.
        metrics.pop("class_odds", None)
        update_info(folder, fusion=found.fusion, metrics=metrics)
