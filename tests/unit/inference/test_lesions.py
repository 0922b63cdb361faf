"""Lesions of handwritten maps: numbers, volumes, places, regions and grades."""

from __future__ import annotations

import numpy as np
import pytest

from trinat.segmentation.inference.lesions import Lesions, find_lesions
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme

STRUCTURES = load_scheme("quicknat33")
# Voxels of 1 x 1 x 2 mm; voxel (0, 0, 0) lies at (-30, -20, -10) mm.
AFFINE = np.array([[1, 0, 0, -30], [0, 1, 0, -20], [0, 0, 2, -10], [0, 0, 0, 1.0]])
# Boxes of voxels by the place of their lowest corner: a lesion and its region.
VENTRICULAR = (slice(20, 24), slice(25, 28), slice(10, 12))
CORTICAL = (slice(5, 7), slice(10, 12), slice(20, 21))
DEEP = (slice(42, 47), slice(15, 20), slice(30, 34))
CEREBELLAR = (slice(15, 17), slice(10, 12), slice(1, 2))


def index(number: int) -> int:
    """Return the class of a FreeSurfer number."""
    return STRUCTURES.find(number).index


def head() -> Volume:
    """Return white matter with cortex below x = 5, a ventricle, and a cerebellum below z = 4."""
    classes = np.zeros((60, 40, 40), np.uint8)
    classes[:30] = index(41)
    classes[30:] = index(2)
    classes[:5] = index(42)
    classes[24:36, 15:35, 8:20] = index(43)
    classes[:, :, :4] = index(46)
    return Volume(classes, AFFINE)


def found(
    *boxes: tuple[slice, slice, slice],
    structures: Volume | None = None,
    is_flair: bool = True,
    smallest_mm3: float = 3.0,
) -> Lesions:
    """Return the lesions of a map that is 0.8 in boxes of voxels and 0.3 elsewhere."""
    probability = np.full((60, 40, 40), 0.3, np.float32)
    for box in boxes:
        probability[box] = 0.8
    return find_lesions(
        Volume(probability, AFFINE),
        head() if structures is None else structures,
        STRUCTURES,
        is_flair=is_flair,
        smallest_mm3=smallest_mm3,
    )


def test_each_lesion_has_its_volume_and_place():
    lesions = found(CORTICAL, DEEP, VENTRICULAR)
    assert [lesion.number for lesion in lesions.lesions] == [1, 2, 3]
    # 5 x 5 x 4, 4 x 3 x 2 and 2 x 2 x 1 voxels of 2 mm³.
    assert [lesion.volume_mm3 for lesion in lesions.lesions] == [200, 48, 8]
    # The middle voxel of the first is (44, 17, 31.5).
    assert lesions.lesions[0].centroid_mm == pytest.approx((14, -3, 53))
    assert lesions.lesions[0].probability == pytest.approx(0.8)
    assert lesions.count == 3
    assert lesions.volume_mm3 == 256


def test_a_lesion_belongs_to_a_region():
    lesions = found(CORTICAL, DEEP, VENTRICULAR, CEREBELLAR)
    assert [lesion.region for lesion in lesions.lesions] == [
        "deep",
        "periventricular",
        "juxtacortical",
        "infratentorial",
    ]


@pytest.mark.parametrize("thick_mm", [1, 2.5, 6.5])
@pytest.mark.parametrize(
    ("slices", "region"),
    [
        # The ventricle ends below slice 20, the cortex begins at slice 36.
        (slice(20, 22), "periventricular"),
        (slice(34, 36), "juxtacortical"),
        (slice(23, 33), "deep"),
    ],
)
def test_a_lesion_in_the_next_slice_touches_however_thick_slices_are(
    thick_mm: float, slices: slice, region: str
) -> None:
    affine = np.diag([1, 1, thick_mm, 1])
    structures = head()
    structures.data[:, :, 36:] = index(3)
    probability = np.zeros(structures.shape, np.float32)
    probability[28:32, 20:24, slices] = 0.8
    lesions = find_lesions(
        Volume(probability, affine),
        Volume(structures.data, affine),
        STRUCTURES,
        is_flair=True,
    )
    assert [lesion.region for lesion in lesions.lesions] == [region]


def test_a_lesion_that_the_model_took_for_cortex_is_deep():
    structures = head()
    structures.data[DEEP] = index(3)
    (lesion,) = found(DEEP, structures=structures).lesions
    assert lesion.region == "deep"


