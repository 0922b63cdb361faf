"""Painting of lesions into heads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from benches._painted_lesions import LESION, LesionHead, paint, shapes_of

# A block of white matter in a shell of cortex, with a ventricle in the middle.
_SIZE = 80


def _head() -> LesionHead:
    numbers = np.zeros((_SIZE,) * 3, np.int16)
    numbers[8:-8, 8:-8, 8:-8] = 3
    numbers[12:-12, 12:-12, 12:-12] = 2
    numbers[36:44, 36:44, 36:44] = 4
    brightness = np.zeros(5, np.float32)
    brightness[[2, 3, 4]] = 110, 75, 25
    return LesionHead(numbers, brightness[numbers])


def _ball(shape: int, centre: tuple[int, int, int], radius: float) -> np.ndarray:
    grid = np.indices((shape,) * 3)
    offsets = grid - np.reshape(centre, (3, 1, 1, 1))
    return np.asarray((offsets**2).sum(0) <= radius**2)


def test_each_lesion_of_a_mask_has_its_place_in_the_white_matter():
    mask = _ball(60, (10, 10, 10), 2) | _ball(60, (40, 40, 40), 3)
    # Voxel (40, 40, 40) lies at MNI (0, -19, 13.5): the middle of the white matter.
    origin = np.array([-40.0, -59.0, -26.5])
    shapes = shapes_of(mask, origin)
    assert [int(shape.voxels.sum()) for shape in shapes] == [33, 123]
    np.testing.assert_allclose(shapes[1].centre, 0.5)
    assert (shapes[0].centre < shapes[1].centre).all()


@pytest.mark.parametrize("seed", range(4))
def test_lesions_lie_in_white_matter_and_differ_from_it(seed):
    head = _head()
    # A patient with lesions of 14 mm on all sides of the ventricle.
    mask = np.zeros((_SIZE,) * 3, bool)
    for x, y, z in product((22, 58), repeat=3):
        mask |= _ball(_SIZE, (x, y, z), 7)
    origin = np.array([-40.0, -59.0, -26.5])
    painted = paint(head, [shapes_of(mask, origin)], np.random.default_rng(seed))
    lesion = painted.numbers == LESION
    assert lesion.any()
    in_white = np.mean(head.numbers[lesion] == 2)
    assert in_white > 0.8
    # Far from lesions and borders.
    white = (head.numbers == 2) & ~lesion
    change = painted.image[lesion].mean() / np.median(painted.image[white])
    assert change > 1.1 if painted.contrast == "FLAIR" else change < 0.95


def test_the_same_seed_paints_the_same_scan():
    head = _head()
    shapes = shapes_of(_ball(_SIZE, (22, 40, 40), 5), np.array([-40.0, -59.0, -26.5]))
    one, other = (paint(head, [shapes], np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one.image, other.image)
    np.testing.assert_array_equal(one.numbers, other.numbers)
