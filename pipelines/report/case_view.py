"""Slice viewer cases: a scan, its label maps, and the position to show first.

The page unpacks the viewer's pictures into volumes and cuts any plane from them. A grey volume of a
head is 250 kB as WebP and a label map 60 kB as PNG; a general viewer brings 2.3 MB of script.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from scipy import ndimage

from trinat.pipelines.report.page import short_name
from trinat.segmentation.grid import Shape, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.rendering.pictures import (
    Picture,
    box_around,
    data_uri,
    draw_rows,
    encoded,
    label_colors,
    overlay,
)
from trinat.segmentation.space.views import View, reoriented, to_slices

# Colours of missed, invented, and confused structures.
ERROR_COLORS = ((51, 136, 255), (255, 145, 0), (230, 60, 150))

_MARGIN_MM = 8.0
# Distance from any structure beyond which the picture is black: no face, no skull's outline.
_SHOWN_MM = 6.0
_STEP_MM = 1.0
_MAX_EXTENT = 320


class Palette(BaseModel):
    """Colours and names of the classes in the slice viewer, by class index."""

    colors: list[tuple[int, int, int]]
    names: list[str]

    @classmethod
    def of(cls, scheme: LabelScheme) -> Palette:
        """Return the palette of a label scheme."""
        return cls(
            colors=[label.color for label in scheme.labels],
            names=[short_name(label.name) for label in scheme.labels],
        )


class CaseView(BaseModel):
    """Data of the slice viewer on a page, for one scan; also as JSON, until the page is written.

    - `gray` (the scan), `prediction` and `truth` (class indices) are pictures as data URIs: the
      axial slices, tiled in a number of `columns`. `truth` is "" if there is none.
    - `shape` is the number of voxels along the axes, (X, Y, Z), and `start` the voxel to show
      first.
    - `still_png` is a PNG file for print, empty if there is none; the JSON does not have it.
    - Classes (indices) in `not_compared` are not shown as errors.
    - `palette` has the colours and names of classes; None if the page has one for all scans.
    """

    shape: tuple[int, int, int]
    columns: int
    gray: str = Field(pattern="^data:image/")
    prediction: str = Field(pattern="^data:image/")
    start: tuple[int, int, int]
    truth: str = Field(default="", pattern="^(data:image/|$)")
    still_png: bytes = Field(default=b"", exclude=True)
    not_compared: tuple[int, ...] = ()
    palette: Palette | None = None


def view_case(
    truth: Volume,
    prediction: Volume,
    scheme: LabelScheme,
    *,
    image: Volume | None = None,
    focus: int = 0,
    show_head: bool = False,
    not_compared: Collection[int] = (),
) -> CaseView:
    """Return the slice viewer's data for a true and a predicted label map and, if given, the scan.

    `truth` and `prediction` are class indices; all volumes are on one grid. `scheme` has the
    colours of the classes. The slices shown first pass through the largest error in class `focus`;
    if that class has no error, or `focus` is 0, through the largest error of all. Voxels of the
    scan that are far from the brain are black unless `show_head`. Classes in `not_compared` count
    as background in the picture of errors.
    """
    # Only axes are reordered: slightly oblique scans stay oblique.
    truth = reoriented(truth, "RAS")
    prediction = reoriented(prediction, "RAS")
    box = truth.grid.box
    if not show_head or image is None:
        occupied = (truth.data > 0) | (prediction.data > 0)
        box = box_around(occupied, _margins(truth))
    box_shape = tuple(side.stop - side.start for side in box)
    # Steps of 1 mm, coarser if the picture would become too large.
    extent_mm = np.array(box_shape) * np.array(truth.spacing_mm)
    step_mm = max(_STEP_MM, float(extent_mm.max()) / _MAX_EXTENT)
    zoom = np.maximum(1, np.round(extent_mm / step_mm)) / box_shape
    resample = partial(ndimage.zoom, zoom=zoom, mode="nearest", grid_mode=True)
    # Classes by the nearest neighbour, grey values linearly.
    true = resample(truth.data[box], order=0)
    predicted = resample(prediction.data[box], order=0)
    gray = None
    if image is not None:
        shown = reoriented(image, "RAS").data[box].astype(np.float32)
        gray = resample(shown, order=1)
    shades = _grey_levels(gray, true)
    if not show_head:
        # Far from the true brain only: a prediction that leaks into the face must not uncover it.
        shades[far_from_brain(true > 0)] = 0
    errors = _error_map(true, predicted, not_compared)
    start = _fullest_slices(errors, (true == focus) | (predicted == focus), focus)
    view = _encode_view(shades, predicted, start, quality=70, method=4)
    still = _draw_still(shades, true, predicted, errors, scheme, start)
    view.truth = data_uri("png", encoded(_tile_slices(true, view.columns), "PNG"))
    view.not_compared = tuple(sorted(not_compared))
    view.still_png = encoded(still, "PNG")
    return view


def view_result(
    image: Volume, labels: Volume, scheme: LabelScheme, *, focus: int = 0
) -> CaseView:
    """Return the slice viewer's data for a scan and its segmentation.

    `image` is the scan and `labels` its class indices, both on the 1 mm grid in RAS orientation
    that the networks use. `scheme` has the colours and names of the classes. The slices shown first
    have most of class `focus`; if `focus` is 0 or the class has no voxel, most of all classes
    together. Grey values more than 6 mm from the brain are 0, so that no face is shown.
    """
    box = box_around(labels.data > 0, _margins(labels))
    gray = image.data[box]
    found = labels.data[box]
    shades = _grey_levels(gray, found)
    shades[far_from_brain(found > 0)] = 0
    start = _fullest_slices(found, found == focus, focus)
    view = _encode_view(shades, found, start, quality=45, method=0)
    view.palette = Palette.of(scheme)
    return view


def _encode_view(
    shades: NDArray[np.uint8],
    prediction: NDArray[Any],
    start: Shape,
    **webp: int,
) -> CaseView:
    """Return the viewer's data for grey values and classes, both (X, Y, Z), without truth or still.

    `shades` are the grey values and `prediction` the class indices. `start` is the voxel to show
    first; `webp` are options of the WebP encoder.
    """
    columns = int(np.ceil(np.sqrt(shades.shape[2])))
    gray = encoded(_tile_slices(shades, columns), "WEBP", **webp)
    labels = encoded(_tile_slices(prediction, columns), "PNG")
    return CaseView(
        shape=to_shape(shades.shape),
        columns=columns,
        gray=data_uri("webp", gray),
        prediction=data_uri("png", labels),
        start=start,
    )


def _margins(volume: Volume) -> NDArray[np.int_]:
    """Return the margin to show around all structures, in voxels along each axis, (3,)."""
    return np.ceil(_MARGIN_MM / np.array(volume.spacing_mm)).astype(int)


def _grey_levels(gray: NDArray[Any] | None, true: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the grey values of the picture, 0 to 255.

    The brightest brain tissue is near 235. Without a scan, `gray` is None: the brain is dark grey
    and all else black.
    """
    if gray is None:
        return np.where(true > 0, 60, 0).astype(np.uint8)
    brain = gray[true > 0]
    brightest = float(gray.max())
    if brain.size:
        brightest = float(np.percentile(brain, 99.5))
    shades = gray / max(brightest, 1e-6) * 235
    return np.asarray(np.clip(shades, 0, 255), np.uint8)


