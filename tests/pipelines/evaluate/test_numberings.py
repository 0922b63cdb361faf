"""Label maps in other numbers than FreeSurfer's: folding tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.ellipsoids import brain, read_metrics, value, write

from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
)
from trinat.segmentation.errors import ConfigError, EvaluationError

pytestmark = pytest.mark.usefixtures("without_figures")


def in_manual_numbers(labels: np.ndarray) -> np.ndarray:
    """Return the bodies in Neuromorphometrics numbers."""
    manual = np.zeros_like(labels)
    for freesurfer, number in {2: 45, 41: 44, 17: 48, 53: 47, 16: 35, 24: 46}.items():
        manual[labels == freesurfer] = number
    return manual


def test_a_folding_table_is_of_the_truth_alone(pair: EvaluationSettings) -> None:
    write(pair.truth / "x.nii.gz", in_manual_numbers(brain()))
    write(pair.models["model"] / "x.nii.gz", brain())
    evaluate_predictions(
        replace(pair, numbering="neuromorphometrics", tables_only=True)
    )
    metrics = read_metrics(pair.out / "metrics.csv")
    for structure in ("Left-Hippocampus", "Right-Hippocampus", "Brain-Stem"):
        assert value(metrics, "x", "model", structure, "dice") == 1


def test_parcels_drawn_by_hand_are_the_truth_of_maps_of_parcels(
    pair: EvaluationSettings,
) -> None:
    """A row of voxels: the raters' precuneus left and right, and three voxels of each found."""
    truth = np.zeros((16, 16, 16), np.int16)
    truth[1:5, 8, 8], truth[7:11, 8, 8] = 169, 168
    found = np.zeros((16, 16, 16), np.int16)
    found[2:5, 8, 8], found[7:10, 8, 8] = 30169, 30168
    write(pair.truth / "x.nii.gz", truth)
    write(pair.models["model"] / "x.nii.gz", found)
    evaluate_predictions(
        replace(
            pair,
            labels="neuromorphometrics",
            numbering="neuromorphometrics",
            tables_only=True,
        )
    )
    metrics = read_metrics(pair.out / "metrics.csv")
    for parcel in ("ctx-lh-precuneus", "ctx-rh-precuneus"):
        assert value(metrics, "x", "model", parcel, "dice") == pytest.approx(6 / 7)
        assert value(metrics, "x", "model", parcel, "truth_volume") == 4 * 2**3


def test_each_model_has_its_own_numbering(
    pair: EvaluationSettings, tmp_path: Path
) -> None:
    models = {"ours": tmp_path / "pred", "other": tmp_path / "other"}
    write(models["ours"] / "x.nii.gz", brain())
    write(models["other"] / "x.nii.gz", in_manual_numbers(brain()))
    folded = replace(
        pair,
        models=models,
        numbering_pred=("freesurfer", "neuromorphometrics"),
        tables_only=True,
    )
    evaluate_predictions(folded)
    metrics = read_metrics(pair.out / "metrics.csv")
    for model in models:
        assert value(metrics, "x", model, "Left-Hippocampus", "dice") == 1
    with pytest.raises(ConfigError, match="3 --numbering-pred for 2 --pred"):
        evaluate_predictions(replace(folded, numbering_pred=("freesurfer",) * 3))


def test_a_number_outside_the_table_fails_its_pair_and_is_named(
    pair: EvaluationSettings,
) -> None:
    """2 is white matter in FreeSurfer and undefined in Neuromorphometrics."""
    write(pair.models["model"] / "x.nii.gz", brain())
    folded = replace(pair, numbering="neuromorphometrics", tables_only=True)
    with pytest.raises(
        EvaluationError, match=r"neuromorphometrics does not fold .*: 2 \("
    ):
        evaluate_predictions(folded)
