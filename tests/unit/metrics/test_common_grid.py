"""Bringing a prediction to the truth's grid, on an oblique, anisotropic, lateralised volume."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.metrics.common_grid import drawn_slices, on_grid_of


def oblique(shape: tuple[int, int, int] = (6, 7, 8)) -> Volume:
    rng = np.random.default_rng(0)
    turn = nib.eulerangles.euler2mat(0.1, -0.2, 0.15)
    affine = nib.affines.from_matvec(turn @ np.diag([-1.0, 1.5, 2.0]), [10, -20, 5])
    return Volume(rng.integers(0, 5, shape).astype(np.uint8), affine)


def flipped(volume: Volume, codes: str) -> Volume:
    image = nib.Nifti1Image(volume.data, volume.affine)
    change = nib.orientations.ornt_transform(
        nib.io_orientation(volume.affine), nib.orientations.axcodes2ornt(codes)
    )
    turned = image.as_reoriented(change)
    return Volume(np.asarray(turned.dataobj), turned.affine)


def test_an_equal_grid_is_taken_as_it_is() -> None:
    """Voxels are moved by the rounding of a q-form's quaternion."""
    truth = oblique()
    nearly_equal = truth.affine.copy()
    nearly_equal[0, 3] += 0.06
    labels, note = on_grid_of(Volume(truth.data + 1, nearly_equal), truth)
    assert note == ""
    np.testing.assert_array_equal(labels.data, truth.data + 1)


@pytest.mark.parametrize("codes", ["RAS", "PIL", "SRA"])
def test_other_axes_of_the_same_voxels_are_reordered_without_loss(codes: str) -> None:
    truth = oblique()
    labels, note = on_grid_of(flipped(truth, codes), truth)
    assert note == f"axes reordered from {codes}, no loss"
    np.testing.assert_array_equal(labels.data, truth.data)


def test_a_shift_is_refused_and_measured() -> None:
    truth = oblique()
    affine = truth.affine.copy()
    affine[0, 3] += 0.5
    with pytest.raises(GeometryError, match=r"corners up to 0\.5 mm apart.*--resample"):
        on_grid_of(Volume(truth.data, affine), truth)


def test_another_spacing_is_refused() -> None:
    truth = oblique()
    with pytest.raises(GeometryError, match=r"1×1\.5×2 mm against"):
        on_grid_of(
            truth, Volume(truth.data, truth.affine @ np.diag([1.1, 1.1, 1.1, 1]))
        )


def test_another_shape_is_refused() -> None:
    with pytest.raises(GeometryError, match="6×7×9 voxels against 6×7×8"):
        on_grid_of(oblique((6, 7, 9)), oblique())


def test_resampling_keeps_what_a_finer_grid_repeats() -> None:
    """Each voxel is halved along x, so every label appears twice, in its place."""
    truth = oblique()
    halves = np.diag([0.5, 1, 1, 1])
    halves[
        0, 3
    ] = -0.25  # the first half begins a quarter voxel before its parent's centre
    fine = Volume(np.zeros((12, 7, 8), np.uint8), truth.affine @ halves)
    labels, note = on_grid_of(truth, fine, resample=True)
    assert note.startswith("resampled to the truth's grid, label by label")
    np.testing.assert_array_equal(labels.data, np.repeat(truth.data, 2, axis=0))


def test_resampling_counts_all_of_a_coarser_voxel_and_not_its_middle_alone() -> None:
    """Three voxels become one along x: label 7 in the middle, label 3 on both sides of it."""
    fine = Volume(
        np.tile(np.array([3, 7, 3], np.uint8)[:, None, None], (4, 6, 6)), np.eye(4)
    )
    coarse = np.diag([3.0, 1, 1, 1])
    coarse[0, 3] = 1  # the centre of its first voxel is that of the middle fine voxel
    labels, _ = on_grid_of(
        fine, Volume(np.zeros((4, 6, 6), np.uint8), coarse), resample=True
    )
    assert (labels.data == 3).all()


SPACING_MM = (1.0, 0.5, 2.0)


def every_third(axis: int) -> np.ndarray:
    labels = np.zeros((12, 12, 12), np.uint8)
    moved = np.moveaxis(labels, axis, 0)
    moved[1:11:3, 3:9, 3:9] = 1
    return labels


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_third_slice_is_found_with_its_thickness(axis: int) -> None:
    drawn = drawn_slices(every_third(axis), SPACING_MM)
    assert drawn is not None
    assert (drawn.axis, drawn.places.tolist(), drawn.total) == (axis, [1, 4, 7, 10], 12)
    assert drawn.spacing_mm(SPACING_MM)[axis] == pytest.approx(3 * SPACING_MM[axis])
    assert drawn.alone(every_third(axis)).shape[axis] == 4


def test_the_note_says_it_plainly() -> None:
    drawn = drawn_slices(every_third(2), SPACING_MM)
    assert drawn is not None
    assert drawn.note == (
        "the truth is labelled on 4 slices of 12 along its third axis: "
        "measured on these alone, as 6 mm thick"
    )


def test_what_a_prediction_has_between_is_blanked() -> None:
    drawn = drawn_slices(every_third(1), SPACING_MM)
    assert drawn is not None
    blanked = drawn.blank_between(np.full((12, 12, 12), 5, np.uint8))
    assert np.flatnonzero(blanked.any((0, 2))).tolist() == [1, 4, 7, 10]


def test_a_whole_truth_is_whole_also_with_gaps_between_structures() -> None:
    labels = np.zeros((40, 12, 12), np.uint8)
    labels[2:8, 3:9, 3:9] = 1
    labels[30:36, 3:9, 3:9] = 2
    assert drawn_slices(labels, SPACING_MM) is None
    assert drawn_slices(np.zeros_like(labels), SPACING_MM) is None


def test_one_slice_of_one_thin_structure_is_whole_and_one_of_many_is_not() -> None:
    labels = np.zeros((12, 12, 12), np.uint8)
    labels[5, 2:9, 2:9] = 1
    assert drawn_slices(labels, SPACING_MM) is None
    labels[5, 2:4, 2:4], labels[5, 6:8, 6:8] = 2, 3
    drawn = drawn_slices(labels, SPACING_MM)
    assert drawn is not None
    assert "a single slice of 12 along its first axis" in drawn.note
