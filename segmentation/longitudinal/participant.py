"""Joint segmentation of several scans of one participant.

All scans are resampled into a space halfway between them. The networks segment each scan
there, and their mean, the participant's template. The probabilities are averaged, and each scan
gets its labels in its own space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.inference.fusion import most_probable
from trinat.segmentation.inference.localisation import BrainRegion
from trinat.segmentation.inference.prediction import Prediction
from trinat.segmentation.inference.predictor import Predictor
from trinat.segmentation.inference.preparation import (
    from_minimum_to_maximum,
    needed_shape,
    to_model_axes,
)
from trinat.segmentation.io.volume import Volume
from trinat.segmentation.longitudinal.joining import Joining, flows_from
from trinat.segmentation.longitudinal.rigid import Alignment
from trinat.segmentation.longitudinal.space import ParticipantSpace, participant_space
from trinat.segmentation.space.background import on_working_scale
from trinat.segmentation.space.conform import Conformed, ConformPlan, conform
from trinat.segmentation.space.grid_map import GridMap
from trinat.segmentation.space.resample import resample_image
from trinat.segmentation.space.views import reoriented
from trinat.segmentation.timing import stage

Image = NDArray[np.float32]

# Margin around the template's brain, in voxels, in which the brain of a scan is segmented.
_MARGIN = 4
# Standard deviation of the local means that make scans equally bright. Shading varies over longer
# distances, and the change of a structure over far shorter ones.
_SMOOTH_MM = 25.0
# Shading is computed in every n-th voxel along each axis.
_STEP = 4
# Voxels in which all scans are brighter than this are tissue.
_TISSUE = 0.15
_EPSILON = 1e-4


@dataclass(frozen=True, eq=False)
class TimePoint:
    """Segmentation of one of several scans of a participant.

    `volumes_mm3` has the volume of each structure by name: the sum of its probabilities, averaged
    over all scans, in the participant's space. A voxel that is half of a structure counts half,
    which makes these volumes less noisy than counts of voxels.
    """

    prediction: Prediction
    volumes_mm3: dict[str, float]


class Together:
    """Jointly segmented scans of a participant; the result of each scan is computed on request.

    `joining` has the probabilities, averaged over the scans. `conclude` has a function for each
    scan that makes the prediction from the scan's probabilities. Memory holds the result of one
    scan at a time, however many scans there are.
    """

    def __init__(
        self, joining: Joining, conclude: Sequence[Callable[[Tensor], Prediction]]
    ) -> None:
        self._joining = joining
        self._conclude = conclude

    def time_point(self, number: int) -> TimePoint:
        """Return the segmentation of a scan.

        `number` is the scan's index in the order given to `segment_participant`.
        """
        with stage("join"):
            joined = self._joining.of_scan(number)
        prediction = self._conclude[number](joined)
        return TimePoint(prediction, _volumes(prediction))


def image_to_align(volume: Volume) -> Volume:
    """Resample a scan to RAS axes and voxels of 1 mm, so that it can be aligned with others.

    Intensities become 0 in the background and about 1 in the brightest tissue.
    """
    return conform(volume, shape=None).volume


def in_order(volumes: Sequence[Volume]) -> list[int]:
    """Return the indices of the scans in an order that depends only on their content.

    Scans that are processed in this order give the same bytes, whatever order they come in.
    """
    return sorted(range(len(volumes)), key=lambda number: _digest(volumes[number]))


def _digest(volume: Volume) -> str:
    """Return the SHA-256 of a volume's affine and voxels, as hexadecimal digits."""
    digest = hashlib.sha256(volume.affine.tobytes())
    digest.update(np.ascontiguousarray(volume.data).tobytes())
    return digest.hexdigest()


