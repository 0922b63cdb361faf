"""Axes of a scan in any order and direction give the same working grid and restored maps.

The grid is placed by the head, so its voxels correspond to the same voxels of the scan.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from helpers.placed import affine_of, squared_radius, world_of

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.conform import (
    Conformed,
    conform,
    restore,
    restore_probabilities,
)
from trinat.segmentation.space.views import reoriented

ORDERS = [
    "".join(letters)
    for sides in product("RL", "AP", "SI")
    for letters in permutations(sides)
]
# Shape, spacing in mm, and rotation of the scan in degrees.
SCANS = {
    "1 mm": ((45, 50, 41), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
    "thick": ((27, 25, 15), (1.75, 2.0, 3.5), (0.0, 0.0, 0.0)),
    "oblique": ((27, 25, 15), (1.75, 2.0, 3.5), (14.0, -8.0, 5.0)),
}


def small_head(kind: str) -> tuple[Volume, Volume]:
    """Return a textured ball in air, and two structures in it."""
    shape, spacing, turn = SCANS[kind]
    affine = affine_of("RAS", spacing, shape, turn)
    world = world_of(affine, shape)
    texture = np.random.default_rng(3).integers(300, 700, shape)
    ball = squared_radius(world, (1.0, 2.0, -1.0), (13.0, 16.0, 12.0)) <= 1
    numbers = np.where(ball, 1, 0)
    numbers[squared_radius(world, (4.0, 5.0, 0.0), (5.0, 6.0, 7.0)) <= 1] = 2
    scan = np.where(ball, texture, 0).astype(np.float32)
    return Volume(scan, affine), Volume(numbers.astype(np.uint8), affine)


def restored(labels: Volume, conformed: Conformed) -> list[np.ndarray]:
    """Return labels, classes and an image restored to the scan's space, in RAS order."""
    plan = conformed.plan
    shares = np.stack([labels.data == k for k in range(3)]).astype(np.float16)
    found = [
        restore(labels, plan, labels=True),
        restore_probabilities(shares, plan),
        restore(conformed.volume, plan, labels=False),
    ]
    return [reoriented(volume, "RAS").data for volume in found]


@pytest.mark.parametrize(
    "orders",
    [
        pytest.param(ORDERS[::7], id="some"),
        pytest.param(
            ORDERS, id="every", marks=[pytest.mark.slow, pytest.mark.important]
        ),
    ],
)
@pytest.mark.parametrize("shape", [None, (64, 64, 64)])
@pytest.mark.parametrize("kind", SCANS)
def test_every_order_has_the_same_working_grid_and_the_same_voxels_back(
    kind: str, shape: tuple[int, int, int] | None, orders: list[str]
) -> None:
    scan, numbers = small_head(kind)
    wanted = conform(scan, shape=shape)
    classes = conform(numbers, labels=True, plan=wanted.plan).volume
    wanted_back = restored(classes, wanted)
    assert len(set(ORDERS)) == 48
    for order in orders:
        found = conform(reoriented(scan, order), shape=shape)
        labels = reoriented(numbers, order)
        found_classes = conform(labels, labels=True, plan=found.plan).volume
        # Everything but the last digits of coordinates is equal, and so are interpolated
        # values.
        np.testing.assert_allclose(found.volume.affine, wanted.volume.affine, atol=1e-9)
        np.testing.assert_allclose(
            found.volume.data, wanted.volume.data, rtol=0, atol=2e-6
        )
        np.testing.assert_array_equal(found_classes.data, classes.data)
        back = restored(found_classes, found)
        np.testing.assert_array_equal(back[0], wanted_back[0])
        np.testing.assert_array_equal(back[1], wanted_back[1])
        np.testing.assert_allclose(back[2], wanted_back[2], rtol=0, atol=2e-6)


@pytest.mark.parametrize("order", ["LIA", "PSR"])
def test_what_is_restored_has_the_scans_own_order(order: str) -> None:
    scan = reoriented(small_head("oblique")[0], order)
    conformed = conform(scan, shape=None)
    back = restore(conformed.volume, conformed.plan, labels=False)
    assert back.shape == scan.shape
    np.testing.assert_array_equal(back.affine, scan.affine)


def test_labels_lie_by_what_they_label_and_not_by_where_their_array_begins() -> None:
    _, numbers = small_head("thick")
    part = np.s_[1:27, 0:24, 1:15]
    cut = Volume(numbers.data[part], numbers.grid.cut(part).affine)
    plain = conform(numbers, labels=True, shape=None).volume
    found = conform(cut, labels=True, shape=None).volume
    np.testing.assert_allclose(found.affine, plain.affine, atol=1e-9)
    np.testing.assert_array_equal(found.data, plain.data)
