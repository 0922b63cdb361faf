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
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.report.page import data_uri
from trinat.segmentation.space.grid import Box, Shape, grown, is_empty, to_shape, whole
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, reoriented, to_slices

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Picture = NDArray[np.float32]

_INK, _PAPER = "#d8d8d8", "#101010"
# Pixels: between pictures, of letters, and of the longest side at least, if voxels are few.
_GAP, _LETTER, _LEAST_SIDE = 14, 11, 110
_MARGIN = 10  # of slices, in voxels
# What lies at the left and the right edge of a slice whose columns grow with the axis.
_EDGES = {View.CORONAL: ("L", "R"), View.AXIAL: ("L", "R"), View.SAGITTAL: ("P", "A")}


def label_colors(scheme: LabelScheme) -> NDArray[np.float32]:
    """Colour of each class, (K, 3), 0 to 1."""
    return np.array([label.color for label in scheme.labels], np.float32) / np.float32(255)


def overlay(
    gray: NDArray[Any], indices: NDArray[Any], colors: NDArray[np.float32], opacity: float = 0.55
) -> NDArray[np.float32]:
    """Grey values 0 to 1 (H, W) with the classes' colours over them, (H, W, 3); 0 stays grey."""
    picture = np.repeat(np.clip(gray, 0, 1).astype(np.float32)[..., None], 3, axis=-1)
    inside = indices > 0
    picture[inside] = (1 - opacity) * picture[inside] + opacity * colors[indices[inside]]
    return picture


def outlines(indices: NDArray[Any]) -> NDArray[Any]:
    """Classes (H, W), but for pixels whose four neighbours are of their own class: these are 0."""
    framed = np.pad(indices, 1, mode="edge")
    inner = framed[1:-1, 1:-1]
    sides = (framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:])
    return np.where(np.all([side == inner for side in sides], axis=0), 0, indices)


def three_pictures(gray: NDArray[Any], indices: NDArray[Any], colors: Picture) -> list[Picture]:
    """The image, its labels, and their outlines over it."""
    return [
        overlay(gray, np.zeros_like(indices), colors),
        overlay(np.zeros_like(gray), indices, colors, opacity=1),
        overlay(gray, outlines(indices), colors, opacity=1),
    ]


def draw_mosaic(
    image: Volume, labels: Volume, scheme: LabelScheme, *, title: str = "", slices_per_view: int = 3
) -> NDArray[np.uint8]:
    """Image, labels and outlines in each view, a pixel a voxel or more, (H, W, 3).

    Both volumes are on the working grid (RAS axes). Not by matplotlib, which takes a second.
    """
    if image.axcodes != "RAS" or image.shape != labels.shape:
        raise GeometryError("a mosaic needs image and class indices on one grid with RAS axes")
    indices = np.asarray(labels.data)
    colors = label_colors(scheme)
    brightest = float(np.percentile(image.data[indices > 0], 99.5)) if indices.any() else 1.0
    rows: dict[str, list[Picture]] = {}
    for view in View:
        shown, truth = to_slices(image.data, view), to_slices(indices, view)
        window = brain_window(truth)
        rows[view.value] = [
            picture
            for n in _positions(truth, slices_per_view)
            for picture in three_pictures(shown[n][window] / brightest, truth[n][window], colors)
        ]
    return draw_rows(rows, title, {view.value: ends for view, ends in _EDGES.items()})


