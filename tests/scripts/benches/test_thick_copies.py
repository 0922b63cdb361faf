"""Copies in thick slices: where the head lies, and what a subject's folder has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.thick_copies import as_flair, averaged, run
from helpers.miniatures import freesurfer_subject

from trinat.segmentation.grid import moved
from trinat.segmentation.io.volume import Volume


@pytest.mark.parametrize(("across", "axis"), [("R", 0), ("A", 2), ("S", 1)])
def test_thick_slices_keep_the_place_of_what_they_show(across: str, axis: int) -> None:
    # The axes run to the left, down and to the front.
    affine = np.array([[-1, 0, 0, 30], [0, 0, 1, -30], [0, -1, 0, 30], [0, 0, 0, 1.0]])
    places = moved(np.moveaxis(np.indices((60, 60, 60)), 0, -1), affine)
    ramp = Volume((places @ [1, 10, 100]).astype(np.float32), affine)
    thick = averaged(ramp, across, np.random.default_rng(0))
    assert thick.axcodes == ramp.axcodes
    spacing = list(thick.spacing_mm)
    assert 4.5 <= spacing.pop(axis) <= 8
    assert spacing == [1, 1]
    # The mean of a ramp over a slice is its value in the middle; slices at the rim are cut.
    inner = tuple(slice(2, -2) for _ in range(3))
    there = moved(np.moveaxis(np.indices(thick.shape), 0, -1), thick.affine)
    expected = there @ [1, 10, 100]
    np.testing.assert_allclose(thick.data[inner], expected[inner], atol=60)


def test_in_flair_fluid_is_dark_and_grey_matter_bright() -> None:
    values = np.array([0.25, 0.65, 1.0], np.float32)
    fluid, grey, white = as_flair(values, np.random.default_rng(0))
    assert fluid < white < grey


def test_a_subject_gets_a_thick_copy_with_the_same_labels_and_csf(
    tmp_path: Path,
) -> None:
    for name in ("a", "a-orig"):
        freesurfer_subject(tmp_path / "in", name)
        (tmp_path / f"in/{name}/mri/orig.mgz").rename(
            tmp_path / f"in/{name}/mri/T1.mgz"
        )
        aseg = Volume.read(tmp_path / f"in/{name}/mri/aseg.mgz", labels=True)
        csf = np.where(aseg.data == 0, 24, aseg.data).astype(np.int16)
        path = tmp_path / f"labels/{name}_dseg.nii.gz"
        path.parent.mkdir(exist_ok=True)
        Volume(csf, aseg.affine).write(path, labels=True)
    run(str(tmp_path / "in"), str(tmp_path / "labels"), str(tmp_path / "out"))
    made = {folder.name for folder in (tmp_path / "out").iterdir()}
    assert made == {"a", "a-orig", "a-thick"}
    thick = Volume.read(tmp_path / "out/a-thick/mri/T1.mgz")
    labels = Volume.read(tmp_path / "out/a-thick/mri/aseg.mgz", labels=True)
    np.testing.assert_allclose(thick.affine, labels.affine)
    assert (labels.data == 24).any()
    before = Volume.read(tmp_path / "in/a/mri/aseg.mgz", labels=True)
    np.testing.assert_array_equal(
        labels.data[before.data > 0], before.data[before.data > 0]
    )