def segment_participant(
    predictor: Predictor,
    scans: Sequence[Volume],
    images: Sequence[Volume],
    alignments: Sequence[Alignment],
    *,
    mirror: bool = False,
) -> Together:
    """Segment two or more scans of one head jointly.

    `scans` must be in the order of `in_order`, which depends on their content only. `images` are
    the same scans with voxels of 1 mm, as from `image_to_align`, and `alignments` map the first
    image to each of them. With `mirror`, predictions are averaged with those for mirrored scans.
    The result computes the segmentation of each scan when it is asked for.
    """
    preprocessing = predictor.model.info.preprocessing
    with stage("halfway"):
        shape = needed_shape(preprocessing)
        space = participant_space(images, alignments, shape)
        data = []
        for number, scan in enumerate(scans):
            image = on_working_scale(reoriented(scan, "RAS"))
            to_grid = GridMap.between(image.grid, space.in_scan(number))
            data.append(resample_image(image.data, to_grid))
        data = equalise_brightness(data)
        template = np.asarray(np.mean(data, axis=0), np.float32)
        prepared = [
            _in_participant_space(predictor, scan, space, number, in_space)
            for number, (scan, in_space) in enumerate(zip(scans, data, strict=True))
        ]
        plan = ConformPlan(space.grid, (1, 1), space.grid)
        of_template = _on_working_grid(predictor, template, plan)

    def work() -> Together:
        return _segment_and_join(predictor, of_template, prepared, mirror=mirror)

    return predictor.with_less_memory(work)


def equalise_brightness(images: Sequence[Image]) -> list[Image]:
    """Make images (X, Y, Z) on one grid of 1 mm equally bright; each gets a smooth gain.

    Where all images show tissue, the local mean of each becomes the geometric mean of the local
    means of all.
    """
    coarse = [image[::_STEP, ::_STEP, ::_STEP] for image in images]
    is_tissue = np.all([image > _TISSUE for image in coarse], axis=0)
    tissue = is_tissue.astype(np.float32)
    share = _smooth(tissue)
    logarithms = []
    for image in coarse:
        total = _smooth(image * tissue)
        mean = (total + _EPSILON) / (share + _EPSILON)
        logarithms.append(np.log(mean))
    common = np.mean(logarithms, axis=0)
    result = []
    for image, logarithm in zip(images, logarithms, strict=True):
        gain = np.exp(common - logarithm)
        even = image * _upsample(gain, image.shape)
        result.append(np.asarray(even, np.float32))
    return result


