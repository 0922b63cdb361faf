"""Where the images of a DICOM series are, and the volume that they make as slices."""

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

# Positions are written with few digits.
_POSITION_MM = 0.01
# How far a slice may be off its place on an even grid, as a share of the slices' distance.
_UNEVEN = 0.01
_SAME_COSINES = 1e-4
# The functional group of an enhanced file that holds each element of a frame.
_GROUPS = {
    "ImagePositionPatient": "PlanePosition",
    "ImageOrientationPatient": "PlaneOrientation",
    "PixelSpacing": "PixelMeasures",
    "RescaleSlope": "PixelValueTransformation",
    "RescaleIntercept": "PixelValueTransformation",
}


class Frame(NamedTuple):
    """An image: where it is in the files, and in the patient's space (LPS, mm).

    It is image `number` of `file`. `position` is the centre of its first pixel. `cosines` are the
    directions along a row (3) and along a column (3), `spacing` the distances between rows and
    between columns. `scaling` is slope and intercept of its values.
    """

    file: int
    number: int
    position: tuple[float, ...]
    cosines: tuple[float, ...]
    spacing: tuple[float, ...]
    scaling: tuple[float, ...]


class Stack(NamedTuple):
    """Frames in the order of their slices, and the affine (column, row, slice) -> RAS mm.

    `affine` is (4, 4), float64. `notes` say what was unusual and accepted, as a sentence each; it
    is empty for an ordinary series.
    """

    frames: list[Frame]
    affine: NDArray[np.float64]
    notes: tuple[str, ...]


def frames_of(dataset: Dataset, file: int, where: Path) -> list[Frame]:
    """Where each image in a file is; of an enhanced file by its functional groups.

    `file` is the number by which its frames are found again. Raises IntegrityError where frames
    and places differ in number, GeometryError where a place is missing.
    """
    count = frame_count(dataset)
    places = 1
    if _is_enhanced(dataset):
        places = len(dataset.PerFrameFunctionalGroupsSequence)
    if count != places:
        raise IntegrityError("not a place for each frame", where=where, remedy=REMAKE)
    return [_frame(dataset, file, number, where) for number in range(count)]


def _is_enhanced(dataset: Dataset) -> bool:
    """Whether a file holds several frames, each with a place of its own."""
    return "PerFrameFunctionalGroupsSequence" in dataset


def _frame(dataset: Dataset, file: int, number: int, where: Path) -> Frame:
    """One frame of a file; GeometryError where its place is missing."""
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
    """The values of an element for a frame; none where it is not there."""
    if _is_enhanced(dataset):
        values = functional_group(dataset, frame, _GROUPS[keyword]).get(keyword)
    else:
        values = dataset.get(keyword)
    return tuple(float(value) for value in several(values))


def stack(frames: list[Frame], where: Path) -> Stack:
    """Order frames along the normal of their plane, and lay an even grid through them.

    Raises GeometryError where they are not the slices of one volume.
    """
    row, column = _common_plane(frames, where)
    normal = np.cross(row, column)

    def along_normal(frame: Frame) -> float:
        return float(np.dot(frame.position, normal))

    ordered = sorted(frames, key=along_normal)
    places = np.array([frame.position for frame in ordered])
    # The even grid that comes nearest to all slices: a line fitted by least squares. With slice
    # numbers counted from the middle their sum is 0, and the fit is one division.
    numbers = np.arange(len(places)) - (len(places) - 1) / 2
    step = numbers @ places / (numbers @ numbers)
    even_places = places.mean(axis=0) + np.outer(numbers, step)
    offsets = places - even_places
    gaps = np.diff(places @ normal)
    problem = _problem(offsets, gaps, step, normal)
    if problem:
        raise GeometryError(problem, where=where, remedy=REMAKE)
    rows_mm, columns_mm = ordered[0].spacing
    # A step to the next column goes along a row, and one to the next row along a column.
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
    """Unit vectors along the rows and the columns of all frames, at right angles.

    Raises GeometryError for frames of several orientations or pixel sizes.
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
    """Why slices are no even grid, or nothing.

    `offsets` (N, 3) is how far each is off its place on the grid, `gaps` (N - 1) the distances
    between neighbours along the normal, `step` (3,) the grid's step. All are in mm.
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
    """How far slices are off their places along the normal, at most."""
    return float(np.abs(offsets @ normal).max())


def _ras_affine(
    column_step: NDArray[np.float64],
    row_step: NDArray[np.float64],
    slice_step: NDArray[np.float64],
    *,
    origin: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The affine (4, 4) to RAS mm of steps and origin in DICOM's space.

    There x grows to the patient's left and y to the back.
    """
    affine = np.eye(4)
    affine[:3] = np.column_stack([column_step, row_step, slice_step, origin])
    affine[:2] *= -1
    # No zero is negative.
    affine += 0.0
    return affine
