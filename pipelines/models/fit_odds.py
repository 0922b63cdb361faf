"""trinat fit-odds: a model fitted to a convention of labels, without training.

Every scan is segmented once, and what the odds of structures decide on is kept. Odds are fitted
without a person and scored on that person's scans. Only if they do better than the model's own is a
model with odds fitted to all scans written: the same networks, and a few numbers in model.yaml.
`trinat learn` does the same with scans that were corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import JsonValue
from torch import Tensor

from trinat.pipelines.common.exits import Exit, batch_exit
from trinat.pipelines.common.models import check_out, description_of
from trinat.pipelines.evaluate.user_tables import Mappings, read_mapping
from trinat.pipelines.models.scans_with_truth import (
    dice_lines,
    folds_of,
    pair_scans,
    prepare_pair,
    refuse_another_head,
    require_scans,
    without_odds,
    without_partner,
)
from trinat.pipelines.models.settings import OddsSettings
from trinat.pipelines.study.pairing import Pair
from trinat.segmentation.errors import ConfigError, TrinatError
from trinat.segmentation.grid import Box
from trinat.segmentation.inference.fusion import Odds
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.io.orientation import TrustAffine
from trinat.segmentation.labels.folding import load_folding
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.checkpoint import Model, load_model, save_changed
from trinat.segmentation.models.model_info import Description
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
    without_truth,
)

Say = Callable[[str], None]

# Odds are fitted at most this often to be tried on persons that they have not seen.
_FOLDS = 5
# What gains less Dice than this on persons that it has not seen is not worth having.
WORTHWHILE = 0.001
# What helps most often where scans have truths that cannot be used.
_NUMBERS = (
    "if the truths do not have FreeSurfer's numbers, add --numbering or --mapping"
)


@dataclass(frozen=True)
class FoundOdds:
    """What was measured and fitted.

    `before` and `after` are the mean Dice over structures of each of the `scans`, which are of
    these `persons`: with the model's own odds, and with odds that have not seen its person. With
    one person `held_out` is False: the same scans fit and score. `odds` were fitted to all scans;
    `better` is whether they are worth having.
    """

    scans: tuple[str, ...]
    persons: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    odds: Odds
    held_out: bool
    exit: Exit

    @property
    def better(self) -> bool:
        """Tell whether persons whom the odds have not seen gain."""
        gain = float(np.mean(self.after)) - float(np.mean(self.before))
        return gain >= WORTHWHILE

    def lines(self) -> list[str]:
        """Write the figures for people: Dice of each scan before and after, and all odds."""
        columns = {"as they were": self.before, "fitted": self.after}
        table = dice_lines(columns, self.scans, "odds", held_out=self.held_out)
        by_structure = {}
        for name, factor in self.odds.items():
            # Both sides share one.
            structure = name.removeprefix("Left-").removeprefix("Right-")
            by_structure[structure] = factor
        odds = ", ".join(f"{name} {factor:g}" for name, factor in by_structure.items())
        return [*table, f"fitted to all: {odds or 'nothing'}"]


def fit_model_odds(settings: OddsSettings, say: Say = lambda line: None) -> FoundOdds:
    """Fit odds, try them on persons left out, and write a model with them if they are better.

    Scans that cannot be used are reported by `say`, and count as failed. Raises EvaluationError
    where no scan can be used.
    """
    check_out(settings.out, settings.overwrite)
    model = load_model(settings.model)
    description = description_of(model, settings.out)
    mapping = Mappings()
    if settings.mapping is not None:
        mapping = read_mapping(settings.mapping)
    if settings.numbering is not None:
        mapping = replace(mapping, truth_numbering=load_folding(settings.numbering))

    pairing = pair_scans(settings.scans, settings.truth, say)
    failures = without_partner(pairing, pairing.truths_alone, "scan")
    pairs, scans, failed = segment_all(
        model,
        pairing.pairs,
        mapping,
        device=settings.device,
        trust_affine=settings.trust_affine,
        say=say,
    )
    failures += failed
    skipped = without_partner(pairing, pairing.predictions_alone, "truth")
    for reason in [*skipped, *failures]:
        say(f"not used: {reason}")
    remedy = _NUMBERS if failed else "name scans and truths alike"
    require_scans(scans, failures, settings.scans, remedy)

    say(f"fitting odds to {len(scans)} scans")
    found = find_odds(model, pairs, scans, len(failures))
    if found.better:
        save_with_odds(model, description, found, settings.out, settings.overwrite)
    return found


def save_with_odds(
    model: Model,
    description: Description,
    found: FoundOdds,
    out: Path,
    overwrite: bool,
) -> None:
    """Write a model with the same networks and the odds that were found."""
    figures: dict[str, JsonValue] = {
        "scans": len(found.scans),
        "mean_dice_before": round(float(np.mean(found.before)), 4),
        "mean_dice_after": round(float(np.mean(found.after)), 4),
    }
    changed = {
        "fusion": model.info.fusion.model_copy(update={"class_odds": found.odds}),
        # Other figures were measured with other odds.
        "metrics": {"class_odds": figures},
    }
    save_changed(
        model,
        out,
        description.model_copy(update=changed),
        parcels=model.parcels,
        overwrite=overwrite,
    )


def segment_all(
    model: Model,
    pairs: Sequence[Pair],
    mapping: Mappings,
    *,
    device: str,
    trust_affine: TrustAffine | None,
    say: Say,
) -> tuple[list[Pair], list[DoubtfulVoxels], list[str]]:
    """Segment all scans; return those that can be used, what is kept, and why others cannot."""
    # The model's own odds are tried like any others: what it finds without them is kept.
    fusion = model.info.fusion.model_copy(update={"class_odds": {}})
    info = model.info.model_copy(update={"fusion": fusion})
    segmenter = Predictor(replace(model, info=info), device=device)
    if all(model.is_merged(view) for view in segmenter.views):
        raise ConfigError("its views do not tell left from right", where=model.folder)
    used = []
    scans = []
    failures = []
    for number, pair in enumerate(pairs, start=1):
        try:
            scan = _doubtful_voxels(segmenter, pair, mapping, trust_affine)
        except (TrinatError, OSError) as error:
            failures.append(f"{pair.truth.name}: {error}")
            continue
        used.append(pair)
        scans.append(scan)
        say(f"{_name(pair)}: segmented, {number} of {len(pairs)}")
    return used, scans, failures


def _doubtful_voxels(
    segmenter: Predictor,
    pair: Pair,
    mapping: Mappings,
    trust_affine: TrustAffine | None,
) -> DoubtfulVoxels:
    """Segment a scan, and keep what depends on the odds of structures."""
    prepared, classes = prepare_pair(segmenter, pair, mapping, trust_affine)

    def work() -> tuple[Tensor, Box]:
        image = segmenter.image_of(prepared)
        region, fusion, _maps = segmenter.find_and_fuse(image)
        segmenter.weigh(fusion.fused, prepared.plan.cropped(region.box))
        return fusion.fused.cpu(), region.box

    probabilities, box = segmenter.with_less_memory(work)
    true_in_box = np.ascontiguousarray(classes[box])
    model = segmenter.model
    count = len(model.scheme)
    everywhere = np.bincount(classes.ravel(), minlength=count)
    in_box = np.bincount(true_in_box.ravel(), minlength=count)
    without = without_odds(model)
    doubtful = DoubtfulVoxels.of(
        probabilities, true_in_box, without, beyond=everywhere - in_box
    )
    joint = doubtful.joint(np.zeros(count))
    refuse_another_head([joint], model.scheme, without, pair.truth.path)
    return doubtful


def find_odds(
    model: Model,
    pairs: Sequence[Pair],
    scans: Sequence[DoubtfulVoxels],
    failed: int,
    counted: Sequence[int] | None = None,
) -> FoundOdds:
    """Fit odds to all scans, and score each scan with odds fitted to other persons.

    Only the classes that are `counted` get odds and are in the mean; by default all do.
    """
    scheme = model.scheme
    fixed = classes_without_odds(model, scans, counted)
    own = model.info.fusion.class_odds
    fitted_to_all = fit_odds(scans, scheme, fixed)
    persons = [pair.truth.person for pair in pairs]
    fold_of_person = folds_of(persons, _FOLDS)
    fold_of = [fold_of_person[person] for person in persons]
    folds = set(fold_of)
    held_out = len(folds) > 1
    odds_without: dict[int, Odds] = dict.fromkeys(folds, fitted_to_all)
    if held_out:
        for fold in folds:
            others = [
                scan
                for scan, of_scan in zip(scans, fold_of, strict=True)
                if of_scan != fold
            ]
            odds_without[fold] = fit_odds(others, scheme, fixed)
    before = []
    after = []
    for scan, fold in zip(scans, fold_of, strict=True):
        before.append(_mean_dice(scan, own, scheme, fixed))
        after.append(_mean_dice(scan, odds_without[fold], scheme, fixed))
    return FoundOdds(
        scans=tuple(_name(pair) for pair in pairs),
        persons=tuple(persons),
        before=tuple(before),
        after=tuple(after),
        odds=fitted_to_all,
        held_out=held_out,
        exit=batch_exit(done=len(scans), failed=failed),
    )


def classes_without_odds(
    model: Model,
    scans: Sequence[DoubtfulVoxels],
    counted: Sequence[int] | None = None,
) -> list[int]:
    """List the classes that get no odds and are in no mean.

    Those that no odds are for, that no truth has, or that are not `counted`.
    """
    fixed = {*without_odds(model), *without_truth(scans)}
    if counted is not None:
        fixed |= set(range(len(model.scheme))) - set(counted)
    return sorted(fixed)


def _mean_dice(
    scan: DoubtfulVoxels, odds: Odds, scheme: LabelScheme, fixed: Sequence[int]
) -> float:
    """Compute the mean Dice over a scan's structures with these odds."""
    return scan.mean_dice(logarithms_of(odds, scheme), fixed)


def _name(pair: Pair) -> str:
    """Name a scan as tables do."""
    return f"{pair.truth.person} {pair.truth.visit}".strip()
