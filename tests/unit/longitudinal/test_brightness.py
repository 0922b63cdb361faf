"""Scans of one person made equally bright."""

from __future__ import annotations

import numpy as np
import pytest

from trinat.segmentation.longitudinal.brightness import evened


def test_images_get_the_geometric_mean_of_their_brightness() -> None:
    tissue = np.full((40, 36, 33), 0.8, np.float32)
    tissue[20:24, 20:24, 20:24] = 0.4
    for image in evened([tissue * 1.25, tissue / 1.25]):
        assert image == pytest.approx(tissue, abs=1e-3)


def test_shading_that_rises_over_a_short_field_is_halved_at_least() -> None:
    tissue = np.full((80, 72, 66), 0.8, np.float32)
    gain = np.exp(np.linspace(-0.1, 0.1, 80, dtype=np.float32))[:, None, None]
    first, second = evened([tissue * gain, tissue / gain])
    before = np.abs(np.log(gain**2)).mean()
    assert np.abs(np.log(first / second)).mean() < 0.5 * before


def test_a_structure_that_changed_is_no_shading() -> None:
    first = np.full((64, 64, 64), 0.8, np.float32)
    second = first.copy()
    second[30:36, 30:36, 30:36] = 0.4
    before = float(second[32, 32, 32] / first[32, 32, 32])
    found, other = evened([first, second])
    assert other[32, 32, 32] / found[32, 32, 32] == pytest.approx(before, rel=0.02)


def test_empty_images_stay_empty() -> None:
    nothing = np.zeros((8, 8, 8), np.float32)
    assert all(not image.any() for image in evened([nothing, nothing]))
