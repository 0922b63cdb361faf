"""Common grid and labelled slices of two label maps, so that they can be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import GeometryError
from trinat.segmentation.grid import SAME_GRID_MM, Grid
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.space.views import reoriented


def on_grid_of(
    labels: Volume,
    reference: Volume,
    *,
    resample: bool = False,
    to_classes: Callable[[Volume], NDArray[Any]] | None = None,
) -> tuple[Volume, str]:
    """Return a label map on the grid of `reference`, with a note on what was changed.

    The note is "" if nothing was changed. Axes that only differ in order or direction are reordered
    without loss. Any other difference raises GeometryError. With `resample`, the map is resampled
    instead: the indicator (0 or 1) of each label is interpolated linearly, and each voxel gets the
    label with the largest value, as when trinat restores its own results to a scan's grid.

    The result holds class indices if `to_classes` is given, which converts a map to them, (X, Y,
    Z). It is called before resampling: parcels would each have fewer votes than the white matter
    beside them, and the cortex would shrink. It gets the map with the axes of `reference`, because
    ties between the sides depend on the order of axes.
    """
    same_axes = reoriented(labels, reference.axcodes)
    if to_classes is not None:
        same_axes = replace(same_axes, data=to_classes(same_axes))
    apart_mm = same_axes.grid.apart_mm(reference.grid)
    if apart_mm <= SAME_GRID_MM:
        note = ""
        if labels.axcodes != reference.axcodes:
            note = f"axes reordered from {labels.axcodes}, no loss"
        return Volume(same_axes.data, reference.affine, reference.codes), note
    difference = _difference(labels.grid, reference.grid, apart_mm)
    if not resample:
        raise GeometryError(
            f"not on the truth's grid: {difference}",
            remedy="use --resample to bring it there, and the report will say so",
        )
    # Imported here because it imports torch.
    from trinat.segmentation.space.grid_map import GridMap
    from trinat.segmentation.space.resample import resample_labels

    grid_map = GridMap.between(same_axes.grid, reference.grid)
    data = resample_labels(same_axes.data, grid_map)
    note = f"resampled to the truth's grid, label by label ({difference})"
    return Volume(data, reference.affine, reference.codes), note


def _difference(labels: Grid, reference: Grid, apart_mm: float) -> str:
    """Describe the most important difference of two grids, for an error message.

    `apart_mm` is the largest distance between corresponding corners of the two grids, measured with
    the axes in the same order and direction.
    """
    if labels.shape != reference.shape:
        return f"{_times(labels.shape)} voxels against {_times(reference.shape)}"
    if not np.allclose(labels.spacing_mm, reference.spacing_mm, rtol=1e-3):
        own_mm = _times([round(mm, 3) for mm in labels.spacing_mm])
        reference_mm = _times([round(mm, 3) for mm in reference.spacing_mm])
        return f"{own_mm} mm against {reference_mm} mm"
    return f"corners up to {apart_mm:.3g} mm apart"


def _times(numbers: Sequence[float]) -> str:
    """Format lengths for messages, as "1×1×1.2"."""
    return "×".join(f"{number:g}" for number in numbers)


Indices = NDArray[np.uint8]
Spacing = tuple[float, float, float]

# Fewer slices with fewer structures do not count as drawn slices: they can be a whole small
# structure.
_FEW_SLICES = 3
_FEW_STRUCTURES = 3


@dataclass(frozen=True, eq=False)
class DrawnSlices:
    """Labelled slices of a map that a rater drew on every n-th slice: no two are neighbours.

    `places` holds the indices of the labelled slices along `axis` (0 to 2), which has `total`
    slices. `thickness_mm` is the median distance from one labelled slice to the next.
    """

    axis: int
    places: NDArray[np.intp]
    thickness_mm: float
    total: int

    @property
    def note(self) -> str:
        """Text for the column `note`: the measurements cover the drawn slices only."""
        drawn = f"{len(self.places)} slices"
        if len(self.places) == 1:
            drawn = "a single slice"
        where = ("first", "second", "third")[self.axis]
        return (
            f"the truth is labelled on {drawn} of {self.total} along its {where} axis: "
            f"measured on these alone, as {self.thickness_mm:.3g} mm thick"
        )

    def alone(self, labels: Indices) -> Indices:
        """Return the labelled slices of a map (X, Y, Z), without the slices between them.

        The result stands for slices that are `thickness_mm` thick.
        """
        return labels.take(self.places, axis=self.axis)

    def blank_between(self, labels: Indices) -> Indices:
        """Return a copy of a map (X, Y, Z) with background on the slices that are not labelled."""
        blank = np.zeros_like(labels)
        # Array views with the axis across the slices first.
        from_slices = np.moveaxis(labels, self.axis, 0)
        to_slices = np.moveaxis(blank, self.axis, 0)
        to_slices[self.places] = from_slices[self.places]
        return blank

    def spacing_mm(self, spacing_mm: Spacing) -> Spacing:
        """Return the voxel spacing of the map that `alone` returns, from that of the whole map."""
        steps_mm = list(spacing_mm)
        steps_mm[self.axis] = self.thickness_mm
        x, y, z = steps_mm
        return x, y, z


def labelled_slices(
    true: Indices, predicted: Indices, spacing_mm: Spacing
) -> tuple[Indices, Indices, Spacing]:
    """Restrict two maps to the labelled slices of the truth, if it is labelled on single slices.

    Some raters draw labels on every n-th slice only. Return both maps and their voxel spacing; all
    are unchanged if the truth is labelled in full. `true` and `predicted` (X, Y, Z) hold class
    indices.
    """
    drawn = drawn_slices(true, spacing_mm)
    if drawn is None:
        return true, predicted, spacing_mm
    return drawn.alone(true), drawn.alone(predicted), drawn.spacing_mm(spacing_mm)


def drawn_slices(truth: Indices, spacing_mm: Spacing) -> DrawnSlices | None:
    """Find the labelled slices of a truth that is labelled on single slices.

    `truth` (X, Y, Z) holds class indices. Slices are single if no two of them are neighbours.
    Return None for a truth that is labelled in full, and if only a few slices have only a few
    structures: these can be a whole small structure.
    """
    for axis in range(3):
        slices = truth.shape[axis]
        others = tuple(other for other in range(3) if other != axis)
        places = np.flatnonzero(truth.any(axis=others))
        steps = np.diff(places)
        has_neighbours = (steps == 1).any()
        if slices == 1 or not len(places) or has_neighbours:
            continue
        voxels_of_each = np.bincount(truth.ravel(), minlength=2)
        structures = np.count_nonzero(voxels_of_each[1:])
        if len(places) < _FEW_SLICES and structures < _FEW_STRUCTURES:
            continue
        step = 1.0
        if len(steps):
            step = float(np.median(steps))
        return DrawnSlices(axis, places, step * spacing_mm[axis], slices)
    return None
