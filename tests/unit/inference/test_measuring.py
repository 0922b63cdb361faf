"""The intracranial volume of a segmentation, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trinat.segmentation.grid import Grid
from trinat.segmentation.inference.measuring import measure
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.space.conform import ConformPlan

SCHEME = load_scheme("quicknat33")
CSF = SCHEME.names.index("CSF")


def head(skull: float = 1.0) -> Prediction:
    """Return a cube of 10 voxels of white matter in one of 12 of fluid, in a head.

    Voxels of 1 mm.
    """
    labels = np.zeros((40, 40, 40), np.uint8)
    labels[14:26, 14:26, 14:26] = CSF
    labels[15:25, 15:25, 15:25] = 1
    image = np.where(labels > 0, 0.5, skull).astype(np.float32)
    grid = Grid(labels.shape, np.eye(4))
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels).long(), len(SCHEME))
    return Prediction(
        fused=one_hot.half(),
        scheme=SCHEME,
        plan=ConformPlan(grid, (1, 1), grid),
        image=Volume(image, np.eye(4)),
        notes=(),
        agreement=None,
        uncertainty=None,
        not_predicted=(),
        csf="intracranial",
    )


def test_the_intracranial_volume_is_that_of_the_brain_mask() -> None:
    found = head()
    measured = measure(found)
    assert measured.mm3["EstimatedTotalIntraCranialVol"] == 12**3
    assert found.brain.data.sum() == 12**3
    assert measured.mm3["CerebralWhiteMatterVol"] == 10**3
    assert measured.note == ""


def test_where_it_is_not_known_there_is_a_note_and_a_mask_all_the_same() -> None:
    found = replace(head(), csf="region")
    measured = measure(found)
    assert measured.mm3["EstimatedTotalIntraCranialVol"] is None
    assert measured.note.startswith("no intracranial volume: the model does not find")
    assert found.brain.data.sum() == 12**3
