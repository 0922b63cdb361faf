"""sMRIPrep's own code finds and uses what `--for fmriprep` writes.

scripts/test-fmriprep creates the environment with sMRIPrep; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.overfitted import miniature, overfitted_model
from helpers.serial import QUICK, run_serially

PYTHON = os.environ.get("SMRIPREP_PYTHON", "")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="no sMRIPrep: scripts/test-fmriprep has it"),
    pytest.mark.slow,
]


@pytest.mark.parametrize(
    "folders", ["sub-01/anat/sub-01", "sub-01/ses-a/anat/sub-01_ses-a"]
)
def test_smriprep_finds_all_and_lays_the_mask_over_the_scan(
    folders: str, tmp_path: Path
) -> None:
    scan = tmp_path / "raw" / f"{folders}_T1w.nii.gz"
    scan.parent.mkdir(parents=True)
    # sMRIPrep reorients such axes before it uses anything.
    miniature("PIR")[0].write(scan)
    out = tmp_path / "out"
    output = replace(QUICK, brain_mask=True, tissues=True, fmriprep=True)
    run_serially(tmp_path / "raw", out, output=output, model=str(overfitted_model()))
    program = Path(__file__).with_name("in_smriprep.py")
    done = subprocess.run(
        [PYTHON, program, out, "01", scan],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])

    names = {key: name_of(value) for key, value in said["found"].items() if value}
    stem = Path(folders).name
    assert names == {
        "t1w_mask": f"{stem}_desc-brain_mask.nii.gz",
        "t1w_dseg": f"{stem}_dseg.nii.gz",
        "t1w_tpms": [
            f"{stem}_label-{tissue}_probseg.nii.gz" for tissue in ("GM", "WM", "CSF")
        ],
    }
    grids = list(said["grids"].values())
    assert len(grids) == 5
    for shape, affine in grids[1:]:
        assert shape == grids[0][0]
        np.testing.assert_allclose(affine, grids[0][1], rtol=1e-5)
    mask = nib.load(said["found"]["t1w_mask"])
    values = nib.as_closest_canonical(nib.load(scan)).get_fdata()
    shown = (values != 0) & (mask.get_fdata() > 0)
    assert said["inside"] == shown.sum() > 1000


def name_of(value: str | list[str]) -> str | list[str]:
    """Return the name of a file, or the names of several files."""
    if isinstance(value, str):
        return Path(value).name
    return [Path(path).name for path in value]
