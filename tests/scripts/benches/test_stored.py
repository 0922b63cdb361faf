"""Forms of one head: the same image in other files, and others."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
from benches.stored import write_forms

from trinat.segmentation.io.volume import Volume


def test_a_slope_and_half_a_millimetre_keep_values_and_places(tmp_path: Path) -> None:
    data = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    affine = np.diag([1.0, 2, 3, 1])
    write_forms(Volume(data, affine), tmp_path / "forms")
    slope = nib.load(tmp_path / "forms/slope.nii.gz")
    assert np.array_equal(slope.get_fdata(), 2.5 * data - 1000)
    half = nib.load(tmp_path / "forms/half-mm-and-offset.nii.gz")
    assert half.shape == (6, 8, 10)
    # The corner of the volume stays where it is: half a voxel before the first middle.
    corner = half.affine @ (-0.5, -0.5, -0.5, 1)
    assert np.allclose(corner, affine @ (-0.5, -0.5, -0.5, 1))
    assert len(list((tmp_path / "forms/dicom-slope").iterdir())) == 5
