"""An evaluation of two models, measured once for all tests of a file that read its results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.ellipsoids import brain, read_metrics, write

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.evaluate.evaluation import (
    EvaluationSettings,
    evaluate_predictions,
    named_models,
)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluate seven participants and two models, with faults.

    Model b misses a structure, mirrors a scan, lacks a file and has a damaged one; there is one
    truth without a prediction, and one prediction without a truth.
    """
    root = tmp_path_factory.mktemp("study")
    for n in range(1, 8):
        write(root / f"truth/sub-{n:02d}_dseg.nii.gz", brain())
        write(root / f"a/sub-{n:02d}_dseg.nii.gz", brain((n % 2, 0, 0)))
        write(
            root / f"b/sub-{n:02d}_dseg.nii.gz",
            brain((1, n % 2, 1), without=(17,) if n == 2 else ()),
        )
    mirrored = brain()
    mirrored = np.select(
        [mirrored == k for k in (2, 41, 17, 53)], [41, 2, 53, 17], mirrored
    )
    write(root / "b/sub-05_dseg.nii.gz", mirrored)
    (root / "b/sub-07_dseg.nii.gz").write_bytes(b"damaged")
    write(root / "truth/sub-08_dseg.nii.gz", brain())
    write(root / "a/sub-99_dseg.nii.gz", brain())
    return root


@pytest.fixture(scope="module")
def settings(
    study: Path, tmp_path_factory: pytest.TempPathFactory
) -> EvaluationSettings:
    models = named_models([study / "a", study / "b"], ["first", "second"])
    out = tmp_path_factory.mktemp("report")
    return EvaluationSettings(
        study / "truth", models, out, jobs=1, command="trinat evaluate"
    )


@pytest.fixture(scope="module")
def report(settings: EvaluationSettings) -> Path:
    assert evaluate_predictions(settings) == Exit.SOME_FAILED
    return settings.out


@pytest.fixture(scope="module")
def metrics(report: Path) -> pd.DataFrame:
    return read_metrics(report / "metrics.csv")


@pytest.fixture
def pair(tmp_path: Path) -> EvaluationSettings:
    write(tmp_path / "truth/x.nii.gz", brain())
    models = {"model": tmp_path / "pred"}
    return EvaluationSettings(tmp_path / "truth", models, tmp_path / "out", jobs=1)
