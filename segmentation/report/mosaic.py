"""One picture of a scan and its labels: three views, image beside overlay, sides marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmentation.errors import GeometryError
from segmentation.labels import LabelScheme
from segmentation.views import View, to_slices
from segmentation.volume import Volume

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["brain_window", "draw_mosaic", "label_colors", "overlay"]

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    indices = np.asarray(labels.data)
    colors = label_colors(scheme)
    brightest = float(np.percentile(image.data[indices > 0], 99.5)) if indices.any() else 1.0
    columns = 3 * slices_per_view
    figure = Figure(figsize=(columns * 1.5, 3 * 1.75), facecolor=_PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(View), columns, squeeze=False)
    for row, view in enumerate(View):
        shown = to_slices(image.data, view)
        truth = to_slices(indices, view)
        window = brain_window(truth)
        for n, position in enumerate(_positions(truth, slices_per_view)):
            gray = np.asarray(shown[position])[window] / brightest
            classes = np.asarray(truth[position])[window]
            blank = np.zeros_like(gray)
            for m, picture in enumerate(
                (
                    overlay(gray, np.zeros_like(classes), colors),
                    overlay(blank, classes, colors, opacity=1),
                    overlay(gray, classes, colors),
                )
            ):
                _show(axes[row][3 * n + m], picture, _EDGES[view])
        axes[row][0].set_ylabel(view.value, color=_INK)
    if title:
        figure.suptitle(title, color=_INK, fontsize=11)
    return figure


def _show(axis: Any, picture: NDArray[np.float32], edges: tuple[str, str]) -> None:
    axis.imshow(picture, origin="lower", interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(False)
    for x, align, letter in ((0.02, "left", edges[0]), (0.98, "right", edges[1])):
        axis.text(
            x,
            0.02,
            letter,
            transform=axis.transAxes,
            ha=align,
            va="bottom",
            color=_INK,
            fontsize=7,
            bbox={"facecolor": _PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.7},
        )


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
