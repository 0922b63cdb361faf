"""Background detection: the working grid is the same whatever value stands for background."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers.placed import affine_of, head
from hypothesis import given, settings
from hypothesis import strategies as st

from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.background import find_background, on_working_scale
from trinat.segmentation.space.conform import Conformed, conform

SHAPE = (62, 68, 58)
SPACING = (2.0, 2.0, 2.0)
AFFINE = affine_of("LPS", SPACING, SHAPE)


@cache
def painted(kind: str) -> np.ndarray:
    """Return a head in air of 0, of magnitude noise, or of filtered noise, as integers."""
    values = head(AFFINE, SHAPE, 600.0).data.copy()
    rng = np.random.default_rng(4)
    if kind == "zero":
        values[values < 60] = 0
    if kind == "magnitudes":
        values = np.hypot(values + rng.normal(0, 8, SHAPE), rng.normal(0, 8, SHAPE))
    if kind == "signed":
        values += rng.normal(0, 8, SHAPE)
    values = np.rint(values).astype(np.int32)
    values.flags.writeable = False
    return values


def on_grid(data: np.ndarray, affine: np.ndarray = AFFINE) -> Conformed:
    return conform(Volume(data, affine), shape=None)


@cache
def painted_on_grid(kind: str) -> Conformed:
    return on_grid(painted(kind))


def assert_same(found: Conformed, wanted: Conformed, tolerance: float = 0) -> None:
    np.testing.assert_allclose(found.volume.affine, wanted.volume.affine, atol=1e-9)
    assert found.volume.shape == wanted.volume.shape
    apart = np.abs(found.volume.data - wanted.volume.data)
    assert apart.max() <= tolerance


KINDS = st.sampled_from(["zero", "magnitudes", "signed"])


@settings(max_examples=15, deadline=None)
@given(kind=KINDS, offset=st.integers(-30_000, 30_000), factor=st.integers(1, 30))
def test_an_offset_and_a_factor_change_nothing(
    kind: str, offset: int, factor: int
) -> None:
    plain = painted(kind)
    assert_same(on_grid(plain * factor + offset), painted_on_grid(kind), 1e-5)


@settings(max_examples=8, deadline=None)
@given(kind=KINDS, offset=st.integers(0, 5000))
@pytest.mark.parametrize("numbers", [np.int16, np.uint16, np.float32, np.float64])
def test_the_type_of_the_numbers_changes_nothing(
    numbers: type, kind: str, offset: int
) -> None:
    plain = painted(kind)
    moved = (plain - plain.min() + offset).astype(numbers)
    assert_same(on_grid(moved), painted_on_grid(kind))


@settings(max_examples=15, deadline=None)
@given(
    kind=KINDS,
    value=st.integers(-5000, 5000),
    widths=st.tuples(*[st.integers(0, 23)] * 6),
)
def test_padding_with_any_number_changes_nothing(
    kind: str, value: int, widths: tuple[int, ...]
) -> None:
    plain = painted(kind)
    before, after = widths[:3], widths[3:]
    padded = np.pad(plain, list(zip(before, after, strict=True)), constant_values=value)
    affine = AFFINE.copy()
    affine[:3, 3] -= affine[:3, :3] @ before
    assert_same(on_grid(padded, affine), painted_on_grid(kind))


@settings(max_examples=15, deadline=None)
@given(widths=st.tuples(*[st.integers(0, 3)] * 6))
def test_cropping_to_the_head_changes_nothing(widths: tuple[int, ...]) -> None:
    cropped = np.pad(painted("zero"), [(3 - n, 3) for n in widths[:3]])
    x, y, z = (
        slice(length - n) for length, n in zip(cropped.shape, widths[3:], strict=True)
    )
    affine = AFFINE.copy()
    affine[:3, 3] -= affine[:3, :3] @ (3 - np.array(widths[:3]))
    assert_same(on_grid(cropped[x, y, z], affine), painted_on_grid("zero"))


def test_zeros_around_a_scan_in_which_0_is_bright_are_nothing() -> None:
    """z-scores of a brain, 0 outside of it; some voxels inside are 0 as well."""
    plain = painted("zero")
    brain = plain > 0
    scores = np.where(brain, plain - 400, 0)
    assert (scores[brain] == 0).any()
    found = on_working_scale(Volume(scores, AFFINE)).data
    box = find_background(Volume(scores, AFFINE)).box
    plain = plain[box]
    brain = plain > 0
    np.testing.assert_array_equal(found[~brain], 0)
    # Background is now as dark as the darkest tissue; everything else is in its place.
    darkest = int(np.sort(plain[brain])[np.count_nonzero(brain) // 1000])
    wanted = (plain[brain] - darkest).clip(0)
    factor = found[brain].max() / wanted.max()
    np.testing.assert_allclose(found[brain], factor * wanted, atol=1e-5)


@pytest.mark.parametrize("outside", [-200, -1000, -32768])
def test_a_number_far_below_all_tissue_is_not_how_dark_nothing_is(outside: int) -> None:
    plain = painted("zero")
    coded = np.where(plain > 0, plain, outside)
    found = on_working_scale(Volume(coded, AFFINE)).data
    wanted = on_working_scale(Volume(plain, AFFINE)).data
    inner = find_background(Volume(plain, AFFINE)).box
    np.testing.assert_array_equal(found[plain[inner] == 0], 0)
    # The darkest tissue, a tenth of the bright end, is background now.
    assert np.abs(found - wanted).max() < 0.11


def test_fluid_is_brighter_than_what_a_brain_was_cut_out_with() -> None:
    plain = painted("zero")
    brain = np.where(plain > 130, plain, 0)
    assert find_background(Volume(brain, AFFINE)).level == 0


def test_dark_white_matter_of_a_stripped_t2_is_no_air() -> None:
    """White matter, a quarter of the brain, is nearer to the darkest voxel than air would be."""
    places = np.indices(SHAPE) - (np.array(SHAPE) / 2)[:, None, None, None]
    from_middle = np.sqrt((places**2).sum(0))
    rng = np.random.default_rng(0)
    scan = np.zeros(SHAPE)
    for radius, brightness in ((30, 230), (28, 100), (20, 70)):
        scan[from_middle < radius] = brightness
    scan = np.where(scan > 0, np.rint(scan + rng.normal(0, 4, SHAPE)), 0)
    background = find_background(Volume(scan, AFFINE))
    assert background.level == 0
    assert background.fill is None
    # Air around a head that was cut out of a turned scan is still background.
    with_air = np.where(from_middle < 36, painted("magnitudes") + 200, 0)
    assert find_background(Volume(with_air, AFFINE)).level >= 190


def test_corners_that_a_turned_scan_was_filled_with_are_nothing() -> None:
    plain = painted("magnitudes")
    i, j, _ = np.ogrid[tuple(slice(-n // 2, n // 2) for n in SHAPE)]
    filled = np.where(np.abs(i) + np.abs(j) > 54, -1024, plain)
    background = find_background(Volume(filled, AFFINE))
    assert background.level == pytest.approx(
        find_background(Volume(plain, AFFINE)).level, abs=1
    )
    assert background.fill == -1024


def test_magnitudes_begin_at_their_noise_and_other_noise_lies_around_nothing() -> None:
    magnitudes = find_background(Volume(painted("magnitudes"), AFFINE))
    signed = find_background(Volume(painted("signed"), AFFINE))
    assert 0 <= magnitudes.level <= 1
    assert abs(signed.level) < 8


def test_the_bright_end_is_a_percentile_of_what_stands_out() -> None:
    # 8 litres of air, 1 litre of tissue of which 4 % is twice as bright, in no order.
    values = np.concatenate([np.zeros(8000), np.full(960, 100), np.full(40, 200)])
    np.random.default_rng(0).shuffle(values)
    affine = np.diag([10.0, 10, 10, 1])
    found = find_background(Volume(values.reshape(30, 30, 10), affine))
    assert (found.level, found.bright) == (0, 200)
    # With 1 %, the 98th percentile is among the rest.
    values[np.flatnonzero(values == 200)[10:]] = 100
    found = find_background(Volume(values.reshape(30, 30, 10), affine))
    assert (found.level, found.bright) == (0, 100)
