"""Volumes of images and arrays in memory, in each type that users have."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers.odd_scans import VOXELS, image_of, saved
from helpers.refusals import refusal
from oracle.fuzz import odd_scan

from trinat.segmentation.errors import FormatError, GeometryError, IntegrityError
from trinat.segmentation.io.volume import Volume

TRANSPOSED = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [90, -126, -72, 1]]


def test_images_in_memory_go_through_the_checks_of_files() -> None:
    nifti = Volume.of_image(image_of(VOXELS))
    mgh = Volume.of_image(nib.MGHImage(VOXELS.astype(np.float32), odd_scan().affine))
    np.testing.assert_array_equal(nifti.data, VOXELS)
    np.testing.assert_array_equal(mgh.data, VOXELS)
    np.testing.assert_allclose(mgh.affine, nifti.affine, atol=1e-4)
    with pytest.raises(FormatError, match="cannot use ndarray"):
        Volume.of_image(VOXELS)
    holes = np.where(VOXELS.max() == VOXELS, np.nan, VOXELS).astype(np.float32)
    with pytest.raises(IntegrityError, match="NaN or infinite"):
        Volume.of_image(image_of(holes))


def test_an_array_in_memory_is_taken_as_it_is_whatever_its_header_says() -> None:
    """As in nibabel; the array belongs to the caller."""
    voxels = VOXELS.astype(np.float32)
    image = nib.Nifti1Image(voxels, odd_scan().affine)
    image.header.set_slope_inter(2, 1)
    np.testing.assert_array_equal(Volume.of_image(image).data, VOXELS)
    np.testing.assert_array_equal(voxels, VOXELS)


def test_an_affine_that_was_changed_in_place_is_taken_as_nibabel_saves_it() -> None:
    image = image_of(VOXELS[..., None])
    image.affine[0] *= -1
    before = image.header.copy()
    volume = Volume.of_image(image)
    np.testing.assert_allclose(volume.affine, image.affine, atol=1e-5)
    assert (volume.codes, volume.notes) == ((2, 2), ())
    assert image.header == before
    image.affine[0] = np.nan
    with refusal(GeometryError):
        Volume.of_image(image)


def test_an_image_of_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    nib.save(image_of(VOXELS), path)
    path.write_bytes(path.read_bytes()[:-100])
    with refusal(IntegrityError, path):
        Volume.of_image(nib.load(path))


def test_an_image_of_a_scan_is_no_label_map() -> None:
    volume = Volume.of_image(image_of(VOXELS))
    assert volume.to_nibabel().header.get_intent()[0] == "none"
    assert volume.to_nibabel(labels=True).header.get_intent()[0] == "label"


def test_a_scan_is_taken_in_each_form_that_users_have(tmp_path: Path) -> None:
    image, path = image_of(VOXELS), saved(tmp_path, VOXELS)
    volume = Volume.of(image)
    for scan in (path, str(path), image, (VOXELS, image.affine), volume):
        for labels in (False, True):
            np.testing.assert_array_equal(Volume.of(scan, labels=labels).data, VOXELS)
    assert Volume.of(volume) is volume
    fractions = VOXELS + np.float32(0.5)
    np.testing.assert_array_equal(Volume.of((fractions, image.affine)).data, fractions)
    with pytest.raises(
        TypeError, match=r"cannot use list.*segment_many takes several scans"
    ):
        Volume.of([path])  # type: ignore[arg-type]


def test_arrays_are_numbers_of_three_axes_with_an_affine() -> None:
    affine = odd_scan().affine
    for kind, kept in (("u1", "u1"), ("i4", "i4"), ("i8", "f4"), ("f8", "f4")):
        found = Volume.of_array(VOXELS.astype(kind), affine)
        assert found.data.dtype == kept
        np.testing.assert_array_equal(found.data, VOXELS.astype(kind))
        np.testing.assert_allclose(found.affine, affine, atol=1e-5)
    for array, place in (
        (VOXELS[0], affine),
        (VOXELS > 0, affine),
        (VOXELS, affine[:3]),
    ):
        with pytest.raises(FormatError, match="give numbers"):
            Volume.of_array(array, place)


@pytest.mark.parametrize(
    ("shape", "affine"),
    [
        ((3, 0, 3), np.eye(4)),
        ((3, 3, 3), np.zeros((4, 4))),
        ((3, 3, 3), np.diag([1.0, np.nan, 1, 1])),
        ((3, 3, 3), np.diag([1.0, 1, np.inf, 1])),
        # The third axis runs in the plane of the others.
        ((3, 3, 3), [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 0], [0, 0, 0, 1]]),
        # Shear, metres in place of millimetres, a transposed affine, and a scale in the last row.
        ((3, 3, 3), [[1, 0.9, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
        ((3, 3, 3), np.diag([1e-3, 1e-3, 1e-3, 1])),
        ((3, 3, 3), TRANSPOSED),
        ((3, 3, 3), np.diag([1.0, 1, 1, 2])),
    ],
)
def test_a_volume_has_voxels_and_a_place_for_each(shape, affine) -> None:
    with refusal(GeometryError):
        Volume(np.ones(shape), np.array(affine))


@pytest.mark.parametrize("kind", [complex, object, str])
def test_the_voxels_of_a_volume_are_real_numbers(kind: type) -> None:
    with refusal(FormatError):
        Volume(VOXELS.astype(kind), np.eye(4))


def test_a_transposed_affine_is_refused_in_each_form() -> None:
    with refusal(GeometryError):
        Volume.of((VOXELS, np.array(TRANSPOSED)))
    with refusal(GeometryError):
        Volume.of(nib.Nifti1Image(VOXELS, np.array(TRANSPOSED)))


def test_an_mgh_image_whose_orientation_nibabel_assumes_is_refused() -> None:
    content = bytearray(nib.MGHImage(VOXELS, odd_scan().affine).to_bytes())
    content[28:30] = bytes(2)
    with refusal(GeometryError, remedy="--trust-affine"):
        Volume.of(nib.MGHImage.from_bytes(bytes(content)))


def test_the_affine_that_nibabel_assumes_is_accepted_if_it_was_given(
    tmp_path: Path,
) -> None:
    default = nib.freesurfer.MGHImage.header_class()
    default.set_data_shape(VOXELS.shape)
    affine = default.get_affine()
    built = nib.MGHImage(VOXELS, affine)
    np.testing.assert_array_equal(Volume.of(built).affine, affine)
    nib.save(built, tmp_path / "scan.mgz")
    loaded = nib.load(tmp_path / "scan.mgz")
    np.testing.assert_array_equal(Volume.of(loaded).affine, affine)


def test_voxels_that_are_no_numbers_are_filled_in_each_form() -> None:
    holes = VOXELS.astype(np.float32)
    holes[1, 1, 1] = np.nan
    holes[2, 2, 2] = np.inf
    affine = odd_scan().affine
    scans = (
        (holes, affine),
        nib.Nifti1Image(holes, affine),
        nib.MGHImage(holes, affine),
        Volume(holes, affine),
    )
    wanted = np.nan_to_num(holes, posinf=0)
    for scan in scans:
        found = Volume.of(scan, fill_nonfinite=True)
        np.testing.assert_array_equal(found.data, wanted)
        assert len(found.notes) == 1
    # The array itself stays as it is.
    assert np.isnan(holes[1, 1, 1])


def test_trust_in_a_form_counts_for_an_image_in_memory() -> None:
    qform = np.eye(4)
    mirrored = np.diag([-1.0, 1, 1, 1])
    image = nib.Nifti1Image(VOXELS, mirrored)
    image.set_sform(mirrored, 1)
    image.set_qform(qform, 1)
    with refusal(GeometryError):
        Volume.of(image)
    found = Volume.of(image, trust_affine="qform")
    np.testing.assert_array_equal(found.affine, qform)


@pytest.mark.parametrize(("origin_mm", "is_taken"), [(1e5, True), (1.001e5, False)])
def test_a_scan_lies_within_100_m(origin_mm: float, is_taken: bool) -> None:
    affine = np.diag([1.0, 1, 1, 1])
    affine[1, 3] = -origin_mm
    if is_taken:
        assert Volume.of_array(VOXELS, affine).affine[1, 3] == -origin_mm
    else:
        with pytest.raises(GeometryError, match="more than 100 m away"):
            Volume.of_array(VOXELS, affine)
