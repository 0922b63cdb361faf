"""Intensities on the working grid: 0 in the background, about 1 at the bright end."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.placed import (
    affine_of,
    field,
    head,
)

from trinat.segmentation.errors import FormatError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.conform import conform


def noisy(scan: Volume) -> Volume:
    noise = np.random.default_rng(3).normal(0, 20, scan.shape)
    return Volume(np.abs(scan.data + noise).astype(np.float32), scan.affine)


def bright_end(scan: Volume) -> float:
    return float(np.quantile(conform(scan, shape=(128, 128, 128)).volume.data, 0.99))


def test_intensities_go_from_0_to_about_1() -> None:
    shape = field((1, 1, 1))
    affine = affine_of("LIA", (1, 1, 1), shape)
    values = conform(head(affine, shape, 743.0), shape=(128, 128, 128)).volume.data
    assert np.quantile(values, 0.05) == pytest.approx(0, abs=0.01)
    assert np.quantile(values, 0.99) == pytest.approx(1, abs=0.05)
    assert 0 <= values.min() <= values.max() <= 1.1


@pytest.mark.parametrize("air", [5, 16, 30])
def test_air_around_the_head_does_not_change_its_brightness(air: int) -> None:
    shape = field((2, 2, 2))
    scan = noisy(head(affine_of("RAS", (2, 2, 2), shape), shape))
    affine = scan.affine.copy()
    affine[:3, 3] -= 2 * air
    noise = np.random.default_rng(9).normal(0, 20, np.array(shape) + 2 * air)
    wide = np.abs(noise).astype(np.float32)
    wide[(slice(air, -air),) * 3] = scan.data
    narrow, padded = conform(scan).volume, conform(Volume(wide, affine)).volume
    np.testing.assert_allclose(narrow.affine, padded.affine)
    middle = (slice(120, 136),) * 3
    assert np.median(padded.data[middle] / narrow.data[middle]) == pytest.approx(
        1, abs=0.01
    )


def test_some_voxels_far_too_bright_change_nothing() -> None:
    shape = field((1, 1, 1))
    scan = head(affine_of("RAS", (1, 1, 1), shape), shape)
    data = scan.data.copy()
    data[50:53, 50:53, 50:53] = 1e7
    spoilt = conform(Volume(data, scan.affine), shape=(128, 128, 128)).volume.data
    assert np.quantile(spoilt, 0.99) == pytest.approx(bright_end(scan), rel=0.01)
    assert spoilt.max() == 2


def test_interpolation_goes_neither_below_0_nor_beyond_what_is_cut_off() -> None:
    spacing = (1.2, 1.2, 1.2)
    shape = field(spacing)
    scan = head(affine_of("RAS", spacing, shape), shape)
    data = scan.data.copy()
    data[50:53, 50:53, 50:53] = 1e7
    values = conform(Volume(data, scan.affine), shape=(128, 128, 128)).volume.data
    assert values.min() == 0
    assert values.max() == 2


def test_overshoot_below_zero_is_background() -> None:
    shape = field((1, 1, 1))
    scan = head(affine_of("RAS", (1, 1, 1), shape), shape)
    rung = scan.data.copy()
    rung[20:24, 20:60, 20:60] = -30
    plain, ours = (
        conform(s, shape=(128, 128, 128)).volume.data
        for s in (scan, Volume(rung, scan.affine))
    )
    assert ours.min() == 0
    assert np.quantile(ours, 0.99) == pytest.approx(np.quantile(plain, 0.99), rel=0.01)
    assert np.median(ours) == pytest.approx(np.median(plain), abs=0.01)


def test_an_empty_scan_is_refused() -> None:
    with pytest.raises(FormatError, match="stands out"):
        conform(Volume(np.zeros((20, 20, 20), np.int16), np.eye(4)))


def test_a_scan_of_next_to_nothing_is_refused() -> None:
    data = np.zeros((40, 40, 40), np.float32)
    data[10:30, 10:30, 10:30] = 1e-41
    with pytest.raises(FormatError, match="stands out"):
        conform(Volume(data, np.diag([4.0, 4, 4, 1])))


@pytest.mark.parametrize("share", [1e-4, 0.9])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_voxels_that_are_no_numbers_are_refused(share: float, value: float) -> None:
    rng = np.random.default_rng(0)
    data = rng.random((30, 30, 30)).astype(np.float32)
    data[rng.random(data.shape) < share] = value
    with pytest.raises(FormatError, match="NaN"):
        conform(Volume(data, np.diag([4.0, 4, 4, 1])), shape=(128, 128, 128))
