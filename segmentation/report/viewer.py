"""One case for the page's slice viewer: three small volumes as pictures, and a still of the worst.

The page unpacks the pictures into volumes and cuts any plane from them. A grey volume of a head
is 250 kB as WebP and a label map 60 kB as PNG, where a general viewer brings 2.3 MB of script.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segmentation.io.volume import Volume
from segmentation.labels.scheme import LabelScheme
from segmentation.report.mosaic import label_colors, overlay
from segmentation.space.views import View, reoriented, to_slices

__all__ = ["ERROR_COLORS", "CaseView", "view_case"]

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
    truth: str
    prediction: str
    start: tuple[int, int, int]
    still_png: bytes

    @property
    def still(self) -> str:
        return _uri("png", self.still_png)


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
    box = _box(true, predicted, truth, everything=show_head and gray is not None)
    zoom = _zoom(truth, tuple(s.stop - s.start for s in box))
    true, predicted = (_scaled(x[box], zoom, order=0) for x in (true, predicted))
    shades = _shades(
        None if gray is None else _scaled(gray[box].astype(np.float32), zoom, order=1), true
    )
    if not show_head:
        # By the truth alone: a prediction that leaks into the face must not uncover it.
        shades[_far_from_brain(true > 0)] = 0
    start = _worst_place(true, predicted, focus)
    columns = int(np.ceil(np.sqrt(true.shape[2])))
    shape = true.shape[0], true.shape[1], true.shape[2]
    return CaseView(
        shape,
        columns,
        _uri("webp", _encoded(_tiled(shades, columns), "WEBP", quality=70, method=4)),
        _uri("png", _encoded(_tiled(true, columns), "PNG")),
        _uri("png", _encoded(_tiled(predicted, columns), "PNG")),
        start,
        _encoded(_still(shades, true, predicted, scheme, start), "PNG"),
    )


def _box(
    true: NDArray[Any], predicted: NDArray[Any], volume: Volume, *, everything: bool
) -> tuple[slice, slice, slice]:
    occupied = (true > 0) | (predicted > 0)
    if everything or not occupied.any():
        return (slice(0, true.shape[0]), slice(0, true.shape[1]), slice(0, true.shape[2]))
    margins = np.ceil(_MARGIN_MM / np.array(volume.spacing_mm)).astype(int)
    sides = []
    for axis, margin in enumerate(margins):
        found = np.flatnonzero(occupied.any(tuple(a for a in range(3) if a != axis)))
        sides.append(
            slice(max(0, found[0] - margin), min(true.shape[axis], found[-1] + margin + 1))
        )
    return sides[0], sides[1], sides[2]


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


def _far_from_brain(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    distance: NDArray[np.float64] = ndimage.distance_transform_edt(~brain)
    return distance > _SHOWN_MM / _STEP_MM


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
    slices[:z] = volume.transpose(2, 1, 0)
    return slices.reshape(rows, columns, y, x).swapaxes(1, 2).reshape(rows * y, columns * x)


def _encoded(picture: NDArray[np.uint8], kind: str, **options: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, kind, **options)
    return buffer.getvalue()


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
