"""Geometry of the images of a DICOM series, and the volume of which they are slices."""

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

# Tolerance for positions, which are written with few digits.
_POSITION_MM = 0.01
# Tolerance for a slice's position on an even grid, as a share of the distance between slices.
_UNEVEN = 0.01
_SAME_COSINES = 1e-4
# Functional groups of an enhanced file that hold the elements of a frame.
_GROUPS = {
    "ImagePositionPatient": "PlanePosition",
    "ImageOrientationPatient": "PlaneOrientation",
    "PixelSpacing": "PixelMeasures",
    "RescaleSlope": "PixelValueTransformation",
    "RescaleIntercept": "PixelValueTransformation",
}


class Frame(NamedTuple):
    """Position of an image in the files and in the patient's space (LPS, mm).

    The frame is image `number` of `file`. `position` is the centre of its first pixel.
    `cosines` are the directions along a row (3) and along a column (3), `spacing` the distances
    between rows and between columns. `scaling` is the slope and intercept of its values.
    """

    file: int
    number: int
    position: tuple[float, ...]
    cosines: tuple[float, ...]
    spacing: tuple[float, ...]
    scaling: tuple[float, ...]


class Stack(NamedTuple):
    """Frames in the order of their slices, and the affine (column, row, slice) -> RAS mm.

    `affine` is (4, 4), float64. `notes` describe unusual properties that were accepted, a
    sentence each; they are empty for an ordinary series.
    """

    frames: list[Frame]
    affine: NDArray[np.float64]
    notes: tuple[str, ...]


def frames_of(dataset: Dataset, file: int, where: Path) -> list[Frame]:
    """Return the geometry of each image in a file; of an enhanced file from its functional groups.

    `file` is the number that identifies the file of the frames. Raises IntegrityError if the
    numbers of frames and positions differ, and GeometryError if a position is missing.
    """
    count = frame_count(dataset)
    places = 1
    if _is_enhanced(dataset):
        places = len(dataset.PerFrameFunctionalGroupsSequence)
    if count != places:
        raise IntegrityError("not a place for each frame", where=where, remedy=REMAKE)
    return [_frame(dataset, file, number, where) for number in range(count)]


def _is_enhanced(dataset: Dataset) -> bool:
    """Return True if a file holds several frames, each with its own position."""
    return "PerFrameFunctionalGroupsSequence" in dataset


def _frame(dataset: Dataset, file: int, number: int, where: Path) -> Frame:
    """Return one frame of a file; raise GeometryError if its position is missing."""
    position = _numbers(dataset, number, "ImagePositionPatient")
    cosines = _numbers(dataset, number, "ImageOrientationPatient")
    spacing = _numbers(dataset, number, "PixelSpacing")
    slope = _numbers(dataset, number, "RescaleSlope") or (1.0,)
    intercept = _numbers(dataset, number, "RescaleIntercept") or (0.0,)
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


def _numbers(dataset: Dataset, frame: int, keyword: str) -> tuple[float, ...]:
    """Return the values of an element for a frame; () if the element is missing."""
    if _is_enhanced(dataset):
        values = functional_group(dataset, frame, _GROUPS[keyword]).get(keyword)
    else:
        values = dataset.get(keyword)
    return tuple(float(value) for value in several(values))


def stack(frames: list[Frame], where: Path) -> Stack:
    """Order frames along the normal of their plane, and fit an even grid to them.

    Raises GeometryError if they are not the slices of one volume.
    """
    row, column = _common_plane(frames, where)
    normal = np.cross(row, column)

    def along_normal(frame: Frame) -> float:
        return float(np.dot(frame.position, normal))

    ordered = sorted(frames, key=along_normal)
    places = np.array([frame.position for frame in ordered])
    # The grid is a line through the slice positions, fitted by least squares. Slice numbers counted
    # from the middle sum to 0, so the fit is one division.
    numbers = np.arange(len(places)) - (len(places) - 1) / 2
    step = numbers @ places / (numbers @ numbers)
    even_places = places.mean(axis=0) + np.outer(numbers, step)
    offsets = places - even_places
    gaps = np.diff(places @ normal)
    problem = _problem(offsets, gaps, step, normal)
    if problem:
        raise GeometryError(problem, where=where, remedy=REMAKE)
    rows_mm, columns_mm = ordered[0].spacing
    # A step to the next column goes along a row, and a step to the next row along a column.
    steps = (row * columns_mm, column * rows_mm, step)
    affine = _ras_affine(*steps, origin=even_places[0])
    notes: tuple[str, ...] = ()
    off_mm = _off_along(offsets, normal)
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


def _problem(
    offsets: NDArray[np.float64],
    gaps: NDArray[np.float64],
    step: NDArray[np.float64],
    normal: NDArray[np.float64],
) -> str:
    """Return why slices do not form an even grid, or "" if they do.

    `offsets` (N, 3) are the distances of slices from their positions on the grid, `gaps` (N -
    1) the distances between neighbours along the normal, `step` (3,) the grid's step. All are
    in mm.
    """
    usual_mm = float(np.median(gaps))
    slack_mm = max(_POSITION_MM, usual_mm * _UNEVEN)
    if gaps.min() < _POSITION_MM:
        twice = int((gaps < _POSITION_MM).sum())
        return f"{twice} slices where another is: several echoes, times or parts in one series"
    if _off_along(offsets, normal) > slack_mm:
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


def _off_along(offsets: NDArray[np.float64], normal: NDArray[np.float64]) -> float:
    """Return the largest offset of a slice along the normal."""
    return float(np.abs(offsets @ normal).max())


def _ras_affine(
    column_step: NDArray[np.float64],
    row_step: NDArray[np.float64],
    slice_step: NDArray[np.float64],
    *,
    origin: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the affine (4, 4) to RAS mm from steps and origin in DICOM's space.

    In DICOM's space x grows to the patient's left and y to the back.
    """
    affine = np.eye(4)
    affine[:3] = np.column_stack([column_step, row_step, slice_step, origin])
    affine[:2] *= -1
    # Turn -0.0 into 0.0.
    affine += 0.0
    return affine
