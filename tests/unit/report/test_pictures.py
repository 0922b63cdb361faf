"""The mosaic shows what is there, on the side where it is, and no face."""

from __future__ import annotations

import numpy as np
import pytest

from segmentation.errors import GeometryError
from segmentation.io.volume import Volume
from segmentation.labels.scheme import load_scheme
from segmentation.report.pictures import draw_mosaic, label_colors, overlay

SCHEME = load_scheme("quicknat33")


def head(affine: np.ndarray | None = None) -> tuple[Volume, Volume]:
    """A grey block with class 1 in the middle of it, far from a bright 'nose'."""
    image = np.full((40, 40, 40), 0.2, np.float32)
    image[20, 39, 20] = 50.0
    classes = np.zeros((40, 40, 40), np.uint8)
    classes[18:22, 10:14, 18:22] = 1
    affine = np.eye(4) if affine is None else affine
    return Volume(image, affine), Volume(classes, affine)


def test_overlay_mixes_grey_and_class_colour_by_opacity() -> None:
    colors = np.array([[0, 0, 0], [1, 0, 0]], np.float32)
    mixed = overlay(np.array([[0.5, 0.5]]), np.array([[0, 1]]), colors, opacity=0.6)
    np.testing.assert_allclose(mixed[0, 0], [0.5, 0.5, 0.5])
    # 0.4 x 0.5 of the grey, and 0.6 of pure red.
    np.testing.assert_allclose(mixed[0, 1], [0.8, 0.2, 0.2], rtol=1e-6)


def test_colours_are_the_scheme_s_own() -> None:
    assert label_colors(SCHEME).shape == (len(SCHEME), 3)
    np.testing.assert_allclose(label_colors(SCHEME)[2] * 255, SCHEME.labels[2].color)


def test_three_rows_and_three_pictures_a_slice_cropped_to_the_structures() -> None:
    image, labels = head()
    figure = draw_mosaic(image, labels, SCHEME, slices_per_view=2)
    assert len(figure.axes) == 3 * 6
    # Class 1 spans 4 voxels; 10 voxels of margin on both sides.
    coronal = figure.axes[0].images[0].get_array()
    assert coronal.shape == (24, 24, 3)
    # The sagittal columns run along y: 10..13 with margin is 0..23, so the nose at 39 is out.
    sagittal = figure.axes[12].images[0].get_array()
    assert sagittal.shape == (24, 24, 3)


def test_the_person_s_left_is_marked_where_x_is_low() -> None:
    image, labels = head()
    coronal = draw_mosaic(image, labels, SCHEME, slices_per_view=1).axes[0]
    letters = {text.get_text(): text.get_position()[0] for text in coronal.texts}
    assert letters["L"] < letters["R"]


def test_a_volume_off_the_working_axes_is_refused() -> None:
    image, labels = head(np.diag([-1.0, 1, 1, 1]))
    with pytest.raises(GeometryError):
        draw_mosaic(image, labels, SCHEME)


def test_labels_without_any_structure_still_give_a_picture() -> None:
    image, labels = head()
    empty = Volume(np.zeros_like(labels.data), labels.affine)
    assert draw_mosaic(image, empty, SCHEME, slices_per_view=1).axes[0].images
