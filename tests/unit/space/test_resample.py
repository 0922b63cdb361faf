"""Images, labels and probabilities from one grid to another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nibabel.nifti1 import Nifti1Image
from nibabel.processing import resample_from_to
from scipy.spatial.transform import Rotation

from trinat.segmentation.errors import LabelError
from trinat.segmentation.grid import Grid, occupied_box
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.interpolation import sharpened
from trinat.segmentation.space.resample import (
    resample_image,
    resample_labels,
    resample_probabilities,
)


def grid_map(
    scale: tuple[float, float, float] = (1, 1, 1),
    start: tuple[float, float, float] = (0, 0, 0),
    shape: tuple[int, int, int] = (4, 4, 4),
) -> GridMap:
    matrix = np.diag([*scale, 1.0])
    matrix[:3, 3] = start
    return GridMap(matrix, shape)


def oblique_map(
    shape: tuple[int, int, int], step: float = 1.0, degrees: float = 20
) -> GridMap:
    """Return a map turned about the middle of a source of 24 voxels a side."""
    matrix = np.eye(4)
    turn = Rotation.from_euler(
        "xyz", [degrees, -degrees / 2, degrees / 3], degrees=True
    )
    matrix[:3, :3] = turn.as_matrix() * step
    matrix[:3, 3] = np.full(3, 11.5) - matrix[:3, :3] @ ((np.array(shape) - 1) / 2)
    return GridMap(matrix, shape)


def smooth_noise(shape: tuple[int, int, int] = (24, 24, 24)) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    noise = np.random.default_rng(5).normal(size=shape)
    return gaussian_filter(noise, 2).astype(np.float32)


def one_line(values: list[float], dtype: type = np.float32) -> np.ndarray:
    """Return a volume that varies along its first axis only."""
    return np.ascontiguousarray(
        np.broadcast_to(np.array(values, dtype)[:, None, None], (len(values), 4, 4))
    )


def test_a_map_between_grids_goes_from_target_to_source_voxels() -> None:
    source = np.diag([2.0, 2, 2, 1])
    source[:3, 3] = 10
    between = GridMap.between(Grid((3, 3, 3), source), Grid((3, 3, 3), np.eye(4)))
    # Target voxel (14, 10, 10) lies at 14, 10, 10 mm: source voxel (2, 0, 0).
    np.testing.assert_allclose(between.matrix @ [14, 10, 10, 1], [2, 0, 0, 1])


def test_values_between_voxels_are_weighted_by_nearness() -> None:
    moved = resample_image(one_line([0, 8, 4, 0]), grid_map(start=(0.25, 0, 0)))
    # 3/4 of the voxel before, 1/4 of the one after; behind the last lies 0.
    np.testing.assert_allclose(moved[:, 1, 1], [2, 7, 3, 0])


@pytest.mark.parametrize(
    ("to", "variance"),
    [
        (grid_map(), [0, 0, 0]),
        (grid_map(start=(3, -2, 0)), [0, 0, 0]),
        # Half way, 1/2 (1 - 1/2); a quarter, 1/4 (1 - 1/4).
        (grid_map(start=(0.5, 0.25, 0)), [1 / 4, 3 / 16, 0]),
        # Every other voxel is half way.
        (grid_map((0.5, 1, 1), shape=(400, 4, 4)), [1 / 8, 0, 0]),
        # Two points a voxel, both of them at voxels of the source.
        (grid_map((2, 1, 1), (1.5, 0, 0)), [0, 0, 0]),
        # The integral of f (1 - f) from 0 to 1.
        (oblique_map((50, 50, 50)), [1 / 6, 1 / 6, 1 / 6]),
    ],
)
def test_how_much_interpolation_blurs(to: GridMap, variance: list[float]) -> None:
    np.testing.assert_allclose(to.blur, variance, atol=0.005)


def test_a_scan_stays_as_sharp_as_it_was() -> None:
    squares = one_line([0, 1, 4, 9, 16, 25])
    half = grid_map(start=(0.5, 0, 0), shape=(5, 4, 4))
    # A mean of two squares is 1/4 more than the square of what lies between them.
    between = resample_image(squares, half)
    np.testing.assert_allclose(between[:, 1, 1], [0.5, 2.5, 6.5, 12.5, 20.5])
    # Half of 1/4 of the second difference, 2, is taken off before. The edges have none.
    sharp = resample_image(squares, half, stay_sharp=True)
    np.testing.assert_allclose(sharp[1:4, 1, 1], [2.25, 6.25, 12.25])


def test_sharpening_keeps_what_is_flat_and_the_sum() -> None:
    askew = oblique_map((24, 24, 24))
    even = np.full((60, 60, 60), 3, np.float32)
    sharp_and_even = resample_image(even, askew, stay_sharp=True)
    np.testing.assert_allclose(sharp_and_even, resample_image(even, askew))
    image = torch.from_numpy(smooth_noise())
    sharp = sharpened(image, askew)
    assert float(sharp.std()) > float(image.std())
    np.testing.assert_allclose(float(sharp.sum()), float(image.sum()), rtol=1e-3)


def test_a_scan_that_needs_no_interpolation_is_copied() -> None:
    data = np.random.default_rng(1).random((5, 6, 7)).astype(np.float32)
    same = grid_map(shape=(5, 6, 7))
    np.testing.assert_array_equal(resample_image(data, same, stay_sharp=True), data)


def test_down_sampling_averages_what_a_voxel_covers() -> None:
    fine = one_line([0, 0, 8, 0, 0, 8, 8, 8])
    # Voxels of two, centred on 1.5, 3.5, 5.5: two points each, so 1/4, 1/4 + 1/4 and so on.
    coarse = resample_image(fine, grid_map((2, 1, 1), (1.5, 0, 0), (3, 4, 4)))
    # Points at 1 and 2, at 3 and 4, at 5 and 6, all of them voxels.
    np.testing.assert_allclose(coarse[:, 1, 1], [4, 0, 8])


@pytest.mark.parametrize("mm", [0.8, 0.8 * (1 - 1e-7), 0.8 * (1 + 1e-7)])
def test_voxels_of_four_fifths_are_not_averaged_however_rounded(mm: float) -> None:
    assert [len(points) for points in grid_map((1 / mm, 1, 1)).points] == [1, 1, 1]


def test_down_sampling_does_not_alias() -> None:
    stripes = one_line([0, 1] * 16)
    coarse = resample_image(stripes, grid_map((2, 1, 1), (0, 0, 0), (16, 4, 4)))
    np.testing.assert_allclose(coarse[1:, 1, 1], 0.5)


@pytest.mark.parametrize("degrees", [0, 20])
@pytest.mark.parametrize("step", [0.7, 1.0])
def test_images_agree_with_nibabels_resampling(degrees: float, step: float) -> None:
    image = smooth_noise()
    to = oblique_map((20, 22, 24), step, degrees)
    theirs = resample_from_to(
        Nifti1Image(image, np.eye(4)), (to.shape, to.matrix), order=1
    ).get_fdata()
    ours = resample_image(image, to)
    inner = (slice(4, -4),) * 3
    np.testing.assert_allclose(ours[inner], theirs[inner], atol=1e-5)


def test_the_aligned_way_and_the_askew_way_agree() -> None:
    image = smooth_noise()
    straight = oblique_map((12, 12, 12), 1.9, 0)
    askew = GridMap(straight.matrix.copy(), straight.shape)
    askew.matrix[0, 1] += 0.01
    assert straight.source_axes is not None
    assert askew.source_axes is None
    np.testing.assert_allclose(
        resample_image(image, straight), resample_image(image, askew), atol=0.02
    )


@pytest.mark.parametrize("flip", [1, -1])
def test_axes_that_are_only_reordered_keep_every_bit(flip: int) -> None:
    data = np.random.default_rng(1).integers(-300, 300, (5, 6, 7)).astype(np.int16)
    matrix = np.zeros((4, 4))
    # Target axes 0, 1, 2 run along source axes 2, 0 and 1, the first perhaps backwards.
    matrix[2, 0], matrix[0, 1], matrix[1, 2], matrix[3, 3] = flip, 1, 1, 1
    matrix[2, 3] = 0 if flip > 0 else 6
    moved = resample_labels(data, GridMap(matrix, (7, 5, 6)))
    np.testing.assert_array_equal(moved, data.transpose(2, 0, 1)[::flip])
    assert moved.dtype == np.int16


def test_whole_steps_cut_and_pad() -> None:
    moved = resample_labels(one_line([1, 2, 3, 4], np.uint8), grid_map(start=(2, 0, 0)))
    assert moved[:, 0, 0].tolist() == [3, 4, 0, 0]
    moved = resample_labels(
        one_line([1, 2, 3, 4], np.uint8), grid_map(start=(-3, 0, 0))
    )
    assert moved[:, 0, 0].tolist() == [0, 0, 0, 1]
    assert not resample_labels(
        one_line([1, 2], np.uint8), grid_map(start=(9, 0, 0))
    ).any()


def test_reordering_takes_arrays_that_run_backwards() -> None:
    data = np.random.default_rng(1).random((5, 6, 7)).astype(np.float32)[::-1, :, ::-1]
    kept = data.copy()
    half = grid_map(start=(0.5, 0, 0), shape=(5, 6, 7))
    np.testing.assert_allclose(resample_image(data, half), resample_image(kept, half))


def dense_vote(data: np.ndarray, to: GridMap) -> np.ndarray:
    """Return the argmax over each label's own interpolated indicator, by nibabel.

    The definition.
    """
    names = np.unique(np.append(data, 0))
    shares = [
        resample_from_to(
            Nifti1Image((data == name).astype(np.float64), np.eye(4)),
            (to.shape, to.matrix),
            order=1,
            mode="constant",
            cval=float(name == 0),
        ).get_fdata()
        for name in names
    ]
    return names[np.argmax(shares, axis=0)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
@pytest.mark.parametrize("degrees", [0, 20])
def test_labels_are_the_argmax_of_their_interpolated_indicators(
    dtype: type, degrees: float
) -> None:
    numbers = np.array([0, 2, 41, 77, 250 if dtype == np.uint8 else 2035], dtype)
    noise = smooth_noise()
    data = numbers[np.digitize(noise, np.quantile(noise, [0.2, 0.4, 0.6, 0.8]))]
    data[[0, -1]] = data[:, [0, -1]] = data[:, :, [0, -1]] = 0
    to = oblique_map((22, 22, 22), 0.93, degrees)
    ours = resample_labels(data, to)
    assert ours.dtype == dtype
    # Near ties, which a thousandth of a voxel decides, may be resolved differently.
    assert (ours != dense_vote(data, to)).mean() < 2e-3


def test_labels_beyond_any_table_are_ranked_too() -> None:
    data = one_line([0, 70_000, -5, 0], np.int32)
    moved = resample_labels(data, grid_map(start=(0.25, 0, 0)))
    assert moved[:, 1, 1].tolist() == [0, 70_000, -5, 0]


def test_label_numbers_may_be_floats() -> None:
    moved = resample_labels(
        one_line([0, 41, 2, 0], np.float64), grid_map(start=(0.25, 0, 0))
    )
    assert moved[:, 1, 1].tolist() == [0, 41, 2, 0]


def test_what_has_thousands_of_labels_is_no_label_map() -> None:
    image = np.arange(20**3, dtype=np.int32).reshape(20, 20, 20)
    with pytest.raises(LabelError, match="8000 different labels"):
        resample_labels(image, grid_map(start=(0.5, 0, 0)))


def test_points_just_between_labels_go_to_either_side_in_turn() -> None:
    wall = one_line([0, 5, 5, 0], np.uint8)
    moved = resample_labels(wall, grid_map(start=(0.5, 0, 0), shape=(3, 4, 4)))
    assert (moved[1] == 5).all()
    for face in (moved[0], moved[2]):
        # At the edges of the volume a second tie comes in.
        inner = face[1:3, 1:3]
        assert (inner == 5).sum() == 2
        assert inner[0, 0] == inner[1, 1] != inner[0, 1] == inner[1, 0]


def test_votes_that_are_equal_even_so_go_to_the_lowest_label() -> None:
    # Samples on the four inner voxels: what a nudge takes from one 7 or 3 it gives to the next.
    fine = one_line([3, 7, 3, 7, 3, 7], np.uint8)
    coarse = resample_labels(fine, grid_map((4, 1, 1), (2.5, 0, 0), (1, 4, 4)))
    assert (coarse[:, 1:3, 1:3] == 3).all()


def test_down_sampled_labels_go_to_the_majority_of_what_a_voxel_covers() -> None:
    fine = one_line([1, 1, 1, 2, 2, 2, 1, 2], np.uint8)
    # Two voxels of four, centred between the second and third of each.
    coarse = resample_labels(fine, grid_map((4, 1, 1), (1.5, 0, 0), (2, 4, 4)))
    # A sample at the centre alone would have given a tie in the first one's right neighbour.
    assert coarse[:, 1, 1].tolist() == [1, 2]


def test_a_map_without_labels_stays_empty() -> None:
    empty = np.zeros((5, 5, 5), np.uint8)
    assert not resample_labels(empty, grid_map(start=(0.5, 0, 0))).any()


def one_hot(labels: np.ndarray, count: int) -> np.ndarray:
    return np.stack([labels == k for k in range(count)])


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("degrees", [0, 20])
def test_probabilities_are_interpolated_before_the_class_is_chosen(
    kind: type, degrees: float
) -> None:
    noise = np.stack(
        [smooth_noise((24, 24, 24)), *np.random.default_rng(2).random((3, 24, 24, 24))]
    )
    exps = np.exp(2 * noise)
    probabilities = (exps / exps.sum(axis=0)).astype(kind)
    to = oblique_map((16, 15, 14), 0.8, degrees)
    shares = np.stack([resample_image(p, to) for p in probabilities])
    # Beyond the edge is background, by as much as the rest falls short of 1.
    shares[0] += 1 - resample_image(np.ones((24, 24, 24)), to)
    truth = np.argmax(shares, axis=0)
    ours = resample_probabilities(probabilities, to)
    assert ours.dtype == np.uint8
    np.testing.assert_array_equal(ours, truth)
    torch_gives = resample_probabilities(torch.from_numpy(probabilities), to)
    np.testing.assert_array_equal(torch_gives, truth)


def test_a_class_counts_where_it_is_too_weak_to_win_by_itself() -> None:
    likely = one_line([0, 0.9, 0.45, 0.1, 0])
    moved = resample_probabilities(
        np.stack([1 - likely, likely]), grid_map((0.25, 1, 1), (1, 0, 0), (6, 4, 4))
    )
    # 0.9, 0.7875, 0.675, 0.5625 and then 0.45: above a half up to three quarters of the way.
    assert moved[:, 1, 1].tolist() == [1, 1, 1, 1, 0, 0]


def test_certain_probabilities_give_what_labels_give() -> None:
    labels = np.digitize(smooth_noise(), [-0.05, 0.05]).astype(np.uint8)
    to = oblique_map((20, 20, 20), 0.9)
    probable = resample_probabilities(one_hot(labels, 3).astype(np.float16), to)
    # Except near ties, which a thousandth of a voxel decides.
    assert (probable != resample_labels(labels, to)).mean() < 2e-3


def test_unknown_places_and_the_world_outside_are_class_0() -> None:
    probabilities = np.zeros((3, 4, 4, 4), np.float32)
    probabilities[2, :2] = 1
    classes = resample_probabilities(
        probabilities, grid_map(start=(-2, 0, 0), shape=(8, 4, 4))
    )
    assert classes[:, 0, 0].tolist() == [0, 0, 2, 2, 0, 0, 0, 0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_classes_come_back_from_their_own_corners(order: str) -> None:
    labels = np.zeros((9, 10, 11), np.uint8)
    labels[1:4, 2:5, 7:10] = 1
    labels[5:8, 6:9, 1:4] = 3
    # In order F the classes are innermost, as fused probabilities have them.
    probabilities = np.asarray(one_hot(labels, 4).astype(np.float16), order=order)
    to = grid_map((0.5, 1, 1), shape=(18, 10, 11))
    np.testing.assert_array_equal(
        resample_probabilities(probabilities, to)[::2], labels
    )


def test_the_box_around_what_is_set() -> None:
    mask = np.zeros((6, 7, 8), bool)
    mask[2, 3, 4] = mask[4, 3, 7] = True
    assert occupied_box(mask) == (slice(2, 5), slice(3, 4), slice(4, 8))
    assert occupied_box(np.zeros((2, 2, 2), bool)) == (slice(0, 0),) * 3


def test_nothing_is_changed_in_place() -> None:
    data = np.digitize(smooth_noise(), [0]).astype(np.uint8)
    kept = data.copy()
    to = oblique_map((20, 20, 20))
    before = to.matrix.copy()
    resample_labels(data, to)
    resample_image(data, to)
    resample_probabilities(one_hot(data, 2).astype(np.float32), to)
    np.testing.assert_array_equal(data, kept)
    np.testing.assert_array_equal(to.matrix, before)
