"""Preparation: a scan as a model's networks take it, and the way back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trinat.segmentation.grid import to_shape
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
    if preprocessing.scaling == "minimum-maximum":
        # Such networks see the whole grid, not only the head.
        order = source_axes(preprocessing.axes, "RAS")
        shape_in_ras = to_shape(preprocessing.shape[axis] for axis, _ in order)
        conformed = conform(volume, shape=shape_in_ras)
        image = _scaled_from_minimum_to_maximum(volume, conformed)
    else:
        # The grid is only as large as the head needs.
        conformed = conform(volume, shape=None)
        image = conformed.volume
    # The working grid with its array's axes in another order; places stay where they are.
    image = reoriented(image, preprocessing.axes)
    image = replace(image, data=np.ascontiguousarray(image.data))
    plan: ConformPlan = replace(conformed.plan, working=image.grid)
    return Conformed(image, plan)


def _scaled_from_minimum_to_maximum(volume: Volume, conformed: Conformed) -> Volume:
    """The working grid with the least value of the scan on it as 0 and the greatest as 1."""
    plan = conformed.plan
    to_working = GridMap.between(plan.scan, plan.working)
    values = resample_image(volume.data, to_working)
    low = float(values.min())
    high = float(values.max())
    scaled = (values - low) / max(high - low, 1e-6)
    return replace(conformed.volume, data=scaled)
