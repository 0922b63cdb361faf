"""Lesions of several scans are matched where they overlap or touch."""

from __future__ import annotations

import numpy as np
import pytest

from trinat.segmentation.grid import Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.lesions import noise_mm3, on_grid, sites_of


def row(**places: tuple[int, int]) -> np.ndarray:
    """Return numbered lesions in a row of voxels; `_1=(0, 4)` is lesion 1 from 0 to below 4."""
    numbers = np.zeros((40, 1, 1), np.int32)
    for name, (start, stop) in places.items():
        numbers[start:stop] = int(name.removeprefix("_"))
    return numbers


def test_lesions_at_one_place_have_one_site() -> None:
    first = row(_1=(0, 9), _2=(20, 25))
    # The first lesion is two lesions now, one of which only touches it; another one is new.
    second = row(_1=(0, 4), _2=(9, 12), _3=(30, 33))
    assert sites_of([first, second], [2, 3]) == [[1, 2], [1, 1, 3]]


def test_a_site_may_have_lesions_of_one_scan_only() -> None:
    assert sites_of([row(), row(_1=(3, 6))], [0, 1]) == [[], [1]]
    assert sites_of([row(), row()], [0, 0]) == [[], []]


def test_a_lesion_that_is_lost_on_the_grid_has_a_site_of_its_own() -> None:
    assert sites_of([row(_1=(0, 4)), row(_1=(0, 4))], [2, 1]) == [[1, 2], [1]]


def test_lesions_of_a_rejected_scan_do_not_join_sites() -> None:
    sound = row(_1=(0, 5), _2=(10, 13))
    # The first lesion overlaps both sites, the second lesion none.
    false = row(_1=(2, 25), _2=(30, 33))
    assert sites_of([sound, false, sound], [2, 2, 2], [1]) == [[1, 2], [1, 3], [1, 2]]
    # If all are rejected, all make sites.
    assert sites_of([sound, false], [2, 2], [0, 1]) == [[1, 1], [1, 2]]


def test_numbers_come_from_the_nearest_voxel() -> None:
    numbers = np.zeros((8, 8, 8), np.int32)
    numbers[2, 4, 4] = 300
    # Voxels of 2 mm; the grid has voxels of 1 mm, and begins 4 mm further to the right.
    scan = Volume(numbers, np.diag([2.0, 2, 2, 1]))
    affine = np.eye(4)
    affine[:3, 3] = (3.6, 7.6, 7.6)
    found = on_grid(scan, Grid((4, 4, 4), affine))
    # Voxel centres from 3.6 to 6.6 mm; the lesion reaches from 3 to 5 mm, and from 7 to 9 mm.
    assert np.argwhere(found).max(axis=0).tolist() == [1, 1, 1]
    assert set(np.unique(found)) == {0, 300}


@pytest.mark.parametrize("side_mm", [1.0, 2.0])
def test_the_noise_of_a_ball_of_three_voxels_is_its_volume(side_mm: float) -> None:
    ball_mm3 = np.pi / 6 * (3 * side_mm) ** 3
    assert noise_mm3(ball_mm3, side_mm) == pytest.approx(ball_mm3)
    assert noise_mm3(8 * ball_mm3, side_mm) == pytest.approx(4 * ball_mm3)
