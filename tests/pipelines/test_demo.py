"""The demo runs completely: scans, labels in their space, and a report on both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.overfitted import random_model

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.demo import GEOMETRIES, Geometry, run_demo
from trinat.segmentation.io.volume import Volume

ROOT = Path(__file__).parents[2]
COARSE = Geometry("sub-coarse", (3.0, 3.0, 4.0), "LIP", 10)


@pytest.mark.slow
def test_a_coarse_oblique_head_goes_the_whole_path(tmp_path: Path) -> None:
    heard: list[str] = []
    status = run_demo(
        tmp_path, model=str(random_model()), geometries=[COARSE], on_step=heard.append
    )
    assert status == Exit.OK
    assert [line.partition(":")[0].split()[0] for line in heard] == [
        *("making", "segmenting", "sub-coarse_T1w", "comparing")
    ]
    case, _, grade = heard[2].partition(": done, ")
    assert case == "sub-coarse_T1w"
    assert grade in ("pass", "look", "reject")
    scan = Volume.read(tmp_path / "scans" / "sub-coarse_T1w.nii.gz")
    labels = Volume.read(
        tmp_path / "labels" / "sub-coarse_T1w_dseg.nii.gz", labels=True
    )
    assert labels.shape == scan.shape
    np.testing.assert_allclose(labels.affine, scan.affine, atol=1e-5)
    metrics = pd.read_csv(tmp_path / "report" / "metrics.csv")
    assert set(metrics["subject"]) == {"sub-coarse"}
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.important
def test_the_shipped_model_finds_heads_in_odd_geometries(tmp_path: Path) -> None:
    """`scripts/demo` is the first command in README.md."""
    subprocess.run([ROOT / "scripts/demo", "--out", tmp_path / "demo"], check=True)
    metrics = pd.read_csv(tmp_path / "demo/report/metrics.csv")
    dice = metrics[metrics["metric"] == "dice"].pivot(
        index="subject", columns="structure", values="value"
    )["group:all"]
    assert set(dice.index) == {geometry.subject for geometry in GEOMETRIES}
    # The phantom has the borders of the label maps used for synthesis. The model has also
    # learnt from FreeSurfer's labels, whose pallidum and accumbens differ.
    assert dice.min() > 0.87
