"""Pictures of a scan and its labels: overlays on grey values, arranged in rows, as image files."""

from __future__ import annotations

import base64
import importlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import Box, grown, is_empty, occupied_box, whole
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.space.views import View, to_slices

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw


Picture = NDArray[np.float32]

_INK = "#d8d8d8"
_PAPER = "#101010"
_GAP = 14  # pixels between pictures
_LETTER = 14  # height of letters in pixels
_LEAST_SIDE = 110  # pixels; pictures whose longest side has fewer are enlarged
_MARGIN = 10  # voxels around the brain in a slice
# Rows and columns belong to the window of the brain if they have more than this share of the
# labelled voxels of the fullest row or column. Specks of labels away from the brain have fewer.
_SPECK_SHARE = 0.01
# Pixels for each voxel of a mosaic along both axes: borders of the hippocampus are judged to half a
# voxel.
_MOSAIC_ZOOM = 2
_DEEP_GROUP = "subcortical"
# Directions at the left and the right edge of a slice whose columns run along the axis.
EDGES = {View.CORONAL: ("L", "R"), View.AXIAL: ("L", "R"), View.SAGITTAL: ("P", "A")}


def label_colors(scheme: LabelScheme) -> NDArray[np.float32]:
    """Return the RGB colour of each class of a scheme, (K, 3), from 0 to 1."""
    colors = np.array([label.color for label in scheme.labels], np.float32)
    return colors / np.float32(255)


def overlay(
    gray: NDArray[Any],
    indices: NDArray[Any],
    colors: NDArray[np.float32],
    opacity: float = 0.55,
) -> NDArray[np.float32]:
    """Blend the colours of classes over a grey picture, giving an RGB picture (H, W, 3).

    `gray` and `indices` are (H, W): grey values, which are clipped to 0 to 1, and classes. Class 0
    stays grey. `colors` (K, 3) has a row from 0 to 1 for each class. With an `opacity` of 1, grey
    values under a class are hidden. Inputs are not changed.
    """
    clipped = np.clip(gray, 0, 1).astype(np.float32)
    picture = np.repeat(clipped[..., None], 3, axis=-1)
    inside = indices > 0
    own_colors = colors[indices[inside]]
    picture[inside] = (1 - opacity) * picture[inside] + opacity * own_colors
    return picture


