"""Preparation: a scan as a model's networks take it, and the way back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.grid import Shape, to_shape
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.models.model_info import Preprocessing
from trinat.segmentation.space.conform import Conformed, ConformPlan, conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image
from trinat.segmentation.space.views import reoriented, source_axes


def prepare_scan(volume: Volume, preprocessing: Preprocessing) -> Conformed:
    """A scan on the working grid of a model, scaled and oriented as `preprocessing` says.

    The plan restores what is found on that grid to the scan's own space.
    """
    conformed = conform(volume, shape=needed_shape(preprocessing))
    image = conformed.volume
    if preprocessing.scaling == "minimum-maximum":
        image = _scaled_from_minimum_to_maximum(volume, conformed)
    return as_networks_take_it(image, conformed.plan, preprocessing)


def needed_shape(preprocessing: Preprocessing) -> Shape | None:
    """The shape of the working grid, with RAS axes, that a model needs.

    None where it is only as large as the head: networks that scale by minimum and maximum see the
    whole grid.
    """
    if preprocessing.scaling != "minimum-maximum":
        return None
    order = source_axes(preprocessing.axes, "RAS")
    return to_shape(preprocessing.shape[axis] for axis, _ in order)


def as_networks_take_it(
    image: Volume, plan: ConformPlan, preprocessing: Preprocessing
) -> Conformed:
    """An image on the working grid with its axes in the order of a model.

    The working grid has its array's axes in another order; places stay where they are.
    """
    image = reoriented(image, preprocessing.axes)
    image = replace(image, data=np.ascontiguousarray(image.data))
    reordered: ConformPlan = replace(plan, working=image.grid)
    return Conformed(image, reordered)


def _scaled_from_minimum_to_maximum(volume: Volume, conformed: Conformed) -> Volume:
    """The working grid with the least value of the scan on it as 0 and the greatest as 1."""
    upright = reoriented(volume, "RAS")
    to_working = GridMap.between(upright.grid, conformed.plan.working)
    values = resample_image(upright.data, to_working)
    return replace(conformed.volume, data=from_minimum_to_maximum(values))


def from_minimum_to_maximum(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values (X, Y, Z) with the least as 0 and the greatest as 1; 0 where all are equal."""
    low = float(values.min())
    high = float(values.max())
    return (values - low) / max(high - low, 1e-6)
