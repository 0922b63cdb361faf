"""Values between voxels."""

from __future__ import annotations

import pytest
import torch

from trinat.segmentation.space.interpolation import rows_at


def test_between_voxels_values_are_linear_and_beyond_the_edges_they_go_on() -> None:
    x, y, z = torch.meshgrid(
        torch.arange(3), torch.arange(4), torch.arange(5), indexing="ij"
    )
    values = torch.stack((100 * x + 10 * y + z, x), -1).half()
    places = torch.tensor([[0.5, 1.25, 3.5], [2, 3, 4], [-1, 0, 9], [1.5, 7, 0]])
    found = rows_at(values, places)
    assert found[:, 0].tolist() == pytest.approx([66, 234, 4, 180])
    assert found[:, 1].tolist() == pytest.approx([0.5, 2, 0, 1.5])