def outlines(indices: NDArray[Any]) -> NDArray[Any]:
    """Return a map of classes (H, W) in which only the pixels at the border of a class remain.

    Pixels surrounded by their own class become 0. The edge of the picture is no border: a class
    that reaches the edge has no outline there.
    """
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
    """Return three RGB pictures (H, W, 3): image, labels, and outlines over the image.

    `gray` (H, W) has values from 0 to 1, `indices` (H, W) has the classes, and `colors` (K, 3)
    their colours.
    """
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
    slices_per_view: int = 5,
) -> NDArray[np.uint8]:
    """Draw slices of a scan with the outlines of the labels, RGB (H, W, 3); each view has a row.

    The slices are spread evenly over the deep structures, or over all structures if the scheme has
    no deep ones or none was found. Each voxel has at least two pixels a side. `image` and `labels`
    (classes of `scheme`) are on one grid with RAS axes; GeometryError otherwise. Pillow draws it,
    because matplotlib would take a second.
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
    if brightest == 0:
        brightest = 1.0
    is_deep = np.array([label.group == _DEEP_GROUP for label in scheme.labels])
    looked_for = is_deep[indices]
    if not looked_for.any():
        looked_for = indices > 0
    rows: dict[str, list[Picture]] = {}
    for view in View:
        gray = to_slices(image.data, view)
        classes = to_slices(indices, view)
        window = brain_window(classes)
        rows[view.value] = []
        for position in _spread_slices(to_slices(looked_for, view), slices_per_view):
            shades = _enlarge(gray[position][window] / brightest)
            seen = classes[position][window]
            seen = seen.repeat(_MOSAIC_ZOOM, 0).repeat(_MOSAIC_ZOOM, 1)
            rows[view.value].append(overlay(shades, outlines(seen), colors, opacity=1))
    edges = {view.value: letters for view, letters in EDGES.items()}
    return draw_rows(rows, title, edges)


def _enlarge(gray: NDArray[Any]) -> NDArray[np.float32]:
    """Return grey values (H, W), interpolated to two pixels for each voxel along both axes."""
    from PIL import Image

    rows, columns = gray.shape
    size = (_MOSAIC_ZOOM * columns, _MOSAIC_ZOOM * rows)
    smooth = Image.fromarray(np.ascontiguousarray(gray, np.float32))
    return np.asarray(smooth.resize(size, Image.Resampling.BICUBIC))


def draw_rows(
    rows: Mapping[str, Sequence[Picture]],
    title: str,
    edges: Mapping[str, tuple[str, str]] | None = None,
) -> NDArray[np.uint8]:
    """Draw pictures in named rows, RGB (H, W, 3) from 0 to 255.

    `rows` has the pictures of each row by name; rows may have different numbers of pictures. Row 0
    of a picture is drawn at the bottom. `edges` has, by name of the row, the letters at the left
    and the right side of its pictures. Small pictures are enlarged by a whole number. `title` may
    be empty.
    """
    from PIL import Image, ImageDraw, ImageFont

    pictures: list[Picture] = []
    for row in rows.values():
        pictures += row
    edges = edges or {}
    longest_side = max(max(picture.shape[:2]) for picture in pictures)
    zoom = max(1, _LEAST_SIDE // longest_side)
    widest = max(picture.shape[1] for picture in pictures)
    width = zoom * widest + _GAP
    heights = []
    for row in rows.values():
        tallest = max(len(picture) for picture in row)
        heights.append(zoom * tallest + _GAP)
    most_in_a_row = max(len(row) for row in rows.values())
    bottom = 2 * _GAP if title else 0
    size = (_GAP + width * most_in_a_row, bottom + sum(heights))
    page = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(_LETTER)
    pen.text((page.width / 2, _GAP), title, _INK, font, "mm")
    for height, (name, row) in zip(heights, rows.items(), strict=True):
        bottom += height
        label = _upright_label(name, height - _GAP, font)
        page.paste(label, (0, bottom - label.height))
        first, last = edges.get(name, ("", ""))
        for column, picture in enumerate(row):
            # Row 0 of a picture is at the bottom, and each pixel is a square of `zoom`.
            pixels = top_first(picture)
            drawn = Image.fromarray(pixels.repeat(zoom, 0).repeat(zoom, 1))
            beside = (width - drawn.width) // 2
            left = _GAP + column * width + beside
            page.paste(drawn, (left, bottom - drawn.height))
            right = left + drawn.width
            _write_letter(pen, font, (left + 3, bottom - 3), first, "ls")
            _write_letter(pen, font, (right - 3, bottom - 3), last, "rs")
    return np.asarray(page)


def _upright_label(name: str, length: int, font: Any) -> Image:
    """Draw the name of a row as a vertical strip, to be read from below.

    `length` is the height of the strip in pixels.
    """
    from PIL import Image, ImageDraw

    label = Image.new("RGB", (length, _GAP), _PAPER)
    pen = ImageDraw.Draw(label)
    pen.text((length / 2, _GAP / 2), name, _INK, font, "mm")
    return label.transpose(Image.Transpose.ROTATE_90)


def top_first(picture: Picture) -> NDArray[np.uint8]:
    """Flip a picture whose row 0 is at the bottom, and convert values of 0 to 1 to 0 to 255."""
    turned = np.clip(picture[::-1], 0, 1)
    return np.rint(turned * 255).astype(np.uint8)


def _write_letter(
    pen: ImageDraw,
    font: Any,
    place: tuple[int, int],
    letter: str,
    anchor: str,
) -> None:
    """Write a letter with an outline, so that it is readable on bright tissue.

    `place` is the position in pixels of the letter's `anchor`, which is named as in Pillow.
    """
    pen.text(
        place,
        letter,
        fill=_INK,
        font=font,
        anchor=anchor,
        stroke_width=1,
        stroke_fill=_PAPER,
    )


def brain_window(truth: NDArray[Any]) -> tuple[slice, slice]:
    """Return the rows and columns that contain the brain in all slices (N, H, W), with a margin.

    `truth` has the classes. Specks of labels away from the brain, such as in the face, are left
    out.
    """
    occupied = truth > 0
    in_rows = occupied.sum((0, 2))
    in_columns = occupied.sum((0, 1))
    is_brain = np.outer(
        in_rows > _SPECK_SHARE * in_rows.max(),
        in_columns > _SPECK_SHARE * in_columns.max(),
    )
    _, rows, columns = box_around(is_brain[None], _MARGIN)
    return rows, columns


def box_around(occupied: NDArray[np.bool_], margin: int | NDArray[np.int_]) -> Box:
    """Return the box around all set voxels of a mask, with a margin; all of it if none is set.

    `margin` is in voxels: one number, or one for each axis.
    """
    box = occupied_box(occupied)
    if is_empty(box):
        return whole(occupied.shape)
    return grown(box, occupied.shape, margin)


def _spread_slices(truth: NDArray[Any], count: int) -> Sequence[int]:
    """Return the indices of `count` slices spread evenly over the labelled ones.

    `truth` (N, H, W) marks or labels the structures in all slices. The first and the last labelled
    slice are not among the result.
    """
    low = 0
    high = truth.shape[0] - 1
    occupied = np.flatnonzero(truth.any((1, 2)))
    if occupied.size:
        low = int(occupied[0])
        high = int(occupied[-1])
    parts = count + 1
    length = high - low
    return [round(low + length * part / parts) for part in range(1, parts)]


def encoded(
    picture: NDArray[np.uint8] | NDArray[np.uint16],
    kind: str,
    **options: Any,
) -> bytes:
    """Encode a picture (H, W) or (H, W, 3) in a format of Pillow's, such as "PNG" or "WEBP".

    Grey pictures (H, W) may have 16 bits. `options` are passed to Pillow, such as the quality.
    """
    from PIL import Image

    if kind == "WEBP":
        # Pillow ignores a library that cannot be loaded, and then does not know the format.
        # Importing it by name raises the reason: usually too little memory.
        importlib.import_module("PIL._webp")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()


def data_uri(kind: str, picture: bytes) -> str:
    """Return an encoded picture as a data URI; `kind` is "png" or "webp"."""
    encoded = base64.b64encode(picture).decode("ascii")
    return f"data:image/{kind};base64,{encoded}"
