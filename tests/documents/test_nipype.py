"""The nipype interface of the documentation segments a scan, if nipype is installed."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import nibabel as nib
import pytest
from helpers.service import quick_model, tiny_scan

EXAMPLE = Path(__file__).parents[2] / "docs/examples/nipype_predict.py"


def test_the_interface_segments_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nipype")
    monkeypatch.chdir(tmp_path)
    # Finds the command of this environment, whether or not it is activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    interface = runpy.run_path(str(EXAMPLE))["TrinatPredict"]
    scan = tiny_scan(tmp_path / "sub-1.nii.gz")
    segment = interface(in_file=str(scan), model=str(quick_model()))
    assert segment.cmdline == (
        f"trinat predict {scan} --device cpu --model {quick_model()}"
        " --threads 1 --out trinat"
    )
    found = segment.run().outputs
    assert nib.load(found.labels).shape == nib.load(scan).shape
    assert Path(found.volumes) == tmp_path / "trinat/volumes.tsv"
    assert "sub-1" in Path(found.quality).read_text()
