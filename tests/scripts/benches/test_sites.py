"""The simulated sites of scripts/bench sites: what scanners did is known."""

from __future__ import annotations

import numpy as np
import pytest
from benches.sites import Study


def test_bias_is_what_scanners_did_to_the_mean_of_a_site() -> None:
    study = Study.draw(0, 20, 0.1)
    assert study.bias(study.clean) == 0
    # The second of three sites is 6 % too large: it is 6 % from both others, which agree.
    shifted = study.clean + 0.06 * study.mean * (study.sites == 1)[:, None]
    assert study.bias(shifted) == pytest.approx(2 / 3 * 0.06)


def test_the_effect_of_group_is_a_share_of_the_true_one() -> None:
    study = Study.draw(0, 20, 0.1)
    patients = study.facts[:, 1:2]
    without_noise = study.mean - patients * study.loss
    assert study.effect_of_group(without_noise) == pytest.approx(1)
    assert np.isfinite(study.harmonised()).all()
