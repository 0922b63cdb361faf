"""The demo really goes there and back, and leaves a picture for each head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from pipelines.demo import Geometry, run_demo


def test_a_coarse_oblique_head_comes_back_and_is_drawn(tmp_path: Path) -> None:
    coarse = Geometry("coarse", (3.0, 3.0, 3.0), "LIP", 10)
    (outcome,) = run_demo(tmp_path, geometries=[coarse])
    # Coarser than the grid by three, labels lose nothing but what interpolation rounds off.
    assert outcome.mean_dice > 0.9
    assert outcome.swapped < 0.05
    assert np.ptp(imread(outcome.picture)) > 0.5
