"""One picture of a scan and its labels: three views, image beside overlay, sides marked."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmentation.errors import GeometryError
from segmentation.io.volume import Volume
from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View, to_slices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "brain_window",
    "draw_mosaic",
    "draw_rows",
    "label_colors",
    "overlay",
    "png_bytes",
    "three_pictures",
]

Picture = NDArray[np.float32]

_INK, _PAPER = "#d8d8d8", "#101010"
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


def three_pictures(gray: NDArray[Any], indices: NDArray[Any], colors: Picture) -> list[Picture]:
    """The image, its labels, and these over it."""
    return [
        overlay(gray, np.zeros_like(indices), colors),
        overlay(np.zeros_like(gray), indices, colors, opacity=1),
        overlay(gray, indices, colors),
    ]


def draw_mosaic(
    image: Volume,
    labels: Volume,
    scheme: LabelScheme,
    *,
    title: str = "",
    slices_per_view: int = 3,
) -> Figure:
    """Image, labels and overlay in each view; both volumes on the working grid (RAS axes)."""
    if image.axcodes != "RAS" or image.shape != labels.shape:
        raise GeometryError("a mosaic needs image and class indices on one grid with RAS axes")
    indices = np.asarray(labels.data)
    colors = label_colors(scheme)
    brightest = float(np.percentile(image.data[indices > 0], 99.5)) if indices.any() else 1.0
    columns = 3 * slices_per_view
    figure, axes = _dark_grid(len(View), columns, (columns * 1.5, len(View) * 1.75), title)
    for line, view in zip(axes, View, strict=True):
        shown, truth = to_slices(image.data, view), to_slices(indices, view)
        window = brain_window(truth)
        pictures = [
            picture
            for n in _positions(truth, slices_per_view)
            for picture in three_pictures(shown[n][window] / brightest, truth[n][window], colors)
        ]
        for axis, picture in zip(line, pictures, strict=True):
            _show(axis, picture, _EDGES[view])
        line[0].set_ylabel(view.value, color=_INK)
    return figure


def draw_rows(rows: Mapping[str, Sequence[Picture]], columns: int, title: str) -> Figure:
    """Pictures in named rows; a slice's row 0 is at the bottom."""
    figure, axes = _dark_grid(len(rows), columns, (columns * 1.6, len(rows) * 1.8), title)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, picture in zip(line, pictures, strict=False):
            axis.imshow(picture, origin="lower", interpolation="nearest")
        line[0].set_title(name, color=_INK, fontsize=8, loc="left")
    return figure


def png_bytes(figure: Figure, dpi: int, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, **options)
    return buffer.getvalue()


def _dark_grid(
    rows: int, columns: int, size: tuple[float, float], title: str
) -> tuple[Figure, Any]:
    # Figure, not pyplot: no global state, and no window system is asked for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor=_PAPER, layout="constrained")
    if title:
        figure.suptitle(title, color=_INK, fontsize=11)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _show(axis: Any, picture: Picture, edges: tuple[str, str]) -> None:
    axis.imshow(picture, origin="lower", interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
    for x, align, letter in ((0.02, "left", edges[0]), (0.98, "right", edges[1])):
        box = {"facecolor": _PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.7}
        where = {"transform": axis.transAxes, "ha": align, "va": "bottom"}
        axis.text(x, 0.02, letter, color=_INK, fontsize=7, bbox=box, **where)


def brain_window(truth: NDArray[Any], margin: int = 10) -> tuple[slice, slice]:
    """Rows and columns of all slices that hold a structure, with a margin: the face stays out."""
    rows = np.asarray(truth.any((0, 2)))
    columns = np.asarray(truth.any((0, 1)))
    return _span(rows, margin), _span(columns, margin)


def _span(occupied: NDArray[np.bool_], margin: int) -> slice:
    found = np.flatnonzero(occupied)
    if found.size == 0:
        return slice(0, occupied.size)
    return slice(max(0, int(found[0]) - margin), int(found[-1]) + margin + 1)


def _positions(truth: NDArray[Any], count: int) -> Sequence[int]:
    """Slices spread evenly over those that hold a structure, ends left out."""
    found = np.flatnonzero(truth.any((1, 2)))
    low, high = (int(found[0]), int(found[-1])) if found.size else (0, truth.shape[0] - 1)
    return [round(low + (high - low) * (n + 1) / (count + 1)) for n in range(count)]
