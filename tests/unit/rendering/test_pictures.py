"""The mosaic shows every structure, on the right side, and no face."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.rendering.pictures import (
    brain_window,
    draw_mosaic,
    draw_rows,
    label_colors,
    outlines,
    overlay,
)

SCHEME = load_scheme("quicknat33")
CORTEX = SCHEME.names.index("Left-Cerebral-Cortex")
HIPPOCAMPUS = SCHEME.names.index("Left-Hippocampus")


def head(affine: np.ndarray | None = None) -> tuple[Volume, Volume]:
    """Return a grey block with class 1 in its middle, far from a bright 'nose'."""
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


# Class 1 spans 4 voxels; with 10 voxels of margin on both sides a picture has 24 x 24, drawn
# four times as large. There are 14 pixels of space beside it, above it, and left of the names
# of views.
PICTURE, GAP = 4 * 24, 14
# Around its middle a picture has the outline of the class, and interpolated grey values.
NEAR = 12


def test_three_rows_and_a_picture_a_slice_cropped_to_the_structures() -> None:
    image, labels = head()
    page = draw_mosaic(image, labels, SCHEME, slices_per_view=2)
    assert page.shape == (3 * (PICTURE + GAP), GAP + 2 * (PICTURE + GAP), 3)
    titled = draw_mosaic(image, labels, SCHEME, slices_per_view=2, title="sub-01")
    assert titled.shape == (len(page) + 2 * GAP, *page.shape[1:])


def test_x_grows_to_the_right_and_z_upwards() -> None:
    image, labels = head()
    dark = image.data.copy()
    dark[:20] = dark[:, :, :20] = 0
    page = draw_mosaic(Volume(dark, image.affine), labels, SCHEME, slices_per_view=1)
    # The first picture is the coronal slice; letters are at its bottom.
    coronal = page[GAP:, GAP + GAP // 2 :][:PICTURE, :PICTURE]
    low, high = PICTURE // 2 - NEAR, PICTURE // 2 + NEAR
    assert (coronal[:low, high:] == 255).all()
    assert (coronal[:low, :low] == 0).all()
    assert (coronal[high:-GAP] == 0).all()


def test_a_voxel_has_two_pixels_and_an_outline_one() -> None:
    # Too large to be enlarged once more.
    shape = (60, 60, 60)
    classes = np.zeros(shape, np.uint8)
    classes[10:50, 10:50, 10:50] = 1
    black = Volume(np.zeros(shape, np.float32), np.eye(4))
    labels = Volume(classes, np.eye(4))
    page = draw_mosaic(black, labels, SCHEME, slices_per_view=1)
    side = 2 * 60
    assert page.shape == (3 * (side + GAP), GAP + side + GAP, 3)
    middle = page[GAP + side // 2, GAP + GAP // 2 :][:side, 0]
    # White matter of 40 voxels has 80 pixels, of which the outermost are its colour.
    assert np.flatnonzero(middle > 200).tolist() == [20, 99]


def test_slices_lie_in_the_deep_structures() -> None:
    classes = np.zeros((40, 40, 40), np.uint8)
    classes[2:38, 2:38, 2:38] = CORTEX
    classes[10:30, 12:24, 20:32] = HIPPOCAMPUS
    # Each coronal slice has its own grey value.
    shades = np.broadcast_to(np.linspace(0, 1, 40)[:, None], (40, 40, 40))
    image = Volume(np.ascontiguousarray(shades, np.float32), np.eye(4))
    page = draw_mosaic(image, Volume(classes, np.eye(4)), SCHEME)
    width = 2 * 40 + GAP
    values = [page[GAP + 30, GAP + GAP // 2 + 12 + n * width, 0] for n in range(5)]
    # The brightest of slices 12 to 23; 255 is that of slice 39.
    brightest = np.percentile(shades[classes > 0], 99.5)
    expected = [255 * n / 39 / brightest for n in (14, 16, 18, 19, 21)]
    np.testing.assert_allclose(values, expected, atol=1)


def test_specks_of_labels_do_not_widen_the_window() -> None:
    classes = np.zeros((10, 80, 80), np.uint8)
    classes[:, 40:60, 30:50] = 1
    classes[5, 2, 3] = 1
    assert brain_window(classes) == (slice(30, 70), slice(20, 60))


def test_slices_are_seen_from_where_the_pages_say() -> None:
    image, labels = head()
    marked = np.zeros_like(image.data)
    # A marker at the person's left, anterior and superior to the structure's middle.
    marked[:20, 12:, 20:] = 1
    page = draw_mosaic(Volume(marked, image.affine), labels, SCHEME, slices_per_view=1)
    row = PICTURE + GAP
    low, high = PICTURE // 2 - NEAR, PICTURE // 2 + NEAR
    coronal, axial = (
        page[GAP + start :, GAP + GAP // 2 :][:PICTURE, :PICTURE] for start in (0, row)
    )
    # Seen from behind, above is up; seen from above, the face is up; left is left in both.
    for picture in (coronal, axial):
        assert (picture[:low, :low] == 255).all()
        assert (picture[: low - GAP, high:] == 0).all()
        assert (picture[high:-GAP] == 0).all()
    templates = resources.files("trinat.pipelines") / "report" / "templates"
    for name in ("scans.html", "evaluation.html"):
        text = (templates / name).read_text("utf-8")
        assert (
            "Seen from behind and from above: the person's left is on the left." in text
        )


def test_the_person_s_left_is_marked_where_x_is_low() -> None:
    image, labels = head()
    black = Volume(image.data * (labels.data > 0), image.affine)
    page = draw_mosaic(black, labels, SCHEME, slices_per_view=1)
    row = page[: GAP + PICTURE, GAP + GAP // 2 :][-GAP:, :PICTURE, 0] > 128
    left, right = (half[half.any(1)] for half in (row[:, :GAP], row[:, -GAP:]))
    # An L has one stroke at its top, and an R has an arc.
    assert left[0].sum() < right[0].sum()
    assert left[-1].sum() > left[0].sum()


def test_a_volume_off_the_working_axes_is_refused() -> None:
    image, labels = head(np.diag([-1.0, 1, 1, 1]))
    with pytest.raises(GeometryError):
        draw_mosaic(image, labels, SCHEME)


def test_labels_without_any_structure_still_give_a_picture() -> None:
    image, labels = head()
    empty = Volume(np.zeros_like(labels.data), labels.affine)
    assert draw_mosaic(image, empty, SCHEME, slices_per_view=1).any()


def test_rows_are_as_high_as_their_highest_picture_and_all_as_wide_as_the_widest() -> (
    None
):
    rows = {
        "one": [np.ones((10, 20, 3), np.float32), np.ones((30, 15, 3), np.float32)],
        "other": [np.ones((5, 5, 3), np.float32)],
    }
    drawn = draw_rows(rows, "")
    # 30 fits thrice into 110; 14 between pictures: 2 (3·20 + 14) + 14 wide, 3·30 + 3·5 + 28 high.
    assert drawn.shape == (133, 162, 3)
    # The last row, of 15 by 15 pixels, is at the bottom, in the middle of its column.
    assert (drawn[118:, 43:58] == 255).all()
    assert (drawn[118:, 14 + 74 :] < 255).all()


def test_outlines_keep_what_touches_another_class() -> None:
    labels = np.array([[1, 1, 1, 2, 2], [1, 1, 1, 2, 2], [1, 1, 0, 2, 2]])
    assert outlines(labels).tolist() == [
        [0, 0, 1, 2, 0],
        [0, 0, 1, 2, 0],
        [0, 1, 0, 2, 0],
    ]


@pytest.mark.slow
@pytest.mark.important
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory")
def test_a_kind_whose_library_finds_no_memory_is_not_called_unknown() -> None:
    probe = """
import contextlib
import importlib
import resource
from pathlib import Path

import numpy as np
from PIL import Image, _plugins

from trinat.segmentation.errors import reason_of
from trinat.segmentation.rendering.pictures import encoded

# All kinds are there but WEBP, whose library is not loaded yet, and has 500 kB.
for plugin in set(_plugins) - {"WebPImagePlugin"}:
    with contextlib.suppress(ImportError):
        importlib.import_module(f"PIL.{plugin}")
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 500_000
resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
try:
    encoded(np.zeros((2, 2), np.uint8), "WEBP")
except Exception as error:
    print(reason_of(error))
# The next picture has memory again.
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
print(encoded(np.zeros((2, 2), np.uint8), "WEBP")[8:12])
"""
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "out of memory: close other programs, or use a larger machine",
        "b'WEBP'",
    ]
