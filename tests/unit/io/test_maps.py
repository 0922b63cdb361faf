"""Maps in one 4D file: other readers get the values that were written."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np

from trinat.segmentation.io.volume import Volume, write_maps

AFFINE = np.array([[0, -2.0, 0, 5], [1.5, 0, 0, -7], [0, 0, 3, 11], [0, 0, 0, 1]])
MAPS = [
    Volume(np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 23 * share, AFFINE)
    for share in (1.0, 0.25)
]


def test_maps_come_back_in_their_place_to_a_thirtythousandth(tmp_path: Path) -> None:
    write_maps(tmp_path / "a.nii.gz", iter(MAPS), 2)
    image = nib.load(tmp_path / "a.nii.gz")
    assert image.shape == (2, 3, 4, 2)
    np.testing.assert_allclose(image.get_sform(), AFFINE)
    np.testing.assert_allclose(image.get_qform(), AFFINE, atol=1e-5)
    assert image.header.get_xyzt_units()[0] == "mm"
    expected = np.stack([volume.data for volume in MAPS], -1)
    np.testing.assert_allclose(image.get_fdata(), expected, atol=0.5 / 32767)


def test_the_same_maps_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_maps(tmp_path / f"{name}.nii.gz", iter(MAPS), 2)
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_maps_stay_within_0_and_1_and_hold_no_time(tmp_path: Path) -> None:
    beyond = Volume(np.array([[[-0.5, 0.25, 1.5]]], np.float32), np.eye(4))
    write_maps(tmp_path / "maps.nii.gz", [beyond], 1)
    found = nib.load(tmp_path / "maps.nii.gz").get_fdata()[0, 0]
    np.testing.assert_allclose(found, [0, 0.25, 1], atol=1e-4)
    assert (tmp_path / "maps.nii.gz").read_bytes()[4:8] == bytes(4)
