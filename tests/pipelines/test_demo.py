"""The demo runs completely: scans, labels in their space, and a report on both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from trinat.pipelines.common.exits import Exit
from trinat.pipelines.demo import GEOMETRIES, run_demo
from trinat.segmentation.io.volume import Volume

ROOT = Path(__file__).parents[2]
# The phantom has the borders of the label maps used for synthesis. The model has also learnt from
# FreeSurfer's labels, whose pallidum and accumbens differ.
LEAST_DICE = 0.87


def dice_by_subject(demo: Path) -> pd.Series:
    metrics = pd.read_csv(demo / "report/metrics.csv")
    of_all = metrics[
        (metrics["metric"] == "dice") & (metrics["structure"] == "group:all")
    ]
    return of_all.set_index("subject")["value"]


@pytest.mark.slow
@pytest.mark.important
def test_the_shipped_model_finds_an_oblique_head(tmp_path: Path) -> None:
    geometry = GEOMETRIES[1]
    heard: list[str] = []
    status = run_demo(tmp_path, geometries=[geometry], on_step=heard.append)
    assert status == Exit.OK
    assert [line.partition(":")[0].split()[0] for line in heard] == [
        *("making", "segmenting", "sub-oblique_T1w", "comparing")
    ]
    scan = Volume.read(tmp_path / "scans/sub-oblique_T1w.nii.gz")
    labels = Volume.read(tmp_path / "labels/sub-oblique_T1w_dseg.nii.gz", labels=True)
    assert labels.shape == scan.shape
    np.testing.assert_allclose(labels.affine, scan.affine, atol=1e-5)
    assert dice_by_subject(tmp_path)["sub-oblique"] > LEAST_DICE
    assert (tmp_path / "report/report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_script_segments_heads_in_odd_geometries(tmp_path: Path) -> None:
    """`scripts/demo` is the first command in README.md."""
    subprocess.run([ROOT / "scripts/demo", "--out", tmp_path / "demo"], check=True)
    dice = dice_by_subject(tmp_path / "demo")
    assert set(dice.index) == {geometry.subject for geometry in GEOMETRIES}
    assert dice.min() > LEAST_DICE
