"""Pictures of a scan and its labels: a mosaic as one file, and a case for the page's slice viewer.

The page unpacks the viewer's pictures into volumes and cuts any plane from them. A grey volume of
a head is 250 kB as WebP and a label map 60 kB as PNG; a general viewer brings 2.3 MB of script.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import Box, Shape, grown, is_empty, to_shape, whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.page import data_uri
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, reoriented, to_slices

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Picture = NDArray[np.float32]

_INK = "#d8d8d8"
_PAPER = "#101010"
_GAP = 14  # pixels between pictures
_LETTER = 11  # pixels
_LEAST_SIDE = 110  # pixels of the longest side at least, where voxels are few
_MARGIN = 10  # of slices, in voxels
# What lies at the left and the right edge of a slice whose columns grow with the axis.
_EDGES = {View.CORONAL: ("L", "R"), View.AXIAL: ("L", "R"), View.SAGITTAL: ("P", "A")}


def label_colors(scheme: LabelScheme) -> NDArray[np.float32]:
    """Colour of each class, (K, 3), 0 to 1."""
    return np.array([label.color for label in scheme.labels], np.float32) / np.float32(
        255
    )


def overlay(
    gray: NDArray[Any],
    indices: NDArray[Any],
    colors: NDArray[np.float32],
    opacity: float = 0.55,
) -> NDArray[np.float32]:
    """Grey values 0 to 1 (H, W) with the classes' colours over them, (H, W, 3); 0 stays grey."""
    picture = np.repeat(np.clip(gray, 0, 1).astype(np.float32)[..., None], 3, axis=-1)
    inside = indices > 0
    picture[inside] = (1 - opacity) * picture[inside] + opacity * colors[
        indices[inside]
    ]
    return picture


def outlines(indices: NDArray[Any]) -> NDArray[Any]:
    """Classes (H, W), but for pixels whose four neighbours are of their own class: these are 0."""
    framed = np.pad(indices, 1, mode="edge")
    same_above = framed[:-2, 1:-1] == indices
    same_below = framed[2:, 1:-1] == indices
    same_left = framed[1:-1, :-2] == indices
    same_right = framed[1:-1, 2:] == indices
    is_inside = same_above & same_below & same_left & same_right
    return np.where(is_inside, 0, indices)


def three_pictures(
    gray: NDArray[Any], indices: NDArray[Any], colors: Picture
) -> list[Picture]:
    """The image, its labels, and their outlines over it."""
    return [
        overlay(gray, np.zeros_like(indices), colors),
        overlay(np.zeros_like(gray), indices, colors, opacity=1),
        overlay(gray, outlines(indices), colors, opacity=1),
    ]


def draw_mosaic(
    image: Volume,
    labels: Volume,
    scheme: LabelScheme,
    *,
    title: str = "",
    slices_per_view: int = 3,
) -> NDArray[np.uint8]:
    """Image, labels and outlines in each view, a pixel a voxel or more, (H, W, 3).

    Both volumes are on the working grid (RAS axes). Not by matplotlib, which takes a second.
    """
    if image.axcodes != "RAS" or image.shape != labels.shape:
        raise GeometryError(
            "a mosaic needs image and class indices on one grid with RAS axes"
        )
    indices = np.asarray(labels.data)
    colors = label_colors(scheme)
    brightest = 1.0
    if indices.any():
        brightest = float(np.percentile(image.data[indices > 0], 99.5))
    rows: dict[str, list[Picture]] = {}
    for view in View:
        gray = to_slices(image.data, view)
        classes = to_slices(indices, view)
        window = brain_window(classes)
        rows[view.value] = []
        for position in _positions(classes, slices_per_view):
            rows[view.value] += three_pictures(
                gray[position][window] / brightest, classes[position][window], colors
            )
    edges = {view.value: letters for view, letters in _EDGES.items()}
    return draw_rows(rows, title, edges)


