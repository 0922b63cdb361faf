"""Images are read as the run read them that made their label maps."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from trinat.pipelines.study.images import read_image
from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.volume import Volume

AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])
# The same places, with left and right exchanged.
MIRRORED = np.diag([-2.0, 2.0, 2.0, 1.0])
MIRRORED[0, 3] = 38


def write_image(
    path: Path, sform: np.ndarray | None = None, qform: np.ndarray | None = None
) -> Path:
    """Write an image of 20 x 22 x 24 voxels with these forms."""
    data = np.arange(20 * 22 * 24, dtype=np.float32).reshape(20, 22, 24)
    image = nib.Nifti1Image(data, None)
    image.set_sform(AFFINE if sform is None else sform, int(sform is not None))
    image.set_qform(AFFINE if qform is None else qform, int(qform is not None))
    image.to_filename(path)
    return path


def write_labels(path: Path, affine: np.ndarray) -> Path:
    Volume(np.ones((20, 22, 24), np.uint8), affine).write(path, labels=True)
    return path


@pytest.mark.parametrize("affine", [AFFINE, MIRRORED])
def test_the_label_map_decides_between_forms(
    affine: np.ndarray, tmp_path: Path
) -> None:
    image = write_image(tmp_path / "image.nii", sform=AFFINE, qform=MIRRORED)
    labels = write_labels(tmp_path / "labels.nii.gz", affine)
    np.testing.assert_allclose(read_image(image, labels).affine, affine)
    # What the user says goes first.
    told = read_image(image, labels, trust_affine="qform")
    np.testing.assert_allclose(told.affine, MIRRORED)


def test_a_header_without_forms_has_the_affine_of_its_label_map(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image.nii")
    expected = Volume.read(image, trust_affine="header").affine
    labels = write_labels(tmp_path / "labels.nii.gz", expected)
    np.testing.assert_allclose(read_image(image, labels).affine, expected)


def test_a_label_map_from_elsewhere_does_not_decide(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image.nii", sform=AFFINE, qform=MIRRORED)
    elsewhere = AFFINE.copy()
    elsewhere[0, 3] = 5
    labels = write_labels(tmp_path / "labels.nii.gz", elsewhere)
    for path in (labels, None):
        with pytest.raises(GeometryError):
            read_image(image, path)


def test_voxels_without_a_value_are_0(tmp_path: Path) -> None:
    data = np.ones((20, 22, 24), np.float32)
    data[1, 2, 3] = np.nan
    data[4, 5, 6] = 7
    nib.Nifti1Image(data, AFFINE).to_filename(tmp_path / "image.nii")
    image = read_image(tmp_path / "image.nii", None)
    assert image.data[1, 2, 3] == 0
    assert image.data[4, 5, 6] == 7
