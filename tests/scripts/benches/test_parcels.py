"""The Dice of parcels that `scripts/bench parcels` prints."""

from __future__ import annotations

import numpy as np
from benches.parcels import scores

from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme

DESIKAN = Parcellation(load_scheme("quicknat33"), load_scheme("desikan34"))


def test_scores_are_of_parcels_alone_in_the_order_of_their_names() -> None:
    truth, found = (
        DESIKAN.whole.from_freesurfer(np.array([[numbers]]))
        for numbers in (
            [1035, 1035, 2035, 1001, 2, 2],
            [1035, 2035, 2035, 1001, 2, 1001],
        )
    )
    values = dict(zip(DESIKAN.names, scores(DESIKAN, truth, found), strict=True))
    assert len(values) == 68
    # One voxel of both; two and one, one and two voxels in all.
    assert values["ctx-lh-insula"] == 2 / 3
    assert values["ctx-rh-insula"] == 2 / 3
    assert values["ctx-lh-bankssts"] == 2 / 3
    assert np.isnan(values["ctx-rh-bankssts"])
