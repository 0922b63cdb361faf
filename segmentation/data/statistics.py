"""What a subject holds: its voxels by class, its intensities by class, and their distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.errors import DatasetError
from trinat.segmentation.space.resample import occupied_box
from trinat.segmentation.space.views import View, slice_axes, to_slices

_HISTOGRAM_BINS = 64
_HISTOGRAM_TOP = 1.5
_PERCENTILES = {"p1": 1, "p50": 50, "p99": 99}


@dataclass(frozen=True)
class Statistics:
    """What a subject holds, on the working grid of 1 mm³ voxels.

    `voxels` and `class_means` (of intensity, 0 where a class has no voxel) have an entry a class.
    `percentiles` and `histogram` are of the head, which is where intensity is above 0. The
    histogram has 64 bins from 0 to 1.5; the last is open above.
    """

    voxels: tuple[int, ...] = ()
    class_means: tuple[float, ...] = ()
    percentiles: Mapping[str, float] = field(default_factory=dict)
    histogram: tuple[int, ...] = ()


def count_along_axes(
    labels: NDArray[np.uint8], classes: int
) -> dict[View, NDArray[np.int64]]:
    """Voxels of each class in each slice of each view, (N, K), in labels (X, Y, Z).

    Raises DatasetError where a voxel's class is not below `classes`.
    """
    if labels.size and int(labels.max()) >= classes:
        raise DatasetError(f"class {labels.max()} in a map of {classes} classes")
    # Only the box around what is labelled needs counting: a fifth of the working grid.
    box = occupied_box(labels > 0)
    counts = {}
    for view in View:
        slices = to_slices(labels, view)
        per_slice = np.zeros((len(slices), classes), np.int64)
        first = box[slice_axes(view).along].start
        for number, inside in enumerate(to_slices(labels[box], view), start=first):
            per_slice[number] = np.bincount(inside.ravel(), minlength=classes)
        foreground = per_slice[:, 1:].sum(axis=1)
        per_slice[:, 0] = slices[0].size - foreground
        counts[view] = per_slice
    return counts


def describe(
    image: NDArray[np.float32] | None,
    labels: NDArray[np.uint8] | None,
    voxels: tuple[int, ...],
) -> Statistics:
    """Statistics of an image and its labels, (X, Y, Z) on one grid; either may be missing.

    `voxels` are those of each class, empty without labels.
    """
    if image is None:
        return Statistics(voxels=voxels)
    class_means: tuple[float, ...] = ()
    if labels is not None:
        class_means = _class_means(image, labels, len(voxels))
    head = image[image > 0]
    return Statistics(voxels, class_means, _percentiles(head), _histogram(head))


def _class_means(
    image: NDArray[np.float32],
    labels: NDArray[np.uint8],
    classes: int,
) -> tuple[float, ...]:
    """Mean intensity of each class; 0 for background and for classes without a voxel."""
    inside = labels > 0
    classes_inside = labels[inside]
    values = image[inside].astype(np.float64)
    sums = np.bincount(classes_inside, values, classes)
    numbers = np.bincount(classes_inside, minlength=classes)
    return tuple((sums / np.maximum(numbers, 1)).tolist())


def _percentiles(head: NDArray[np.float32]) -> dict[str, float]:
    """The 1st, 50th and 99th percentile of intensity; 0 without a voxel."""
    if not head.size:
        return dict.fromkeys(_PERCENTILES, 0.0)
    levels = np.percentile(head, tuple(_PERCENTILES.values())).tolist()
    return dict(zip(_PERCENTILES, levels, strict=True))


def _histogram(head: NDArray[np.float32]) -> tuple[int, ...]:
    """Voxels in each bin of intensity."""
    # The last bin takes everything above its top.
    capped = np.minimum(head, np.float32(_HISTOGRAM_TOP))
    histogram, _ = np.histogram(capped, _HISTOGRAM_BINS, (0, _HISTOGRAM_TOP))
    return tuple(histogram.tolist())