def draw_rows(
    rows: Mapping[str, Sequence[Picture]],
    title: str,
    edges: Mapping[str, tuple[str, str]] | None = None,
) -> NDArray[np.uint8]:
    """Pictures in named rows, their row 0 at the bottom; `edges` are letters for a row's sides."""
    from PIL import Image, ImageDraw, ImageFont

    pictures: list[Picture] = []
    for row in rows.values():
        pictures += row
    longest_side = max(max(picture.shape[:2]) for picture in pictures)
    zoom = max(1, _LEAST_SIDE // longest_side)
    width = zoom * max(picture.shape[1] for picture in pictures) + _GAP
    heights = [
        zoom * max(len(picture) for picture in row) + _GAP for row in rows.values()
    ]
    most_in_a_row = max(len(row) for row in rows.values())
    bottom = 2 * _GAP if title else 0
    page = Image.new(
        "RGB", (_GAP + width * most_in_a_row, bottom + sum(heights)), _PAPER
    )
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(_LETTER)
    # An outline keeps the letters readable on bright tissue.
    write_letter = partial(
        pen.text, fill=_INK, font=font, stroke_width=1, stroke_fill=_PAPER
    )
    pen.text((page.width / 2, _GAP), title, _INK, font, "mm")
    for height, (name, row) in zip(heights, rows.items(), strict=True):
        bottom += height
        label = Image.new("RGB", (height - _GAP, _GAP), _PAPER)
        ImageDraw.Draw(label).text((label.width / 2, _GAP / 2), name, _INK, font, "mm")
        page.paste(
            label.transpose(Image.Transpose.ROTATE_90), (0, bottom - label.width)
        )
        first, last = (edges or {}).get(name, ("", ""))
        for column, picture in enumerate(row):
            pixels = np.rint(np.clip(picture[::-1], 0, 1) * 255).astype(np.uint8)
            drawn = Image.fromarray(pixels.repeat(zoom, 0).repeat(zoom, 1))
            left = _GAP + column * width + (width - drawn.width) // 2
            page.paste(drawn, (left, bottom - drawn.height))
            write_letter((left + 3, bottom - 3), first, anchor="ls")
            write_letter((left + drawn.width - 3, bottom - 3), last, anchor="rs")
    return np.asarray(page)


def png_bytes(figure: Figure, dpi: int, **options: Any) -> bytes:
    """A matplotlib figure as a PNG file; `options` are those of `savefig`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, **options)
    return buffer.getvalue()


def brain_window(truth: NDArray[Any]) -> tuple[slice, slice]:
    """Rows and columns of all slices that hold a structure, with a margin: the face stays out."""
    _, rows, columns = _box_around(truth > 0, _MARGIN)
    return rows, columns


def _box_around(occupied: NDArray[np.bool_], margin: int | NDArray[np.int_]) -> Box:
    """What is set, and a margin; all, if nothing is."""
    box = occupied_box(occupied)
    if is_empty(box):
        return whole(occupied.shape)
    return grown(box, occupied.shape, margin)


def _positions(truth: NDArray[Any], count: int) -> Sequence[int]:
    """Slices spread evenly over those that hold a structure, ends left out."""
    low = 0
    high = truth.shape[0] - 1
    occupied = np.flatnonzero(truth.any((1, 2)))
    if occupied.size:
        low = int(occupied[0])
        high = int(occupied[-1])
    return [round(low + (high - low) * (n + 1) / (count + 1)) for n in range(count)]


# Missed, invented, and taken for another structure.
ERROR_COLORS = ((51, 136, 255), (255, 145, 0), (230, 60, 150))

_MARGIN_MM = 8.0
# Farther than this from any structure the picture is black: no face, no skull's outline.
_SHOWN_MM = 6.0
_STEP_MM = 1.0
_MAX_EXTENT = 320


@dataclass(frozen=True)
class CaseView:
    """Data URIs of tiled axial slices, the grid they came from, and where to look first."""

    shape: tuple[int, int, int]
    columns: int
    gray: str
    prediction: str
    start: tuple[int, int, int]
    truth: str = ""
    still_png: bytes = b""

    @property
    def still(self) -> str:
        """The picture for print, as a data URI."""
        return data_uri("png", self.still_png)


def view_case(
    truth: Volume,
    prediction: Volume,
    scheme: LabelScheme,
    *,
    image: Volume | None = None,
    focus: int = 0,
    show_head: bool = False,
) -> CaseView:
    """Maps of class indices on one grid, and the scan on that grid where there is one.

    The first slices shown pass through the largest error in class `focus`, else of all. A scan is
    blackened away from the brain unless `show_head`.
    """
    # Slightly oblique scans stay so.
    truth = reoriented(truth, "RAS")
    prediction = reoriented(prediction, "RAS")
    box = truth.grid.box
    if not show_head or image is None:
        occupied = (truth.data > 0) | (prediction.data > 0)
        box = _box_around(occupied, _margins(truth))
    zoom = _zoom(truth, tuple(side.stop - side.start for side in box))
    true = _scaled(truth.data[box], zoom, order=0)
    predicted = _scaled(prediction.data[box], zoom, order=0)
    gray = None
    if image is not None:
        shown = reoriented(image, "RAS").data[box].astype(np.float32)
        gray = _scaled(shown, zoom, order=1)
    shades = _shades(gray, true)
    if not show_head:
        # By the truth alone: a prediction that leaks into the face must not uncover it.
        shades[far_from_brain(true > 0)] = 0
    start = _worst_place(true, predicted, focus)
    view = _packed(shades, predicted, start, quality=70, method=4)
    return replace(
        view,
        truth=data_uri("png", encoded(_tiled(true, view.columns), "PNG")),
        still_png=encoded(_still(shades, true, predicted, scheme, start), "PNG"),
    )


def view_result(image: Volume, labels: Volume, *, focus: int = 0) -> CaseView:
    """A scan on the working grid and its class indices; first shown is where most of `focus` is."""
    box = _box_around(labels.data > 0, _margins(labels))
    gray = image.data[box]
    found = labels.data[box]
    shades = _shades(gray, found)
    shades[far_from_brain(found > 0)] = 0
    start = _worst_place(np.zeros_like(found), found, focus)
    return _packed(shades, found, start, quality=45, method=0)


def _packed(
    shades: NDArray[np.uint8], prediction: NDArray[Any], start: Shape, **webp: int
) -> CaseView:
    """Grey values and classes (X, Y, Z) as the viewer reads them; `webp`: options of packing."""
    columns = int(np.ceil(np.sqrt(shades.shape[2])))
    gray = encoded(_tiled(shades, columns), "WEBP", **webp)
    labels = encoded(_tiled(prediction, columns), "PNG")
    return CaseView(
        shape=to_shape(shades.shape),
        columns=columns,
        gray=data_uri("webp", gray),
        prediction=data_uri("png", labels),
        start=start,
    )


def _margins(volume: Volume) -> NDArray[np.int_]:
    return np.ceil(_MARGIN_MM / np.array(volume.spacing_mm)).astype(int)


def _zoom(volume: Volume, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """To steps of 1 mm, coarser where the picture would grow too large."""
    extent_mm = np.array(shape) * np.array(volume.spacing_mm)
    step_mm = max(_STEP_MM, float(extent_mm.max()) / _MAX_EXTENT)
    return np.asarray(np.maximum(1, np.round(extent_mm / step_mm)) / shape, np.float64)


def _scaled(
    data: NDArray[Any], zoom: NDArray[np.float64], *, order: int
) -> NDArray[Any]:
    scaled: NDArray[Any] = ndimage.zoom(
        data, zoom, order=order, mode="nearest", grid_mode=True
    )
    return scaled


def _shades(gray: NDArray[Any] | None, true: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey 0 to 255, the brain's bright end near white; without a scan, dark."""
    if gray is None:
        return np.where(true > 0, 60, 0).astype(np.uint8)
    brain = gray[true > 0]
    brightest = float(np.percentile(brain, 99.5)) if brain.size else float(gray.max())
    return np.asarray(np.clip(gray / max(brightest, 1e-6) * 235, 0, 255), np.uint8)


def far_from_brain(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """More than 6 mm away, on a grid of 1 mm: what no picture shows, as it could be a face."""
    # Of every second voxel: the distances of all take half a second.
    distance = ndimage.distance_transform_edt(
        ~brain[::2, ::2, ::2], sampling=2 * _STEP_MM
    )
    far = np.asarray(distance > _SHOWN_MM)
    x, y, z = brain.shape
    return far.repeat(2, 0).repeat(2, 1).repeat(2, 2)[:x, :y, :z]


def _worst_place(
    true: NDArray[Any], predicted: NDArray[Any], focus: int
) -> tuple[int, int, int]:
    """The slices with most errors of one class, else of all, else the middle."""
    wrong = true != predicted
    of_focus = wrong & ((true == focus) | (predicted == focus))
    errors = of_focus if focus and of_focus.any() else wrong
    if not errors.any():
        x, y, z = true.shape
        return x // 2, y // 2, z // 2
    return (
        int(np.argmax(errors.sum(axis=(1, 2)))),
        int(np.argmax(errors.sum(axis=(0, 2)))),
        int(np.argmax(errors.sum(axis=(0, 1)))),
    )


def _still(
    shades: NDArray[np.uint8],
    true: NDArray[Any],
    predicted: NDArray[Any],
    scheme: LabelScheme,
    start: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """Truth, prediction and errors (rows) in three planes (columns), for print and for files."""
    colors = label_colors(scheme)
    errors = np.full(true.shape, 3)  # taken for another structure
    errors[true == 0] = 2  # invented
    errors[predicted == 0] = 1  # missed
    errors[true == predicted] = 0
    error_colors = np.array([(0, 0, 0), *ERROR_COLORS], np.float32) / np.float32(255)
    views = (View.SAGITTAL, View.CORONAL, View.AXIAL)
    rows = []
    for classes, palette in (
        (true, colors),
        (predicted, colors),
        (errors, error_colors),
    ):
        planes = []
        for view, position in zip(views, start, strict=True):
            gray = to_slices(shades, view)[position] / np.float32(255)
            plane = overlay(gray, to_slices(classes, view)[position], palette)[::-1]
            planes.append((plane * 255).astype(np.uint8))
        height = max(len(plane) for plane in planes)
        padded = []
        for drawn in planes:
            missing = height - len(drawn)
            padded.append(np.pad(drawn, ((0, missing), (2, 2), (0, 0))))
        rows.append(np.concatenate(padded, axis=1))
    return np.repeat(np.repeat(np.concatenate(rows), 2, 0), 2, 1)


def _tiled(volume: NDArray[Any], columns: int) -> NDArray[np.uint8]:
    """Axial slices side by side, row by row, (X, Y, Z) to one picture; x runs right, y down."""
    x, y, z = volume.shape
    rows = -(-z // columns)
    slices = np.zeros((rows * columns, y, x), np.uint8)
    slices[:z] = to_slices(volume, View.AXIAL)
    return (
        slices.reshape(rows, columns, y, x)
        .swapaxes(1, 2)
        .reshape(rows * y, columns * x)
    )


def encoded(picture: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    """A picture (H, W) or (H, W, 3) as a file of a `kind` that Pillow knows ("PNG", "WEBP")."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()
