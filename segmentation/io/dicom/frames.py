"""Geometry of the images of a DICOM series, and the volume that they form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import GeometryError, IntegrityError
from trinat.segmentation.io.dicom.parsing import (
    REMAKE,
    frame_count,
    functional_group,
    several,
)
from trinat.segmentation.io.orientation import MAX_SHEAR

if TYPE_CHECKING:
    from pydicom import Dataset

# Tolerance for positions in mm, because they are written with few digits.
_POSITION_MM = 0.01
# Tolerance for a slice's position on an even grid, as a share of the distance between slices.
_UNEVEN = 0.01
_SAME_COSINES = 1e-4
# Functional groups of an enhanced file that contain these elements of a frame.
_GROUPS = {
    "ImagePositionPatient": "PlanePosition",
    "ImageOrientationPatient": "PlaneOrientation",
    "PixelSpacing": "PixelMeasures",
    "RescaleSlope": "PixelValueTransformation",
    "RescaleIntercept": "PixelValueTransformation",
}


class Frame(NamedTuple):
    """Location of an image in the files, and its position in the patient's space (LPS, mm).

    The frame is image `number` of the file with the number `file`. `position` is the centre of its
    first pixel. `cosines` are the unit vectors along a row (first three values) and along a column.
    `spacing` has the distances between rows and between columns. `scaling` has the slope and the
    intercept of its values.
    """

    file: int
    number: int
    position: tuple[float, ...]
    cosines: tuple[float, ...]
    spacing: tuple[float, ...]
    scaling: tuple[float, ...]


class Stack(NamedTuple):
    """Frames in the order of their slices, and the affine (4, 4) of the volume that they form.

    `affine`, float64, maps (column, row, slice) to RAS mm. `notes` describe unusual properties that
    were accepted, a sentence each; they are empty for an ordinary series.
    """

    frames: list[Frame]
    affine: NDArray[np.float64]
    notes: tuple[str, ...]


def frames_of(dataset: Dataset, file: int, where: Path) -> list[Frame]:
    """Return the geometry of each image in a file; enhanced files hold several images.

    `file` is the number that the frames get for this file; `where` is its path, for messages. The
    errors are IntegrityError if the numbers of frames and positions differ, and GeometryError if a
    position is missing.
    """
    count = frame_count(dataset)
    places = 1
    if _is_enhanced(dataset):
        places = len(dataset.PerFrameFunctionalGroupsSequence)
    if count != places:
        raise IntegrityError("not a place for each frame", where=where, remedy=REMAKE)
    return [_frame(dataset, file, number, where) for number in range(count)]


def _is_enhanced(dataset: Dataset) -> bool:
    """Return True for an enhanced file: it holds several frames, each with its own position."""
    return "PerFrameFunctionalGroupsSequence" in dataset


def _frame(dataset: Dataset, file: int, number: int, where: Path) -> Frame:
    """Return the geometry of frame `number` of a file.

    Raises GeometryError if its position, orientation or spacing is missing.
    """
    position = _values_of_element(dataset, number, "ImagePositionPatient")
    cosines = _values_of_element(dataset, number, "ImageOrientationPatient")
    spacing = _values_of_element(dataset, number, "PixelSpacing")
    slope = _values_of_element(dataset, number, "RescaleSlope") or (1.0,)
    intercept = _values_of_element(dataset, number, "RescaleIntercept") or (0.0,)
    scaling = (*slope, *intercept)
    counts = (len(position), len(cosines), len(spacing))
    is_complete = counts == (3, 6, 2)
    numbers = (*position, *cosines, *spacing, *scaling)
    if not is_complete or not np.isfinite(numbers).all():
        raise GeometryError(
            "its place, orientation or spacing is missing",
            where=where,
            remedy=REMAKE,
        )
    return Frame(file, number, position, cosines, spacing, scaling)


def _values_of_element(dataset: Dataset, frame: int, keyword: str) -> tuple[float, ...]:
    """Return the values of the element `keyword` for a frame; () if the element is missing."""
    if _is_enhanced(dataset):
        values = functional_group(dataset, frame, _GROUPS[keyword]).get(keyword)
    else:
        values = dataset.get(keyword)
    return tuple(float(value) for value in several(values))


def stack(frames: list[Frame], where: Path) -> Stack:
    """Sort frames along the normal of their plane, and fit an even grid to their positions.

    Raises GeometryError if the frames are not the slices of one volume.
    """
    row, column = _common_plane(frames, where)
    normal = np.cross(row, column)

    def along_normal(frame: Frame) -> float:
        return float(np.dot(frame.position, normal))

    ordered = sorted(frames, key=along_normal)
    places = np.array([frame.position for frame in ordered])
    # Fit a line through the slice positions by least squares. Slice numbers are counted from the
    # middle and sum to 0, so that the slope is one division.
    numbers = np.arange(len(places)) - (len(places) - 1) / 2
    step = numbers @ places / (numbers @ numbers)
    even_places = places.mean(axis=0) + np.outer(numbers, step)
    offsets = places - even_places
    gaps = np.diff(places @ normal)
    problem = _why_uneven(offsets, gaps, step, normal)
    if problem:
        raise GeometryError(problem, where=where, remedy=REMAKE)
    rows_mm, columns_mm = ordered[0].spacing
    # A step to the next column goes along a row, and a step to the next row along a column.
    axes = [row * columns_mm, column * rows_mm, step, even_places[0]]
    affine = np.eye(4)
    affine[:3] = np.column_stack(axes)
    # From DICOM's LPS to RAS, without -0.0.
    affine[:2] *= -1
    affine += 0.0
    notes: tuple[str, ...] = ()
    off_mm = _largest_offset(offsets, normal)
    if off_mm > _POSITION_MM:
        usual_mm = float(np.median(gaps))
        notes = (
            f"slices lie up to {off_mm:.2g} mm off an even spacing of {usual_mm:.4g} mm",
        )
    return Stack(ordered, affine, notes)


def _common_plane(
    frames: list[Frame], where: Path
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orthogonal unit vectors along the rows and the columns of all frames.

    Raises GeometryError for several orientations or pixel sizes, and for sheared axes.
    """
    cosines = np.array([frame.cosines for frame in frames])
    if np.abs(cosines - cosines[0]).max() > _SAME_COSINES:
        raise GeometryError(
            "slices of several orientations", where=where, remedy="give one scan"
        )
    if len({frame.spacing for frame in frames}) > 1:
        raise GeometryError(
            "slices of several pixel sizes", where=where, remedy="give one scan"
        )
    row = cosines[0, :3]
    column = cosines[0, 3:]
    errors = [row @ row - 1, column @ column - 1, row @ column]
    if np.abs(errors).max() > MAX_SHEAR:
        raise GeometryError(
            "rows and columns are not at right angles", where=where, remedy=REMAKE
        )
    return row, column


