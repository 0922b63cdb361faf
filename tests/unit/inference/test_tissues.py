"""Tissue maps from handwritten probabilities."""

from __future__ import annotations

import numpy as np
import torch

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan

SCHEME = load_scheme("quicknat33")
# Two structures of a tissue, and a third of another: 3/4 white matter, 1/4 grey matter.
MIXED = {
    "Left-Cerebral-White-Matter": 0.5,
    "Brain-Stem": 0.25,
    "Left-Cerebral-Cortex": 0.25,
}
# No structure is as probable as background, but the tissue of two structures is.
DOUBTED = {"background": 0.4, "Left-Thalamus": 0.3, "Left-Caudate": 0.3}
FLUID = {"CSF": 0.5, "3rd-Ventricle": 0.5}
NOTHING = {"background": 1.0}


def predicted(*voxels: dict[str, float], scan: Grid | None = None) -> Prediction:
    """Return a row of voxels of 1 mm with these probabilities, for a scan with this grid."""
    fused = torch.zeros((len(voxels), 1, 1, len(SCHEME)), dtype=torch.float16)
    for place, shares in enumerate(voxels):
        for name, share in shares.items():
            fused[place, 0, 0, SCHEME.names.index(name)] = share
    working = Grid((len(voxels), 1, 1), np.eye(4))
    return Prediction(
        fused=fused,
        scheme=SCHEME,
        plan=ConformPlan(scan or working, (1, 1), working),
        image=Volume(np.zeros(working.shape, np.float32), np.eye(4)),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
    )


def test_the_probability_of_a_tissue_is_the_sum_of_those_of_its_structures() -> None:
    found = predicted(MIXED, DOUBTED, FLUID, NOTHING).tissues()
    near = {"rtol": 0, "atol": 1e-3}  # probabilities are float16
    np.testing.assert_allclose(
        found.grey_matter.data.ravel(), [0.25, 0.6, 0, 0], **near
    )
    np.testing.assert_allclose(found.white_matter.data.ravel(), [0.75, 0, 0, 0], **near)
    np.testing.assert_allclose(found.csf.data.ravel(), [0, 0, 1, 0], **near)
    assert found.grey_matter.data.dtype == np.float32


def test_the_label_is_that_of_the_most_probable_tissue() -> None:
    found = predicted(MIXED, DOUBTED, FLUID, NOTHING)
    assert found.tissues().labels.data.ravel().tolist() == [2, 1, 3, 0]
    assert found.tissues().labels.data.dtype == np.uint8
    # Background is the most probable of the single structures.
    assert found.indices.data[1, 0, 0] == 0


def test_a_voxel_over_two_of_the_working_grid_keeps_a_part_of_each() -> None:
    affine = np.diag([2.0, 1, 1, 1])
    affine[0, 3] = 0.5
    white = {"Left-Cerebral-White-Matter": 1.0}
    found = predicted(white, FLUID, scan=Grid((1, 1, 1), affine)).tissues()
    assert found.white_matter.data.item() == 0.5
    assert found.csf.data.item() == 0.5
    assert (found.csf.affine == affine).all()


def test_beyond_the_working_grid_is_no_tissue() -> None:
    found = predicted(MIXED, scan=Grid((2, 1, 1), np.eye(4))).tissues()
    assert found.labels.data.ravel().tolist() == [2, 0]
    assert found.white_matter.data.ravel().tolist() == [0.75, 0]
