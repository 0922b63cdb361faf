"""The Dice of parcels that `scripts/bench parcels` prints, and the odds that it fits."""

from __future__ import annotations

import math

import numpy as np
import torch
from benches.parcels import fit_to_volumes, scores

from trinat.segmentation.labels.parcels import Parcellation
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.training.odds_fit import DoubtfulVoxels

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


def test_odds_go_half_of_the_way_to_true_volumes() -> None:
    # Five of ten voxels truly belong to the first parcel; seven more likely belong to it than
    # to the other.
    first = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.9, 0.7, 0.6, 0.2, 0.1, 0.1])
    shares = torch.stack([torch.zeros(10), first, 1 - first], 1)
    truth = np.array([1] * 5 + [2] * 5, np.uint8)
    seen = DoubtfulVoxels.of(shares[None, None], truth[None, None], [0])
    assert seen.joint(np.zeros(3)).sum(0).tolist() == [0, 7, 3]
    half = fit_to_volumes([seen])
    assert seen.joint(2 * half).sum(0).tolist() == [0, 5, 5]
    # Odds of 0.7 to 0.3 are reversed, odds of 0.9 to 0.1 are not.
    assert math.log(7 / 3) < 2 * (half[2] - half[1]) < math.log(9)
