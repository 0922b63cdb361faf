"""Fusion against sums worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.fourclass import SCHEME

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.inference.fusion import (
    ViewAggregator,
    multiply_csf_odds,
    weights_for_voxels,
)
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.model_info import Mean
from trinat.segmentation.space.views import SliceAxes, View, slice_axes, to_slices

ALL = (View.CORONAL, View.AXIAL, View.SAGITTAL)
SHAPE = (2, 3, 4)


def constant(view: View, values: list[float]) -> torch.Tensor:
    """Return the same probabilities in every voxel, as slices (N, H, W, K)."""
    volume = torch.tensor(values).expand(*SHAPE, len(values))
    return to_slices(volume, view, trailing=1)


def fuse(views, per_view: dict[View, list[float]], **settings) -> torch.Tensor:
    fusion = ViewAggregator(SHAPE, SCHEME, views, **settings)
    for view, values in per_view.items():
        fusion.add(view, 0, constant(view, values))
    return fusion.finish()


def test_three_views_by_hand() -> None:
    # Coronal and axial: left A 0.4 * 0.6 + 0.4 * 0.3 = 0.36, right A 0.04 + 0.08 = 0.12: 3 to 1.
    # The sagittal 0.5 of A goes 0.375 to the left and 0.125 to the right, times 0.2.
    fused = fuse(
        ALL,
        {
            View.CORONAL: [0.1, 0.6, 0.1, 0.2],
            View.AXIAL: [0.5, 0.3, 0.2, 0.0],
            View.SAGITTAL: [0.2, 0.5, 0.3],
        },
    )
    expected = [
        0.4 * 0.1 + 0.4 * 0.5 + 0.2 * 0.2,
        0.36 + 0.2 * 0.375,
        0.12 + 0.2 * 0.125,
        0.4 * 0.2 + 0.2 * 0.3,
    ]
    torch.testing.assert_close(
        fused[1, 2, 3].float(), torch.tensor(expected), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        fused.float().sum(-1), torch.ones(SHAPE), atol=2e-3, rtol=0
    )


def test_where_the_others_see_no_side_the_sagittal_view_is_halved() -> None:
    fused = fuse(
        ALL,
        {
            View.CORONAL: [1.0, 0, 0, 0],
            View.AXIAL: [1.0, 0, 0, 0],
            View.SAGITTAL: [0.0, 1.0, 0.0],
        },
    )
    torch.testing.assert_close(
        fused[0, 0, 0].float(), torch.tensor([0.8, 0.1, 0.1, 0.0]), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    "views", [(View.CORONAL,), (View.AXIAL,), (View.CORONAL, View.AXIAL)]
)
def test_any_subset_of_sided_views_is_renormalised(views) -> None:
    fused = fuse(views, {view: [0.25, 0.5, 0.125, 0.125] for view in views})
    torch.testing.assert_close(
        fused[0, 0, 0].float(),
        torch.tensor([0.25, 0.5, 0.125, 0.125]),
        atol=1e-3,
        rtol=0,
    )


def test_coronal_and_sagittal_are_weighted_two_to_one() -> None:
    fused = fuse(
        (View.CORONAL, View.SAGITTAL),
        {View.CORONAL: [1.0, 0, 0, 0], View.SAGITTAL: [0, 0, 1.0]},
    )
    torch.testing.assert_close(
        fused[0, 0, 0].float(), torch.tensor([2 / 3, 0, 0, 1 / 3]), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_sagittal_alone_gives_the_merged_scheme(mean: Mean) -> None:
    fusion = ViewAggregator(SHAPE, SCHEME, (View.SAGITTAL,), mean=mean)
    fusion.add(View.SAGITTAL, 0, constant(View.SAGITTAL, [0.5, 0.25, 0.25]))
    assert fusion.scheme.names == ("background", "A", "B")
    assert fusion.finish()[0, 0, 0].tolist() == [0.5, 0.25, 0.25]


def test_odds_of_csf_against_background_are_multiplied() -> None:
    """0.6 to 0.2 are odds of 3; with a third of them, 1, each gets half of 0.8."""
    scheme = load_scheme("quicknat33")
    csf = scheme.find("CSF").index
    brain = scheme.find("Left-Cerebral-Cortex").index
    fused = torch.zeros(1, 1, 3, len(scheme), dtype=torch.float16)
    fused[0, 0, 0, [0, csf, brain]] = torch.tensor([0.2, 0.6, 0.2]).half()
    # Without background, or without CSF, nothing changes.
    fused[0, 0, 1, [csf, brain]] = torch.tensor([0.5, 0.5]).half()
    fused[0, 0, 2, [0, brain]] = torch.tensor([0.5, 0.5]).half()
    before = fused.clone()
    multiply_csf_odds(fused, scheme, 1 / 3)
    expected = torch.tensor([0.4, 0.4, 0.2]).half()
    changed = fused[0, 0, 0, [0, csf, brain]]
    torch.testing.assert_close(changed, expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(fused[0, 0, 1:], before[0, 0, 1:])


def test_odds_of_one_change_nothing() -> None:
    scheme = load_scheme("quicknat33")
    fused = torch.rand(2, 2, 2, len(scheme)).half()
    before = fused.clone()
    multiply_csf_odds(fused, scheme, 1.0)
    assert torch.equal(fused, before)


def test_slices_land_where_they_came_from() -> None:
    rng = np.random.default_rng(0)
    volume = torch.from_numpy(rng.random((*SHAPE, 4), np.float32))
    volume /= volume.sum(-1, keepdim=True)
    for view in (View.CORONAL, View.AXIAL):
        fusion = ViewAggregator(SHAPE, SCHEME, (view,))
        slices = to_slices(volume, view, trailing=1)
        for start in range(0, len(slices), 2):
            fusion.add(view, start, slices[start : start + 2])
        torch.testing.assert_close(fusion.finish().float(), volume, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (slice(1, 3), slice(0, 1)),
        (slice(1, 3), slice(0, 2)),
        (slice(0, 4), slice(0, 1)),
    ],
)
def test_beyond_the_given_rows_and_columns_a_geometric_mean_is_that_with_background(
    rows: slice, columns: slice
) -> None:
    views = (View.CORONAL, View.AXIAL)
    part, whole = (
        ViewAggregator(SHAPE, SCHEME, views, mean="geometric") for _ in range(2)
    )
    slices = constant(View.CORONAL, [0.2, 0.7, 0.0, 0.1])
    part.add(View.CORONAL, 0, slices[:, rows, columns], rows, columns)
    outside = torch.ones(slices.shape[:3], dtype=torch.bool)
    outside[:, rows, columns] = False
    filled = slices.clone()
    filled[outside] = torch.tensor([1.0, 0, 0, 0])
    whole.add(View.CORONAL, 0, filled)
    for fusion in (part, whole):
        fusion.add(View.AXIAL, 0, constant(View.AXIAL, [0.5, 0.3, 0.1, 0.1]))
    torch.testing.assert_close(part.finish(), whole.finish(), atol=1e-3, rtol=0)


def test_beyond_the_given_rows_and_columns_all_is_background() -> None:
    fusion = ViewAggregator(SHAPE, SCHEME, ALL)
    # Coronal slices of SHAPE have 4 rows, upwards, and 2 columns, to the right.
    left = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(3, 2, 1, 4)
    fusion.add(View.CORONAL, 0, left, slice(1, 3), slice(0, 1))
    fusion.add(View.AXIAL, 0, constant(View.AXIAL, [0.5, 0.5, 0.0, 0.0]))
    fusion.add(View.SAGITTAL, 0, torch.zeros(2, 0, 0, 3), slice(0, 0), slice(0, 0))
    fused = fusion.finish().float()
    inside = torch.tensor([0.2 + 0.2, 0.4 + 0.2, 0, 0])
    outside = torch.tensor([0.4 + 0.2 + 0.2, 0.2, 0, 0])
    expected = outside.expand(*SHAPE, 4).clone()
    expected[0, :, 1:3] = inside
    torch.testing.assert_close(fused, expected, atol=1e-3, rtol=0)


def test_sagittal_before_the_others_is_refused() -> None:
    fusion = ViewAggregator(SHAPE, SCHEME, ALL)
    fusion.add(View.SAGITTAL, 0, constant(View.SAGITTAL, [1.0, 0, 0]))
    with pytest.raises(ValueError, match="last"):
        fusion.add(View.CORONAL, 0, constant(View.CORONAL, [1.0, 0, 0, 0]))


@pytest.mark.parametrize(
    "weights",
    [
        {View.CORONAL: 0.0, View.AXIAL: 0.0, View.SAGITTAL: 1.0},
        {View.CORONAL: -1.0, View.AXIAL: 2.0},
    ],
)
def test_weights_that_are_negative_or_all_zero_are_refused(
    weights: dict[View, float],
) -> None:
    with pytest.raises(ConfigError):
        ViewAggregator(SHAPE, SCHEME, (View.CORONAL, View.AXIAL), weights)


def test_a_geometric_mean_by_hand() -> None:
    # 0.9 and 0.4 of left A, weighted 3 to 1, against 0.1 and 0.6 of the background.
    fused = fuse(
        (View.CORONAL, View.AXIAL),
        {View.CORONAL: [0.1, 0.9, 0, 0], View.AXIAL: [0.6, 0.4, 0, 0]},
        weights={View.CORONAL: 0.75, View.AXIAL: 0.25},
        mean="geometric",
    )
    left, background = 0.9**0.75 * 0.4**0.25, 0.1**0.75 * 0.6**0.25
    expected = torch.tensor([background, left, 0, 0]) / (left + background)
    torch.testing.assert_close(fused[0, 0, 0].float(), expected, atol=3e-3, rtol=0)


def test_a_geometric_mean_of_views_that_agree_is_what_they_say() -> None:
    values = [0.1, 0.6, 0.05, 0.25]
    fused = fuse(
        ALL,
        {View.CORONAL: values, View.AXIAL: values, View.SAGITTAL: [0.1, 0.65, 0.25]},
        mean="geometric",
    )
    torch.testing.assert_close(
        fused[0, 0, 0].float(), torch.tensor(values), atol=4e-3, rtol=0
    )
    torch.testing.assert_close(
        fused.float().sum(-1), torch.ones(SHAPE), atol=2e-3, rtol=0
    )


def test_a_geometric_mean_divides_sides_as_the_views_before_tell_them() -> None:
    weights = {View.CORONAL: 0.15, View.AXIAL: 0.05, View.SAGITTAL: 0.8}
    fused = fuse(
        ALL,
        {
            View.CORONAL: [0.1, 0.7, 0.1, 0.1],
            View.AXIAL: [0.2, 0.2, 0.5, 0.1],
            View.SAGITTAL: [0.25, 0.6, 0.15],
        },
        weights=weights,
        mean="geometric",
    )
    # Coronal counts three times as much as axial: left to right is 7^(3/4) * 0.4^(1/4) to 1.
    odds = 7**0.75 * 0.4**0.25
    left, right = 0.6 * odds / (1 + odds), 0.6 / (1 + odds)
    means = torch.tensor(
        [
            0.1**0.15 * 0.2**0.05 * 0.25**0.8,
            0.7**0.15 * 0.2**0.05 * left**0.8,
            0.1**0.15 * 0.5**0.05 * right**0.8,
            0.1**0.15 * 0.1**0.05 * 0.15**0.8,
        ]
    )
    expected = (means - 0.001) / (means - 0.001).sum()
    torch.testing.assert_close(fused[1, 2, 3].float(), expected, atol=2.5e-3, rtol=0)


def test_one_view_rules_nothing_out_in_a_geometric_mean() -> None:
    # Two views are certain of B; the third is certain of background, but still gives B 0.001.
    fused = fuse(
        ALL,
        {
            View.CORONAL: [0, 0, 0, 1.0],
            View.AXIAL: [0, 0, 0, 1.0],
            View.SAGITTAL: [1.0, 0, 0],
        },
        mean="geometric",
    )
    b, background = 0.001**0.2, 0.001**0.8
    assert fused[0, 0, 0, 3].item() == pytest.approx(b / (b + background), abs=0.01)
    assert fused[0, 0, 0, 1].item() == 0


def test_where_no_view_looks_a_geometric_mean_is_background() -> None:
    fusion = ViewAggregator(SHAPE, SCHEME, ALL, mean="geometric")
    fusion.add(View.CORONAL, 0, torch.zeros(3, 0, 0, 4), slice(0, 0), slice(0, 0))
    fusion.add(View.AXIAL, 0, torch.zeros(4, 0, 0, 4), slice(0, 0), slice(0, 0))
    fusion.add(View.SAGITTAL, 0, torch.zeros(2, 0, 0, 3), slice(0, 0), slice(0, 0))
    expected = torch.tensor([1.0, 0, 0, 0]).expand(*SHAPE, 4)
    torch.testing.assert_close(fusion.finish().float(), expected, atol=1e-3, rtol=0)


def test_views_of_thick_slices_from_the_side_count_less() -> None:
    weights = {View.CORONAL: 0.4, View.AXIAL: 0.4, View.SAGITTAL: 0.2}
    axes = {view: slice_axes(view) for view in ALL}
    # Axial slices of 8 mm: the two other views have a blur of 8 mm, and (2 / 8)² is 1/16.
    found = weights_for_voxels(weights, axes, (0.9, 0.9, 8.0), 2.0)
    assert found == pytest.approx(
        {View.CORONAL: 0.025, View.AXIAL: 0.4, View.SAGITTAL: 0.0125}
    )
    # Sagittal slices of 4 mm with pixels of 3 mm: 3 / 4 of the weight of the two other views.
    found = weights_for_voxels(weights, axes, (4.0, 3.0, 3.0), 1.0)
    assert found == pytest.approx(
        {View.CORONAL: 0.3, View.AXIAL: 0.3, View.SAGITTAL: 0.2}
    )


@pytest.mark.parametrize("sides_mm", [(1.0, 1.0, 2.0), (3.0, 3.0, 3.0), (0.7, 2, 1)])
def test_the_weights_stay_the_same_in_thin_slices_and_in_cubes(sides_mm) -> None:
    weights = {View.CORONAL: 0.342, View.AXIAL: 0.3515, View.SAGITTAL: 0.3065}
    axes = {view: slice_axes(view) for view in ALL}
    assert weights_for_voxels(weights, axes, sides_mm, 1.5) == weights


def test_views_with_axes_of_their_own_are_weighted_by_these() -> None:
    axes = {View.CORONAL: SliceAxes(2, 1, 0), View.AXIAL: SliceAxes(1, 2, 0)}
    weights = {View.CORONAL: 0.5, View.AXIAL: 0.5}
    found = weights_for_voxels(weights, axes, (1.0, 1.0, 4.0), 1.0)
    assert found == {View.CORONAL: 0.5, View.AXIAL: 0.25}


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_the_others_tell_the_side_even_if_the_sagittal_view_counts_most(
    mean: Mean,
) -> None:
    fused = fuse(
        ALL,
        {
            View.CORONAL: [0.7, 0.2, 0.05, 0.05],
            View.AXIAL: [0.7, 0.2, 0.05, 0.05],
            View.SAGITTAL: [0.1, 0.8, 0.1],
        },
        weights={View.CORONAL: 0.03, View.AXIAL: 0.03, View.SAGITTAL: 0.94},
        mean=mean,
    )
    _, left, right, _ = fused[0, 0, 0].tolist()
    # The other views see the left side four times as often as the right one.
    assert left + right == pytest.approx(0.76, abs=0.05)
    assert left / right == pytest.approx(4, rel=0.02)
