"""Step of `trinat fit`: the odds of structures, which adapt a model to a labelling convention.

The odds of a structure are a factor that multiplies its probability in each voxel. Each scan is
segmented once, and only the voxels whose class depends on the odds are stored. The networks stay as
they are. `trinat learn` does the same with corrected scans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from trinat.pipelines.models.held_out import FittedFusion, fit_held_out
from trinat.pipelines.models.scans_with_truth import (
    NUMBERS,
    Reader,
    ScanT,
    ScanWithTruth,
    refuse_another_head,
    require_scans,
    without_odds,
    work_on_each,
)
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.grid import Box
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.models.checkpoint import Model
from trinat.segmentation.models.model_info import Fusion
from trinat.segmentation.training.odds_fit import (
    DoubtfulVoxels,
    fit_odds,
    logarithms_of,
    without_truth,
)

FITTED = "fitted"


def fit_structure_odds(
    model: Model, scans: Sequence[ScanWithTruth], reader: Reader, *, device: str
) -> tuple[FittedFusion, list[ScanWithTruth], list[str]]:
    """Fit the odds of structures to scans with true label maps, scored on held-out participants.

    The odds of a structure are a factor that multiplies its probability in each voxel. `reader`
    reads the scans and their label maps.

    Returns the model's own odds and the fitted odds with the Dice of each scan, the scans that
    could be used, and a message for each other scan. EvaluationError is raised if no scan could be
    used.
    """
    used, voxels, failures = segment_all(model, scans, reader, device=device)
    require_scans(used, failures, remedy=NUMBERS)
    return find_odds(model, used, voxels), used, failures


def segment_all(
    model: Model, scans: Sequence[ScanT], reader: Reader, *, device: str
) -> tuple[list[ScanT], list[DoubtfulVoxels], list[str]]:
    """Segment scans; return the voxels of each whose class depends on the odds of structures.

    Returns the scans that could be used, the probabilities and true classes of the voxels of each,
    and a message for each other scan. ConfigError is raised if no view of the model tells left from
    right.
    """
    # The model's own odds are tried like any others, so the scans are segmented without them.
    fusion = model.info.fusion.model_copy(update={"class_odds": {}})
    info = model.info.model_copy(update={"fusion": fusion})
    segmenter = Predictor(replace(model, info=info), device=device)
    if all(model.is_merged(view) for view in segmenter.views):
        raise ConfigError("its views do not tell left from right", where=model.folder)

    def segment(scan: ScanT) -> DoubtfulVoxels:
        return _doubtful_voxels(segmenter, scan, reader)

    return work_on_each(scans, segment)


def _doubtful_voxels(
    segmenter: Predictor, scan: ScanWithTruth, reader: Reader
) -> DoubtfulVoxels:
    """Segment a scan; return the voxels whose class depends on the odds of structures.

    The result has the probabilities and the true class of each such voxel. `reader` reads the scan
    and its true label map. EvaluationError is raised if they seem to be of different heads.
    """
    prepared, classes = reader.read(segmenter, scan)

    def work() -> tuple[Tensor, Box]:
        image = segmenter.image_of(prepared)
        region, fused, _maps = segmenter.find_and_fuse(image, plan=prepared.plan)
        segmenter.weigh(fused, prepared.plan.cropped(region.box))
        return fused.cpu(), region.box

    probabilities, box = segmenter.with_less_memory(work)
    true_in_box = np.ascontiguousarray(classes[box])
    model = segmenter.model
    count = len(model.scheme)
    everywhere = np.bincount(classes.ravel(), minlength=count)
    in_box = np.bincount(true_in_box.ravel(), minlength=count)
    doubtful = DoubtfulVoxels.of(
        probabilities, true_in_box, without_odds(model), beyond=everywhere - in_box
    )
    joint = doubtful.joint(np.zeros(count))
    refuse_another_head([joint], model, scan.labels)
    return doubtful


def find_odds(
    model: Model,
    scans: Sequence[ScanWithTruth],
    voxels: Sequence[DoubtfulVoxels],
    counted: Sequence[int] | None = None,
) -> FittedFusion:
    """Fit odds of structures to all scans; score each scan with odds fitted to other participants.

    The odds of a structure are a factor that multiplies its probability in each voxel. For each of
    `scans`, `voxels` has the voxels whose class depends on the odds. `counted` are the classes
    (indices) that get odds and enter the mean Dice; None for all. Returns the model's own odds and
    the fitted odds, each with the mean Dice of each scan.
    """
    scheme = model.scheme
    own = model.info.fusion
    fixed = classes_without_odds(model, voxels, counted)

    def fit(some: Sequence[DoubtfulVoxels]) -> Mapping[str, Fusion]:
        odds = fit_odds(some, scheme, fixed, own.class_odds)
        return {FITTED: own.model_copy(update={"class_odds": odds})}

    def score(of_scan: DoubtfulVoxels, fusion: Fusion) -> float:
        return of_scan.mean_dice(logarithms_of(fusion.class_odds, scheme), fixed)

    return fit_held_out(scans, voxels, own, fit, score)


def classes_without_odds(
    model: Model,
    scans: Sequence[DoubtfulVoxels],
    counted: Sequence[int] | None = None,
) -> list[int]:
    """Return the classes (indices) that keep their odds and are left out of the mean Dice.

    Odds multiply the probability of a class in each voxel. They are not fitted for background,
    CSF, structures that the model does not predict, and classes that no reference label map
    contains. If `counted` is given, all classes that it does not contain are returned, too.
    """
    fixed = {*without_odds(model), *without_truth(scans)}
    if counted is not None:
        fixed |= set(range(len(model.scheme))) - set(counted)
    return sorted(fixed)


def describe_odds(fusion: Fusion) -> str:
    """Return the odds of structures as text on one line; both sides have the same odds."""
    by_structure = {}
    for name, factor in fusion.class_odds.items():
        structure = name.removeprefix("Left-").removeprefix("Right-")
        by_structure[structure] = factor
    odds = ", ".join(f"{name} {factor:g}" for name, factor in by_structure.items())
    return f"factors {odds or 'none'}"
