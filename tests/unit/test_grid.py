"""Grids: voxels of one grid beyond another."""

from __future__ import annotations

import numpy as np

from trinat.segmentation.grid import Grid


def test_voxels_beyond_another_grid_are_those_whose_centre_is_outside_it() -> None:
    # Centres at x = 0, 1, 2, 3; the two voxels of the other grid extend from 0.5 to 2.5.
    shift = np.eye(4)
    shift[0, 3] = 1
    beyond = Grid((4, 1, 1), np.eye(4)).beyond(Grid((2, 1, 1), shift))
    assert beyond[:, 0, 0].tolist() == [True, False, False, True]
