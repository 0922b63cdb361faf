"""Simulated atrophy: a head and its labels, deformed together as if decades older."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benches._sessions import flow_of
from trinat.segmentation.grid import grown, occupied_box

Floats = NDArray[Any]

# FreeSurfer numbers of the lateral ventricles with their inferior horns, the other fluid, and
# the cerebrum: white matter, cortex, hippocampi, amygdalae, thalami and basal ganglia.
_VENTRICLES = (4, 5, 43, 44)
_OTHER_FLUID = (14, 15, 24)
_CEREBRUM = (2, 3, 10, 11, 12, 13, 17, 18, 26, 41, 42, 49, 50, 51, 52, 53, 54, 58)
# Gaps in the brain of up to twice this are fluid between gyri.
_GYRI_VOXELS = 5
# A volume grows by at most this share per step, so that no step folds space.
_GROWTH_OF_STEP = 0.12
_MARGIN_VOXELS = 24


@dataclass(frozen=True, eq=False)
class Origins:
    """Source coordinates of each voxel in a part of the array."""

    part: tuple[slice, ...]
    places: Floats  # (3, X, Y, Z), voxels of the part


def ageing(numbers: NDArray[np.int16], ventricles: float, sulci: float) -> Origins:
    """Return the deformation that enlarges fluid by these factors, composed of many small steps."""
    part = grown(occupied_box(numbers > 0), numbers.shape, _MARGIN_VOXELS)
    young = numbers[part]
    grid = np.indices(young.shape, dtype=np.float32)
    places = grid
    now = young
    steps = math.ceil(math.log(max(ventricles, sulci)) / _GROWTH_OF_STEP)
    for _ in range(steps):
        growth = growth_of(now, math.log(ventricles) / steps, math.log(sulci) / steps)
        before = grid - flow_of(growth)
        axes = [_sampled(np.asarray(axis), before, order=1) for axis in places]
        places = np.stack(axes)
        now = _sampled(young, places, order=0)
    return Origins(part, places)


def deformed(
    values: NDArray[Any], origins: Origins, *, labels: bool = False
) -> NDArray[Any]:
    """Return an image or a label map after ageing; outside of the deformed part it is unchanged."""
    after = values.copy()
    inside = values[origins.part]
    if labels:
        after[origins.part] = _sampled(inside, origins.places, order=0)
        return after
    smooth = _sampled(inside.astype(np.float32), origins.places, order=3)
    kept = np.clip(smooth, inside.min(), inside.max())
    after[origins.part] = (
        np.rint(kept) if np.issubdtype(values.dtype, np.integer) else kept
    )
    return after


def growth_of(numbers: NDArray[np.int16], ventricles: float, sulci: float) -> Floats:
    """Return the growth rate of each voxel.

    Fluid grows, and the cerebrum shrinks by the same total.
    """
    cerebrum = np.isin(numbers, _CEREBRUM)
    tissue = (numbers > 0) & ~np.isin(numbers, _OTHER_FLUID)
    gaps = _closed(tissue) & np.isin(numbers, (0, 24))
    growth = (
        np.float32(ventricles) * np.isin(numbers, _VENTRICLES)
        + np.float32(sulci) * gaps
    )
    return growth - cerebrum * np.float32(growth.sum() / cerebrum.sum())


def _closed(brain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the brain with its sulci filled."""
    near = ndimage.distance_transform_edt(~brain) <= _GYRI_VOXELS
    closed: NDArray[np.bool_] = ndimage.distance_transform_edt(near) > _GYRI_VOXELS
    return closed


def _sampled(values: NDArray[Any], places: Floats, order: int) -> NDArray[Any]:
    sampled: NDArray[Any] = ndimage.map_coordinates(
        values, places, order=order, mode="nearest"
    )
    return sampled
