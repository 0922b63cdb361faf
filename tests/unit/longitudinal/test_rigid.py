"""Rigid registration of two scans of one head."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.sessions import head_of, pose_of, session_of

from trinat.segmentation.grid import moved
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.participant import image_to_align
from trinat.segmentation.longitudinal.rigid import (
    _likeness,
    _step,
    align,
    is_mirrored,
    mean_pose,
    stretches,
)
from trinat.segmentation.longitudinal.space import (
    SAME_HEAD,
    heads_of,
    participant_space,
)

# Corners of a box in the head, RAS mm.
PLACES = np.array([[x, y, z] for x in (-8, 8) for y in (-8, 8) for z in (-8, 8)])


def image(participant: int, turn_deg: float = 0, shift_mm: float = 0, seed: int = 0):
    pose = pose_of(turn_deg, shift_mm)
    return image_to_align(session_of(head_of(participant), pose, seed))


def off_mm(found: np.ndarray, wanted: np.ndarray) -> float:
    apart = moved(PLACES, found) - moved(PLACES, wanted)
    return float(np.linalg.norm(apart, axis=1).max())


def test_a_head_is_found_where_it_was_turned_and_shifted_to() -> None:
    found = align(image(0), image(0, 6, 2, seed=1))
    assert off_mm(found.matrix, pose_of(6, 2)) < 0.4
    assert found.likeness > SAME_HEAD


def test_the_way_back_is_the_inverse() -> None:
    first, second = image(0), image(0, 6, 2, seed=1)
    there = align(first, second).matrix
    back = align(second, first).matrix
    assert off_mm(there @ back, np.eye(4)) < 0.01


def test_a_step_has_no_more_digits_than_are_the_same_in_each_run() -> None:
    rng = np.random.default_rng(4)
    first = rng.random((6, 7, 8), np.float32)
    second = np.roll(first, 1, axis=0)
    places = np.moveaxis(np.indices(first.shape), 0, -1).reshape(-1, 3)
    is_head = np.ones(first.size, bool)
    twist = _step((first, second), is_head, places - places.mean(axis=0), 1.0)
    assert np.abs(twist).max() > 1e-3
    np.testing.assert_array_equal(twist, twist.round(6))


def test_another_head_is_not_taken_for_the_same() -> None:
    assert align(image(0), image(1, 3, 1)).likeness < SAME_HEAD


def test_a_scan_without_a_head_is_like_no_other() -> None:
    speck = np.zeros((40, 40, 40), np.float32)
    speck[20, 20, 20] = 100
    nothing = image_to_align(Volume(speck, np.eye(4)))
    assert align(nothing, image(0)).likeness == 0
    assert align(image(0), nothing).likeness == 0


def test_specks_in_far_corners_do_not_stop_the_search() -> None:
    """During the search the two images temporarily do not overlap."""
    specks = []
    for start in (3, 34):
        side = slice(start, start + 4)
        values = np.zeros((40, 40, 40), np.float32)
        values[side, side, side] = 100
        specks.append(image_to_align(Volume(values, np.eye(4))))
    assert align(*specks).likeness == 0


def test_an_image_that_is_the_same_everywhere_is_like_no_other() -> None:
    same = np.zeros((2, 2, 2), np.float32)
    other = np.arange(1, 9, dtype=np.float32).reshape(2, 2, 2)
    assert _likeness(same, other) == 0
    assert _likeness(other, other) == pytest.approx(1)


def test_scans_are_grouped_by_the_head_that_they_show() -> None:
    images = [image(0), image(1), image(0, 3, 1, seed=1)]
    assert [head.scans for head in heads_of(images)] == [(0, 2), (1,)]


def test_the_mean_of_two_shifts_is_halfway() -> None:
    there = np.eye(4)
    there[:3, 3] = (4.0, 0.0, -2.0)
    assert mean_pose([np.eye(4), there])[:3, 3] == pytest.approx((2.0, 0.0, -1.0))


def test_both_scans_are_turned_by_half_to_the_participants_space() -> None:
    images = [image(0), image(0, 6, 2, seed=1)]
    space = participant_space(images, heads_of(images)[0].alignments)
    cosines = [(np.trace(pose[:3, :3]) - 1) / 2 for pose in space.poses]
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-9)
    assert all(side % 16 == 0 for side in space.grid.shape)


def lopsided(scale: tuple[float, float, float] = (1, 1, 1)) -> Volume:
    """Return a head of 160 mm with a bright spot on its right, larger by factors along its axes."""
    places = np.moveaxis(np.indices((48, 48, 48)), 0, -1) * 4.0 - 94
    places = places / np.array(scale)

    def ball(centre: tuple[float, ...], radius: float) -> np.ndarray:
        distance = np.linalg.norm(places - np.array(centre), axis=-1)
        return 1 / (1 + np.exp((distance - radius) / 2))

    data = 0.5 * ball((0, 0, 0), 80) + 0.3 * ball((40, 10, 20), 25)
    data = data - 0.3 * ball((-10, -30, -10), 20) + 0.2 * ball((0, 45, 0), 18)
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = -94
    return Volume(data.astype(np.float32), affine)


def test_noise_of_the_background_does_not_hide_which_side_is_which() -> None:
    head = lopsided()
    noise = np.random.default_rng(0).normal(0, 0.05, (2, *head.shape))
    noisy = np.hypot(head.data + noise[0], noise[1]).astype(np.float32)
    true = Volume(noisy, head.affine)
    exchanged = Volume(np.ascontiguousarray(noisy[::-1]), head.affine)
    assert not is_mirrored(head, true, np.eye(4))
    assert is_mirrored(head, exchanged, align(head, exchanged, finest_mm=4).matrix)


@pytest.mark.parametrize(
    "scale", [(1, 1, 1), (1.02, 1.02, 1.02), (1, 1, 1.05), (0.98, 1, 1)]
)
def test_the_size_of_a_head_beside_another_is_measured(
    scale: tuple[float, float, float],
) -> None:
    first, second = lopsided(), lopsided(scale)
    aligned = align(first, second, finest_mm=4)
    found = stretches(first, second, aligned.matrix)
    np.testing.assert_allclose(found, sorted(scale, reverse=True), atol=0.006)


@pytest.mark.slow
@pytest.mark.important
def test_the_size_that_most_scans_have_is_the_head_s() -> None:
    heads = heads_of([lopsided((1, 1, 1.05)), lopsided(), lopsided()])
    assert heads[0].stretches_percent == pytest.approx((5, 0, 0), abs=0.6)


@pytest.mark.slow
@pytest.mark.important
def test_a_mirrored_scan_is_no_scan_of_the_head() -> None:
    head = lopsided()
    exchanged = Volume(np.ascontiguousarray(head.data[::-1]), head.affine)
    heads = heads_of([head, exchanged, lopsided((1.03, 1, 1))])
    assert [found.scans for found in heads] == [(0, 2), (1,)]
    assert [found.is_mirrored for found in heads] == [False, True]
    assert heads[0].stretches_percent == pytest.approx((0, 3), abs=0.6)