def _why_uneven(
    offsets: NDArray[np.float64],
    gaps: NDArray[np.float64],
    step: NDArray[np.float64],
    normal: NDArray[np.float64],
) -> str:
    """Return the reason why slices do not form an even grid, or "" if they do.

    `offsets` (N, 3) are the distances of slices from their positions on the grid. `gaps` (N - 1)
    are the distances between neighbours along the `normal` (3,). `step` (3,) is the step of the
    grid from slice to slice. All but the normal are in mm.
    """
    usual_mm = float(np.median(gaps))
    slack_mm = max(_POSITION_MM, usual_mm * _UNEVEN)
    if gaps.min() < _POSITION_MM:
        twice = int((gaps < _POSITION_MM).sum())
        return f"{twice} slices where another is: several echoes, times or parts in one series"
    if _largest_offset(offsets, normal) > slack_mm:
        missing = np.rint(gaps / usual_mm) - 1
        if np.abs(gaps - usual_mm * (missing + 1)).max() <= slack_mm:
            return f"slices are missing within it: {missing.sum():.0f}"
        return f"unequal spacing of slices, {gaps.min():.4g} to {gaps.max():.4g} mm"
    if np.abs(offsets).max() > slack_mm:
        return "slices are not in a line"
    sideways = step - normal * (step @ normal)
    if np.linalg.norm(sideways) > MAX_SHEAR * usual_mm:
        return "slices are shifted sideways (a tilted gantry)"
    return ""


def _largest_offset(offsets: NDArray[np.float64], normal: NDArray[np.float64]) -> float:
    """Return the largest distance of a slice from its grid position, along the normal, in mm."""
    return float(np.abs(offsets @ normal).max())
