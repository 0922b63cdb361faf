"""FreeSurfer numbers to classes of a scheme and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.numbers import QUICKNAT, fold, fs
from scipy import ndimage
from scipy.ndimage import distance_transform_edt

from trinat.segmentation.errors import LabelError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.folding import FREESURFER, shipped_targets
from trinat.segmentation.labels.scheme import load_scheme


def test_every_class_survives_the_way_there_and_back() -> None:
    numbers = QUICKNAT.fs_ids.astype(np.int32)
    assert fold(*numbers.tolist()) == list(range(33))
    assert QUICKNAT.to_freesurfer(np.arange(33, dtype=np.uint8)).dtype == np.int16
    np.testing.assert_array_equal(QUICKNAT.to_freesurfer(np.arange(33)), numbers)


@pytest.mark.parametrize(
    ("number", "target"),
    [
        (1000, 3), (1035, 3), (1999, 3), (2000, 42), (2035, 42), (2999, 42),
        (30100, 42), (30101, 3), (30206, 42), (30207, 3),
        (78, 2), (79, 41), (31, 4), (63, 43),
        (30, 0), (62, 0), (85, 0), (72, 0), (80, 0), (81, 0), (82, 0),
    ],
)  # fmt: skip
def test_a_number_outside_the_scheme_folds_into_its_structure(
    number: int, target: int
) -> None:
    assert fs(number) == [target]


def test_the_folding_table_holds_nothing_more() -> None:
    single = {30, 31, 62, 63, 72, 77, 78, 79, 80, 81, 82, 85, 251, 252, 253, 254, 255}
    manual = set(load_scheme("neuromorphometrics").fs_ids[31:].tolist())
    assert len(manual) == 98
    assert set(shipped_targets(FREESURFER)) == single | set(range(1000, 3000)) | manual


@pytest.mark.parametrize("number", [77, 251, 252, 253, 254, 255])
def test_a_sideless_number_joins_the_nearest_white_matter(number: int) -> None:
    assert fs(2, number, 0, 41) == [2, 2, 0, 41]
    assert fs(2, 0, number, 41) == [2, 0, 41, 41]


def test_between_equal_distances_sides_alternate_from_voxel_to_voxel() -> None:
    assert fs(41, 0, 77, 0, 2) == [41, 0, 2, 0, 2]
    assert fs(0, 41, 0, 77, 0, 2) == [0, 41, 0, 41, 0, 2]


def test_a_symmetric_callosum_is_divided_into_halves() -> None:
    # White matter of 10x10 voxels on each side, between them five planes of callosum.
    numbers = np.repeat([2, 251, 251, 251, 251, 251, 41], 100).reshape(7, 10, 10)
    classes = QUICKNAT.from_freesurfer(numbers)[1:6]
    assert (QUICKNAT.to_freesurfer(classes) == 2).sum() == 250
    assert (QUICKNAT.to_freesurfer(classes) == 41).sum() == 250


def test_rounding_does_not_break_a_tie() -> None:
    # At 0.1 mm, 7 - 4 and 4 - 1 voxels differ in the last bit of their distance.
    assert fs(0, 2, 0, 0, 251, 0, 0, 41, spacing_mm=(0.1, 1.0, 1.0))[4] == 2
    assert fs(2, 0, 0, 251, 0, 0, 41, spacing_mm=(0.1, 1.0, 1.0))[3] == 41


def test_white_matter_of_a_known_side_counts_as_near() -> None:
    assert fs(78, 77, 0, 41)[1] == 2


def test_nearest_agrees_with_a_distance_map() -> None:
    rng = np.random.default_rng(5)
    numbers = rng.choice(
        [0, 2, 41, 77, 253], (24, 20, 18), p=[0.9, 0.02, 0.02, 0.03, 0.03]
    )
    spacing = (0.8, 1.0, 2.5)
    to_left = distance_transform_edt(numbers != 2, sampling=spacing)
    to_right = distance_transform_edt(numbers != 41, sampling=spacing)
    sideless = np.isin(numbers, [77, 253])
    is_even = np.indices(numbers.shape).sum(axis=0) % 2 == 0
    is_tie = np.isclose(to_left, to_right)
    joins_left = np.where(is_tie, is_even, to_left < to_right)
    expected = np.where(joins_left, 1, 19)[sideless]
    found = QUICKNAT.from_freesurfer(numbers, spacing_mm=spacing)[sideless]
    np.testing.assert_array_equal(found, expected)
    assert set(found.tolist()) == {1, 19}


def test_sideless_voxels_without_any_white_matter_are_refused() -> None:
    with pytest.raises(
        LabelError, match="2 voxels belong to the nearer of FreeSurfer's 2 and 41"
    ):
        fold(3, 251, 252)


def test_one_sides_white_matter_is_enough() -> None:
    assert fs(251, 0, 41) == [41, 0, 41]


def test_unknown_numbers_are_listed_with_their_counts() -> None:
    with pytest.raises(LabelError) as refused:
        fold(0, 2, 99, 99, 99, 6, where="scan.mgz")
    assert str(refused.value) == (
        "scan.mgz: has label numbers that are not in quicknat33: 6 (1 voxel), 99 (3 voxels): "
        "map them to known numbers, or ignore them"
    )


@pytest.mark.parametrize("number", [-1, 3000, 2**31 - 1, -(2**31)])
def test_numbers_beyond_the_table_are_unknown_too(number: int) -> None:
    with pytest.raises(
        LabelError, match=rf"are not in quicknat33: {number} \(1 voxel\)"
    ):
        fold(0, number)


@pytest.mark.parametrize(("count", "is_scan"), [(200, False), (201, True)])
def test_a_scan_in_place_of_labels_is_told_by_its_many_numbers(
    count: int, is_scan: bool
) -> None:
    with pytest.raises(LabelError) as refused:
        fold(*range(20_000, 20_000 + count))
    assert ("give a label map, not a scan" in str(refused.value)) == is_scan


def test_a_long_list_of_unknown_numbers_is_cut() -> None:
    with pytest.raises(LabelError, match=r"120 \(1 voxel\) and 5 more"):
        fold(*range(101, 126))


def test_ignored_numbers_become_background() -> None:
    assert fs(2, 99, 12175, ignore=[99, 12175]) == [2, 0, 0]


def test_mapped_numbers_follow_their_target() -> None:
    assert fs(136, 12, 77, 41, extra={136: 4, 12: 51, 77: 1001}) == [4, 51, 3, 41]


def test_a_number_mapped_to_a_sideless_one_finds_its_side() -> None:
    assert fs(2, 25, 0, 41, extra={25: 77}) == [2, 2, 0, 41]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": {99: 98}}, "99 is mapped to 98, which is not a label of quicknat33"),
        ({"extra": {99: 2}, "ignore": [99]}, "both mapped and ignored"),
        ({"ignore": [-3]}, "-3 is no label number"),
        ({"extra": {2**40: 2}}, "is no label number"),
    ],
)
def test_impossible_requests_are_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        fold(0, **options)


def test_fractions_are_refused() -> None:
    with pytest.raises(LabelError, match="integers, not float32"):
        QUICKNAT.from_freesurfer(np.zeros((2, 2, 2), np.float32))
    with pytest.raises(LabelError, match="integers, not float64"):
        QUICKNAT.to_freesurfer(np.zeros(3))


@pytest.mark.parametrize("bad", [-1, 33])
def test_indices_beyond_the_scheme_are_refused(bad: int) -> None:
    with pytest.raises(LabelError, match="no classes of quicknat33"):
        QUICKNAT.to_freesurfer(np.array([0, bad]))


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_integer_type_and_memory_order_will_do(dtype: str, order: str) -> None:
    numbers = np.random.default_rng(0).choice([0, 2, 41, 77, 17, 31], (5, 6, 7))
    given = np.array(numbers, dtype, order=order)  # type: ignore[call-overload]
    kept = given.copy()
    classes = QUICKNAT.from_freesurfer(given)
    assert classes.dtype == np.uint8
    np.testing.assert_array_equal(classes, QUICKNAT.from_freesurfer(numbers))
    np.testing.assert_array_equal(given, kept)


def test_an_empty_array_stays_empty() -> None:
    assert QUICKNAT.from_freesurfer(np.zeros((0, 3, 3), np.int16)).shape == (0, 3, 3)


@pytest.mark.parametrize("name", ["aseg.mgz", "aparc+aseg.mgz"])
def test_freesurfers_own_maps_fold_and_left_is_on_the_left(
    dev_data: Path, name: str
) -> None:
    path = dev_data / "freesurfer" / "sub-01" / "mri" / name
    volume = Volume.read(path, labels=True)
    classes = QUICKNAT.from_freesurfer(volume.data, spacing_mm=volume.spacing_mm)
    assert np.flatnonzero(np.bincount(classes.ravel())).tolist() == list(range(33))
    ones = np.broadcast_to(1, classes.shape)
    centres = ndimage.center_of_mass(ones, classes, range(33))
    to_right_mm = np.array(centres) @ volume.affine[0, :3]
    for label in QUICKNAT.labels:
        if label.side == "left" and label.partner is not None:
            left, right = to_right_mm[[label.index, label.partner]]
            assert left < right - 3, label.name