def draw_rows(
    rows: Mapping[str, Sequence[Picture]],
    title: str,
    edges: Mapping[str, tuple[str, str]] | None = None,
) -> NDArray[np.uint8]:
    """Pictures in named rows, their row 0 at the bottom; `edges` are letters for a row's sides."""
    from PIL import Image, ImageDraw, ImageFont

    pictures = [picture for row in rows.values() for picture in row]
    zoom = max(1, _LEAST_SIDE // max(max(picture.shape[:2]) for picture in pictures))
    width = zoom * max(picture.shape[1] for picture in pictures) + _GAP
    heights = [zoom * max(len(picture) for picture in row) + _GAP for row in rows.values()]
    bottom = 2 * _GAP if title else 0
    size = _GAP + width * max(map(len, rows.values())), bottom + sum(heights)
    page = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(page), ImageFont.load_default(_LETTER)
    pen.text((size[0] / 2, _GAP), title, _INK, font, "mm")
    for height, (name, row) in zip(heights, rows.items(), strict=True):
        bottom += height
        label = Image.new("RGB", (height - _GAP, _GAP), _PAPER)
        ImageDraw.Draw(label).text((label.width / 2, _GAP / 2), name, _INK, font, "mm")
        page.paste(label.transpose(Image.Transpose.ROTATE_90), (0, bottom - label.width))
        for column, picture in enumerate(row):
            pixels = np.rint(np.clip(picture[::-1], 0, 1) * 255).astype(np.uint8)
            drawn = Image.fromarray(pixels.repeat(zoom, 0).repeat(zoom, 1))
            left = _GAP + column * width + (width - drawn.width) // 2
            page.paste(drawn, (left, bottom - drawn.height))
            # An outline keeps the letters readable on bright tissue.
            edge = partial(pen.text, fill=_INK, font=font, stroke_width=1, stroke_fill=_PAPER)
            first, last = (edges or {}).get(name, ("", ""))
            edge((left + 3, bottom - 3), first, anchor="ls")
            edge((left + drawn.width - 3, bottom - 3), last, anchor="rs")
    return np.asarray(page)


def png_bytes(figure: Figure, dpi: int, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, **options)
    return buffer.getvalue()


def brain_window(truth: NDArray[Any]) -> tuple[slice, slice]:
    """Rows and columns of all slices that hold a structure, with a margin: the face stays out."""
    _, rows, columns = _box_around(truth > 0, _MARGIN)
    return rows, columns


def _box_around(occupied: NDArray[np.bool_], margin: int | NDArray[np.int_]) -> Box:
    """What is set, and a margin; all, if nothing is."""
    box, shape = occupied_box(occupied), occupied.shape
    return whole(shape) if is_empty(box) else grown(box, shape, margin)


def _positions(truth: NDArray[Any], count: int) -> Sequence[int]:
    """Slices spread evenly over those that hold a structure, ends left out."""
    found = np.flatnonzero(truth.any((1, 2)))
    low, high = (int(found[0]), int(found[-1])) if found.size else (0, truth.shape[0] - 1)
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
    truth, prediction = (reoriented(volume, "RAS") for volume in (truth, prediction))
    true, predicted = truth.data, prediction.data
    gray = None if image is None else reoriented(image, "RAS").data
    box = truth.grid.box
    if not show_head or gray is None:
        box = _box_around((true > 0) | (predicted > 0), _margins(truth))
    zoom = _zoom(truth, tuple(s.stop - s.start for s in box))
    true, predicted = (_scaled(x[box], zoom, order=0) for x in (true, predicted))
    shades = _shades(
        None if gray is None else _scaled(gray[box].astype(np.float32), zoom, order=1), true
    )
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
    gray, found = image.data[box], labels.data[box]
    shades = _shades(gray, found)
    shades[far_from_brain(found > 0)] = 0
    start = _worst_place(np.zeros_like(found), found, focus)
    return _packed(shades, found, start, quality=45, method=0)


def _packed(
    shades: NDArray[np.uint8], prediction: NDArray[Any], start: Shape, **webp: int
) -> CaseView:
    columns = int(np.ceil(np.sqrt(shades.shape[2])))
    gray = encoded(_tiled(shades, columns), "WEBP", **webp)
    labels = encoded(_tiled(prediction, columns), "PNG")
    uris = data_uri("webp", gray), data_uri("png", labels)
    return CaseView(to_shape(shades.shape), columns, *uris, start)


def _margins(volume: Volume) -> NDArray[np.int_]:
    return np.ceil(_MARGIN_MM / np.array(volume.spacing_mm)).astype(int)


def _zoom(volume: Volume, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """To steps of 1 mm, coarser where the picture would grow too large."""
    extent_mm = np.array(shape) * np.array(volume.spacing_mm)
    step_mm = max(_STEP_MM, float(extent_mm.max()) / _MAX_EXTENT)
    return np.asarray(np.maximum(1, np.round(extent_mm / step_mm)) / shape, np.float64)


def _scaled(data: NDArray[Any], zoom: NDArray[np.float64], *, order: int) -> NDArray[Any]:
    scaled: NDArray[Any] = ndimage.zoom(data, zoom, order=order, mode="nearest", grid_mode=True)
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
    distance = ndimage.distance_transform_edt(~brain[::2, ::2, ::2], sampling=2 * _STEP_MM)
    far = np.asarray(distance > _SHOWN_MM)
    x, y, z = brain.shape
    return far.repeat(2, 0).repeat(2, 1).repeat(2, 2)[:x, :y, :z]


def _worst_place(true: NDArray[Any], predicted: NDArray[Any], focus: int) -> tuple[int, int, int]:
    """The slices with most errors of one class, else of all, else the middle."""
    wrong = true != predicted
    of_focus = wrong & ((true == focus) | (predicted == focus))
    errors = of_focus if focus and of_focus.any() else wrong
    if not errors.any():
        x, y, z = (n // 2 for n in true.shape)
        return x, y, z
    x, y, z = (
        int(np.argmax(errors.sum(tuple(b for b in range(3) if b != axis)))) for axis in range(3)
    )
    return x, y, z


def _still(
    shades: NDArray[np.uint8],
    true: NDArray[Any],
    predicted: NDArray[Any],
    scheme: LabelScheme,
    start: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """Truth, prediction and errors (rows) in three planes (columns), for print and for files."""
    colors = label_colors(scheme)
    errors = np.where(true == predicted, 0, np.where(predicted == 0, 1, np.where(true == 0, 2, 3)))
    error_colors = np.array([(0, 0, 0), *ERROR_COLORS], np.float32) / np.float32(255)
    views = (View.SAGITTAL, View.CORONAL, View.AXIAL)
    rows = []
    for classes, palette in ((true, colors), (predicted, colors), (errors, error_colors)):
        planes = []
        for view, position in zip(views, start, strict=True):
            gray = to_slices(shades, view)[position] / np.float32(255)
            plane = overlay(gray, to_slices(classes, view)[position], palette)[::-1]
            planes.append((plane * 255).astype(np.uint8))
        height = max(len(plane) for plane in planes)
        padded = [np.pad(p, ((0, height - len(p)), (2, 2), (0, 0))) for p in planes]
        rows.append(np.concatenate(padded, axis=1))
    return np.repeat(np.repeat(np.concatenate(rows), 2, 0), 2, 1)


def _tiled(volume: NDArray[Any], columns: int) -> NDArray[np.uint8]:
    """Axial slices side by side, row by row, (X, Y, Z) to one picture; x runs right, y down."""
    x, y, z = volume.shape
    rows = -(-z // columns)
    slices = np.zeros((rows * columns, y, x), np.uint8)
    slices[:z] = to_slices(volume, View.AXIAL)
    return slices.reshape(rows, columns, y, x).swapaxes(1, 2).reshape(rows * y, columns * x)


def encoded(picture: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()
