"""Volumes to slices and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trinat.segmentation.errors import ConfigError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import (
    SliceAxes,
    View,
    chosen_views,
    from_slices,
    reoriented,
    slice_axes,
    to_slices,
)

VIEWS = list(View)


def test_views_are_chosen_by_name_one_or_several_or_all() -> None:
    assert chosen_views("axial") == chosen_views([View.AXIAL]) == (View.AXIAL,)
    assert chosen_views(["axial", "coronal"]) == (View.AXIAL, View.CORONAL)
    assert chosen_views(None) is None
    with pytest.raises(
        ConfigError,
        match=r"^unknown view: 'koronal': choose from coronal, axial, sagittal$",
    ):
        chosen_views("koronal")
    with pytest.raises(ConfigError, match="choose from coronal, axial, sagittal"):
        chosen_views(3)  # type: ignore[arg-type]


def numbered(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        # One voxel at right 1, front 2, up 3 of a volume (4, 5, 6), as (slice, row, column).
        (View.CORONAL, (2, 3, 1)),
        (View.AXIAL, (3, 2, 1)),
        (View.SAGITTAL, (1, 3, 2)),
    ],
)
def test_a_voxel_lands_where_the_table_of_axes_says(
    view: View, expected: tuple[int, int, int]
) -> None:
    volume = np.zeros((4, 5, 6))
    volume[1, 2, 3] = 1
    assert np.argwhere(to_slices(volume, view)).tolist() == [list(expected)]


@pytest.mark.parametrize(
    ("view", "along", "shape"),
    [
        (View.CORONAL, 1, (5, 6, 4)),
        (View.AXIAL, 2, (6, 5, 4)),
        (View.SAGITTAL, 0, (4, 6, 5)),
    ],
)
def test_slices_are_counted_along_the_first_axis(
    view: View, along: int, shape: tuple[int, int, int]
) -> None:
    assert to_slices(np.zeros((4, 5, 6)), view).shape == shape
    assert slice_axes(view).along == along


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("view", VIEWS)
def test_volumes_come_back_whatever_axes_lead(
    view: View, leading: tuple[int, ...]
) -> None:
    volume = numbered(*leading, 4, 5, 6)
    np.testing.assert_array_equal(from_slices(to_slices(volume, view), view), volume)
    tensor = torch.from_numpy(volume)
    assert torch.equal(from_slices(to_slices(tensor, view), view), tensor)


@pytest.mark.parametrize("view", VIEWS)
def test_classes_stay_between_slices_and_rows(view: View) -> None:
    probabilities = numbered(7, 4, 5, 6)
    slices = to_slices(probabilities, view)
    assert slices.shape[1] == 7
    np.testing.assert_array_equal(slices[:, 2], to_slices(probabilities[2], view))


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_copied(view: View) -> None:
    volume = numbered(3, 4, 5, 6)
    assert np.shares_memory(from_slices(to_slices(volume, view), view), volume)
    tensor = torch.from_numpy(volume)
    slices = to_slices(tensor, view)
    assert slices.data_ptr() == tensor.data_ptr()
    assert from_slices(slices, view).stride() == tensor.stride()


def test_numpy_and_torch_agree() -> None:
    volume = numbered(2, 4, 5, 6)
    for view in VIEWS:
        slices = to_slices(torch.from_numpy(volume), view)
        np.testing.assert_array_equal(slices.numpy(), to_slices(volume, view))


def test_another_networks_axes_go_there_and_back() -> None:
    axes = SliceAxes(along=1, rows=0, columns=2)
    volume = numbered(2, 4, 5, 6)
    assert to_slices(volume, axes).shape == (5, 2, 4, 6)
    np.testing.assert_array_equal(from_slices(to_slices(volume, axes), axes), volume)


def test_a_reoriented_voxel_keeps_its_place() -> None:
    affine = np.array([[-1.0, 0, 0, 9], [0, 0, 2, -5], [0, -3, 0, 20], [0, 0, 0, 1]])
    volume = Volume(numbered(2, 3, 4), affine)
    assert volume.axcodes == "LIA"
    found = reoriented(volume, "RAS")
    assert found.shape == (2, 4, 3)
    # Voxel (0, 1, 3) is at -0 + 9, 2 * 3 - 5, -3 * 1 + 20: in RAS the second, last, middle one.
    assert found.data[1, 3, 1] == volume.data[0, 1, 3]
    np.testing.assert_array_equal(found.affine @ (1, 3, 1, 1), (9, 1, 17, 1))
    assert reoriented(found, "RAS") is found