def test_the_map_has_the_numbers_of_the_lesions_and_the_mask_has_ones():
    lesions = found(CORTICAL, DEEP)
    assert np.unique(lesions.numbers.data[DEEP]) == [1]
    assert np.unique(lesions.numbers.data[CORTICAL]) == [2]
    assert lesions.mask.data.sum() == 100 + 4
    assert lesions.mask.data.dtype == np.uint8
    np.testing.assert_array_equal(lesions.mask.affine, AFFINE)


def test_voxels_that_touch_at_a_corner_are_one_lesion():
    one = (slice(40, 42), slice(10, 12), slice(30, 32))
    other = (slice(42, 44), slice(12, 14), slice(32, 34))
    (lesion,) = found(one, other).lesions
    assert lesion.volume_mm3 == 2 * 8 * 2


def test_lesions_in_slices_that_are_too_thin_are_to_be_looked_at():
    probability = Volume(np.zeros((60, 40, 40), np.float32), AFFINE)
    lesions = find_lesions(
        probability, head(), STRUCTURES, is_flair=True, is_too_thin=True
    )
    assert (lesions.grade, len(lesions.reasons)) == ("look", 1)


def test_a_scan_that_could_not_be_searched_is_rejected() -> None:
    probability = Volume(np.zeros((60, 40, 40), np.float32), AFFINE)
    lesions = find_lesions(
        probability, head(), STRUCTURES, is_flair=False, is_searched=False
    )
    assert lesions.grade == "reject"
    # It is not known whether the scan is a FLAIR.
    assert len(lesions.reasons) == 1
    assert "FLAIR" not in lesions.reasons[0]


@pytest.mark.parametrize(("smallest_mm3", "count"), [(8, 1), (8.1, 0)])
def test_smaller_lesions_are_left_out(smallest_mm3, count):
    assert found(CORTICAL, smallest_mm3=smallest_mm3).count == count


def test_without_lesions_there_are_none():
    lesions = found()
    assert (lesions.count, lesions.volume_mm3, lesions.grade) == (0, 0, "pass")
    assert not lesions.mask.data.any()


# A lesion on each side, together more than a ml.
LARGE_LEFT = (slice(42, 50), slice(10, 20), slice(25, 35))
LARGE_RIGHT = (slice(10, 20), slice(10, 20), slice(25, 35))


@pytest.mark.parametrize(
    ("boxes", "is_flair", "grade"),
    [
        ((LARGE_LEFT, LARGE_RIGHT), True, "pass"),
        ((LARGE_LEFT, LARGE_RIGHT), False, "look"),
        # On one side.
        ((LARGE_LEFT,), True, "look"),
        # In one slice: 50 x 30 voxels.
        (((slice(6, 56), slice(2, 32), slice(30, 31)),), True, "look"),
        # The white matter has 55 x 40 x 36 voxels without 12 x 20 x 12: 16 % of it, and 39 %.
        (((slice(6, 56), slice(0, 40), slice(24, 30)),), True, "look"),
        (((slice(6, 56), slice(0, 40), slice(24, 39)),), True, "reject"),
    ],
)
def test_implausible_lesions_are_doubted(boxes, is_flair, grade):
    lesions = found(*boxes, is_flair=is_flair)
    assert len(lesions.reasons) == (0 if grade == "pass" else 1)
    assert lesions.grade == grade


@pytest.mark.parametrize(("first", "second"), [(2, 41), (41, 2)])
def test_a_lesion_up_to_the_midline_is_on_one_side_in_the_mirror_image_too(
    first: int, second: int
) -> None:
    classes = np.zeros((61, 40, 40), np.uint8)
    classes[:30] = index(first)
    classes[31:] = index(second)
    probability = np.zeros(classes.shape, np.float32)
    # Column 30 is as near to the first side as to the second.
    probability[20:31, 10:20, 10:20] = 0.8
    lesions = find_lesions(
        Volume(probability, np.eye(4)),
        Volume(classes, np.eye(4)),
        STRUCTURES,
        is_flair=True,
    )
    assert (lesions.grade, len(lesions.reasons)) == ("look", 1)


def test_the_side_of_a_lesion_is_the_nearer_one_in_millimetres() -> None:
    affine = np.diag([1, 1, 6.5, 1])
    classes = np.zeros((60, 40, 20), np.uint8)
    classes[:30, :, 10:] = index(2)
    classes[35:] = index(41)
    probability = np.zeros(classes.shape, np.float32)
    probability[40:50, 10:20, 5:9] = 0.8
    # The left white matter is 1 slice, 6.5 mm, away, and the right one 5 and 6 voxels of 1 mm.
    probability[29:31, 10:20, 9] = 0.8
    lesions = find_lesions(
        Volume(probability, affine),
        Volume(classes, affine),
        STRUCTURES,
        is_flair=True,
    )
    assert (lesions.grade, len(lesions.reasons)) == ("look", 1)