def far_from_brain(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the voxels more than 6 mm from the brain.

    No picture shows these voxels, as they could show a face. `brain` (X, Y, Z) is True within the
    brain, in voxels of 1 mm; the result has its shape. Edges are exact to 2 mm.
    """
    # Only every second voxel: a distance transform of all takes half a second.
    distance = ndimage.distance_transform_edt(
        ~brain[::2, ::2, ::2], sampling=2 * _STEP_MM
    )
    far = np.asarray(distance > _SHOWN_MM)
    for axis in range(3):
        far = far.repeat(2, axis)
    x, y, z = brain.shape
    return far[:x, :y, :z]


def _error_map(
    true: NDArray[Any], predicted: NDArray[Any], not_compared: Collection[int]
) -> NDArray[np.uint8]:
    """Return the error of each voxel: 0 for none, else the index in `ERROR_COLORS` plus 1.

    `true` and `predicted` are class indices of the same shape. Classes in `not_compared` count as
    background.
    """
    ignored = list(not_compared)
    true = np.where(np.isin(true, ignored), 0, true)
    predicted = np.where(np.isin(predicted, ignored), 0, predicted)
    errors = np.full(true.shape, 3, np.uint8)  # confused with another structure
    errors[true == 0] = 2  # invented
    errors[predicted == 0] = 1  # missed
    errors[true == predicted] = 0
    return errors


def _fullest_slices(
    marked: NDArray[Any], is_of_focus: NDArray[np.bool_], focus: int
) -> tuple[int, int, int]:
    """Return the indices of the sagittal, coronal and axial slice with the most marked voxels.

    `marked` (X, Y, Z) is above 0 in marked voxels, such as errors. If `focus` is not 0, only marked
    voxels within the mask `is_of_focus` count, unless there are none. Without any marked voxel, the
    middle of the volume is returned.
    """
    errors = marked > 0
    of_focus = errors & is_of_focus
    if focus and of_focus.any():
        errors = of_focus
    if not errors.any():
        x, y, z = marked.shape
        return x // 2, y // 2, z // 2
    return (
        int(np.argmax(errors.sum(axis=(1, 2)))),
        int(np.argmax(errors.sum(axis=(0, 2)))),
        int(np.argmax(errors.sum(axis=(0, 1)))),
    )


def _draw_still(
    shades: NDArray[np.uint8],
    true: NDArray[Any],
    predicted: NDArray[Any],
    errors: NDArray[np.uint8],
    scheme: LabelScheme,
    start: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """Draw a picture of truth, prediction and errors (rows) in three planes (columns), for print.

    `shades` are the grey values, `true` and `predicted` the class indices, all (X, Y, Z). `errors`
    is 0 where there is no error, else the index in `ERROR_COLORS` plus 1. The planes pass through
    the voxel `start`. Returns RGB values, (H, W, 3).
    """
    colors = label_colors(scheme)
    error_colors = np.array([(0, 0, 0), *ERROR_COLORS], np.float32)
    error_colors /= np.float32(255)
    drawn = {
        "truth": (true, colors),
        "prediction": (predicted, colors),
        "errors": (errors, error_colors),
    }
    views = (View.SAGITTAL, View.CORONAL, View.AXIAL)
    rows: dict[str, list[Picture]] = {}
    for name, (classes, of_classes) in drawn.items():
        rows[name] = []
        for view, position in zip(views, start, strict=True):
            gray = to_slices(shades, view)[position] / np.float32(255)
            plane = overlay(gray, to_slices(classes, view)[position], of_classes)
            rows[name].append(plane.repeat(2, 0).repeat(2, 1))
    return draw_rows(rows, title="")


def _tile_slices(volume: NDArray[Any], columns: int) -> NDArray[np.uint8]:
    """Tile the axial slices of a volume (X, Y, Z) row by row into one picture.

    It has `columns` slices in a row. In a slice, x runs to the right and y down.
    """
    x, y, z = volume.shape
    rows = -(-z // columns)
    slices = np.zeros((rows * columns, y, x), np.uint8)
    slices[:z] = to_slices(volume, View.AXIAL)
    tiles = slices.reshape(rows, columns, y, x)
    return tiles.swapaxes(1, 2).reshape(rows * y, columns * x)