def _smooth(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(ndimage.gaussian_filter(values, _SMOOTH_MM / _STEP))


def _upsample(values: NDArray[Any], shape: Sequence[int]) -> NDArray[np.float32]:
    """Interpolate values of every n-th voxel to a grid of this shape, with n `_STEP`.

    Interpolation is linear; the last values are repeated beyond them.
    """
    for axis, length in enumerate(shape):
        last = values.shape[axis] - 1
        places = np.arange(length) / _STEP
        lower = np.minimum(places.astype(int), last)
        upper = np.minimum(lower + 1, last)
        view = [1, 1, 1]
        view[axis] = length
        part = np.clip(places - lower, 0, 1).reshape(view)
        low = np.take(values, lower, axis)
        high = np.take(values, upper, axis)
        values = low * (1 - part) + high * part
    return values.astype(np.float32)


def _in_participant_space(
    predictor: Predictor,
    scan: Volume,
    space: ParticipantSpace,
    number: int,
    image: Image,
) -> Conformed:
    """Prepare a scan that was resampled to the participant's space for the networks.

    `number` is the index of the scan, and `image` has its values in the space. The plan of the
    result restores maps to the scan's own space.
    """
    pose = space.poses[number]
    plan = ConformPlan(scan.grid.moved_by(pose), scan.codes, space.grid)
    conformed = _on_working_grid(predictor, image, plan)
    # The same grid in the world of the scan, where it is oblique.
    working = conformed.plan.working.moved_by(np.linalg.inv(pose))
    volume = replace(conformed.volume, affine=working.affine, notes=scan.notes)
    return Conformed(volume, ConformPlan(scan.grid, scan.codes, working))


def _on_working_grid(
    predictor: Predictor, image: Image, plan: ConformPlan
) -> Conformed:
    """Prepare an image for the networks: scale and reorder it as the model needs it.

    `image` is on the 1 mm working grid of `plan`.
    """
    preprocessing = predictor.model.info.preprocessing
    if preprocessing.scaling == "minimum-maximum":
        image = from_minimum_to_maximum(image)
    volume = Volume(image, plan.working.affine, plan.codes)
    return to_model_axes(volume, plan, preprocessing)


def _segment_and_join(
    predictor: Predictor,
    template: Conformed,
    prepared: Sequence[Conformed],
    *,
    mirror: bool,
) -> Together:
    """Segment the template and all prepared scans, and join their probabilities.

    All are in the participant's space.
    """
    image = predictor.on_device(template)
    images = [predictor.on_device(scan) for scan in prepared]
    # The decision to reverse or strip is made once, on the template, so that scans stay
    # comparable.
    sight = predictor.find_sight(image)
    # A few views are enough for the template. Its weight is the share of the views that are used.
    views = predictor.enough_views
    seen_template = sight.of(image)
    region, fused, _ = predictor.find_and_fuse(
        seen_template, views=views, mirror=mirror
    )
    # All scans share the cortical parcellation: borders of parcels do not change with time.
    parcels = predictor.find_parcels(seen_template[region.box], fused, mirror=mirror)
    # The scans are segmented in the template's brain and a margin around it.
    brain = most_probable(fused)[1].cpu().numpy() > 0
    around_brain = ndimage.binary_dilation(brain, iterations=_MARGIN)
    near = BrainRegion(region.box, torch.from_numpy(around_brain))
    with stage("flow"):
        parts = [scan[region.box] for scan in images]
        flows = flows_from(image[region.box], parts)
    weight = len(views) / len(predictor.views)
    joining = Joining(image[region.box], fused, weight)
    maps = []
    lesions = []
    for conformed, scan, part, flow in zip(prepared, images, parts, flows, strict=True):
        seen = sight.of(scan)
        of_scan, maps_of_scan = predictor.fuse(
            seen, near, plan=conformed.plan, mirror=mirror
        )
        maps.append(maps_of_scan)
        # Lesions are found in each scan by itself, because they may be in one scan only.
        of_lesions = predictor.find_lesions(
            seen[region.box], of_scan, conformed.plan.cropped(region.box)
        )
        lesions.append(of_lesions)
        with stage("join"):
            joining.add(of_scan, part, flow)
        del of_scan
    plan = template.plan.cropped(region.box)
    with stage("prior"):
        remarks = (predictor.weigh(joining.mean, plan), *sight.remarks)
        joining.change_own(predictor.multiply_odds)
    joining.on_processor()
    conclude = [
        partial(
            predictor.conclude,
            scan,
            region,
            maps=maps_of_scan,
            remarks=remarks,
            parcels=parcels,
            lesions=of_lesions,
        )
        for scan, maps_of_scan, of_lesions in zip(prepared, maps, lesions, strict=True)
    ]
    return Together(joining, conclude)


def _volumes(prediction: Prediction) -> dict[str, float]:
    """Return the volume of each predicted structure in mm³, by name: its sum of probabilities."""
    # Plane by plane takes 0.1 s for four million voxels in one thread, `sum` over all at once 2.5
    # s.
    sums = torch.zeros(len(prediction.scheme), dtype=torch.float64)
    for plane in prediction.fused:
        sums += plane.double().sum((0, 1))
    voxel_mm3 = prediction.plan.working.voxel_mm3
    volumes = {}
    for label in prediction.scheme.labels[1:]:
        if label.name not in prediction.not_predicted:
            volumes[label.name] = float(sums[label.index]) * voxel_mm3
    return volumes
