"""Probability of a lesion in each voxel of the brain, by a small network.

The network sees no image. It sees how much brighter than white matter a voxel and its surroundings
are, how probable the structures are that a model has found there, and how often lesions lie at this
place. So it is trained within minutes, and takes seconds for a scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy import ndimage
from torch import Tensor, nn

from trinat.segmentation.errors import ModelError
from trinat.segmentation.io.files import read_bytes
from trinat.segmentation.labels.scheme import LabelScheme
from trinat.segmentation.models.zoo import COPY_AGAIN
from trinat.segmentation.space.morphology import largest_part, without_holes

Image = NDArray[np.float32]

# FreeSurfer numbers of the groups of structures whose probabilities are features.
_GROUPS = {
    "white": (2, 41),
    "cortex": (3, 42),
    "deep": (10, 11, 12, 13, 17, 18, 26, 28, 49, 50, 51, 52, 53, 54, 58, 60),
    "ventricle": (4, 5, 14, 43, 44),
    "below": (7, 8, 15, 16, 46, 47),
}
# Background and the fluid around the brain.
_NO_BRAIN = (0, 24)
_OUTSIDE = "outside"
# Groups whose mean probability in the surroundings of a voxel is a feature, too.
_AROUND = ("white", "cortex", "ventricle")
_SIGMAS_MM = (1.0, 2.0, 4.0)
FEATURES = (
    *("brighter", *(f"brighter_{sigma:g}mm" for sigma in _SIGMAS_MM)),
    *("in_noise", "in_noise_1mm", "in_contrast"),
    *("depth_mm", "from_ventricle_mm", "prior"),
    *_GROUPS,
    *(f"{name}_around" for name in _AROUND),
    *("lateral", "forward", "up"),
    *("is_flair", "thick_mm"),
)
# Width of the two hidden layers.
_WIDTH = 32
_SURE = 0.9
# Contrast of T1: the brightness of cortex relative to white matter, minus 1, is below this.
_DARKER = -0.07
# White matter that differs from its median by more standard deviations than this is left out of the
# estimate of shading: it may be a lesion.
_OUTLIER = 2.5
# Shading is smooth over this distance.
_SHADING_MM = 12.0
# Components of the ventricles with fewer voxels are mislabelled lesions.
_LARGE_PART = 300
_MAX_MM = 40.0
# Ratio of the standard deviation to the median absolute deviation in a normal distribution.
_SD_OF_MAD = 1.4826


class LesionNetwork(nn.Module):
    """Network that classifies single voxels by their features (`FEATURES`).

    `prior` is a map (X, Y, Z) of the logarithm of how often lesions lie at each position, relative
    to the extent of the white matter. `mean` and `deviation` (F,) normalise the F features. In
    slices thinner than `thinnest_mm` the network was found to be unreliable; 0 for no limit. All
    four are saved with the weights.
    """

    def __init__(self, prior_shape: tuple[int, ...]) -> None:
        """Build an untrained network; `prior_shape` is the shape of the map `prior`."""
        super().__init__()
        self.prior: Tensor
        self.mean: Tensor
        self.deviation: Tensor
        self.thinnest_mm: Tensor
        self.register_buffer("prior", torch.zeros(prior_shape))
        self.register_buffer("mean", torch.zeros(len(FEATURES)))
        self.register_buffer("deviation", torch.ones(len(FEATURES)))
        self.register_buffer("thinnest_mm", torch.zeros(()))
        self.layers = nn.Sequential(
            nn.Linear(len(FEATURES), _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the logit of lesion (N,) for N voxels with features (N, F)."""
        normal = ((features - self.mean) / self.deviation).clamp(-5, 5)
        logits: Tensor = self.layers(normal)
        return logits.squeeze(-1)


@dataclass(frozen=True, eq=False)
class VoxelFeatures:
    """Features of all voxels of the brain.

    `places` (X, Y, Z) is the mask of the N voxels of the brain. `values` (N, F) has the features of
    these voxels, in C order; the columns are `FEATURES`. `is_flair` is True if cortex is brighter
    than white matter, or hardly darker, unlike in T1.
    """

    places: NDArray[np.bool_]
    values: NDArray[np.float32]
    is_flair: bool


@dataclass(frozen=True, eq=False)
class LesionMap:
    """Probability of lesion in each voxel of the working grid (RAS axes, 1 mm).

    `probability` is (X, Y, Z). `is_flair` is True if the contrast of the scan is that of FLAIR,
    False for T1. `is_too_thin` is True if the network is unreliable in slices as thin as those of
    the scan. `is_searched` is False if the network could not run: the probability is then 0, which
    does not mean that there are no lesions.
    """

    probability: NDArray[np.float32]
    is_flair: bool
    is_too_thin: bool = False
    is_searched: bool = True


def load_lesion_network(path: Path) -> LesionNetwork:
    """Load the network from a safetensors file.

    Raises ModelError if the file is damaged or holds another network.
    """
    try:
        tensors = safetensors.torch.load(read_bytes(path))
        network = LesionNetwork(tuple(tensors["prior"].shape))
        network.load_state_dict(tensors)
    # load_state_dict raises RuntimeError for other names and shapes.
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise ModelError(
            "is not a network for lesions", where=path, remedy=COPY_AGAIN
        ) from error
    return network.eval()


def find_lesion_map(
    network: LesionNetwork,
    image: Image,
    probabilities: Tensor,
    scheme: LabelScheme,
    thick_mm: float,
) -> LesionMap:
    """Compute the probability of lesion in each voxel.

    `image` (X, Y, Z) is the scan on the 1 mm working grid, and `probabilities` (X, Y, Z, K) are
    those of the classes of `scheme` on the same grid. `thick_mm` is the largest side of the scan's
    own voxels. If there is too little white matter or cortex to compute features, the map is not
    searched.
    """
    prior = network.prior.numpy()
    groups = groups_of(probabilities, scheme)
    features = features_of(image, groups, prior, thick_mm)
    if features is None:
        nothing = np.zeros(image.shape, np.float32)
        return LesionMap(nothing, is_flair=False, is_searched=False)
    is_too_thin = thick_mm < float(network.thinnest_mm)
    probability = lesion_probability(network, features)
    return LesionMap(probability, features.is_flair, is_too_thin)


def groups_of(probabilities: Tensor, scheme: LabelScheme) -> dict[str, Image]:
    """Return the probability of each group of structures, (X, Y, Z), by name of the group.

    `probabilities` (X, Y, Z, K) has the probability of each class of `scheme`. The groups are
    "white", "cortex", "deep" (subcortical grey matter), "ventricle", "below" (cerebellum and brain
    stem), and "outside" (background and the fluid around the brain).
    """
    groups = {}
    for name, numbers in {**_GROUPS, _OUTSIDE: _NO_BRAIN}.items():
        members = [label.index for label in scheme.labels if label.fs_id in numbers]
        groups[name] = probabilities[..., members].float().sum(-1).numpy()
    return groups


def features_of(
    image: Image, groups: Mapping[str, Image], prior: Image, thick_mm: float
) -> VoxelFeatures | None:
    """Return the features of all voxels of the brain.

    None if there is too little white matter or cortex to compare with.

    Parameters
    ----------
    image : array (X, Y, Z)
        The scan on the 1 mm working grid; its contrast must be T1 or FLAIR.
    groups : mapping
        Probabilities of the groups of structures, as `groups_of` returns them.
    prior : array
        Map of the logarithm of how often lesions lie at each position, relative to the extent of
        the white matter.
    thick_mm : float
        Largest side of the scan's voxels.
    """
    brain = without_holes(largest_part(groups[_OUTSIDE] < 0.5))
    white = brain & (groups["white"] > _SURE)
    cortex = brain & (groups["cortex"] > _SURE)
    if white.sum() < _LARGE_PART or cortex.sum() < _LARGE_PART:
        return None
    brightness = float(np.median(image[white]))
    deviation = float(_SD_OF_MAD * np.median(np.abs(image[white] - brightness)))
    deviation = max(deviation, 0.01 * brightness)
    contrast = float(np.median(image[cortex])) / brightness - 1
    # Cortex that is hardly darker than white matter means FLAIR with thick slices.
    sign = -1.0 if contrast < _DARKER else 1.0
    is_usual = white & (np.abs(image - brightness) < _OUTLIER * deviation)
    local = _local_white_brightness(image, is_usual, brightness)
    brighter = np.where(brain, sign * (image / local - 1), 0).astype(np.float32)
    brighter = np.clip(brighter, -1, 2)
    noise = deviation / brightness
    inside = brain.astype(np.float32)
    smooth = [_mean_inside_brain(brighter, inside, sigma) for sigma in _SIGMAS_MM]
    depth = ndimage.distance_transform_edt(brain)
    # Positions relative to the extent of white matter, which is from 0 to 1 along each axis.
    is_white = np.argwhere(groups["white"] > 0.5)
    low, high = np.percentile(is_white, [1, 99], axis=0)
    place = (np.argwhere(brain) - low) / (high - low)
    columns = [
        brighter[brain],
        *(values[brain] for values in smooth),
        brighter[brain] / noise,
        smooth[0][brain] / noise,
        brighter[brain] / max(abs(contrast), 0.05),
        depth[brain],
        _distance_from_ventricles(groups["ventricle"] > 0.5)[brain],
        _prior_at(prior, place),
        *(groups[name][brain] for name in _GROUPS),
        *(
            ndimage.gaussian_filter(groups[name], 2.0, truncate=2)[brain]
            for name in _AROUND
        ),
        np.abs(place[:, 0] - 0.5),
        place[:, 1],
        place[:, 2],
        np.full(len(place), sign),
        np.full(len(place), thick_mm),
    ]
    values = np.stack(columns, 1).astype(np.float32)
    return VoxelFeatures(brain, values, sign > 0)


@torch.no_grad()
def lesion_probability(
    network: LesionNetwork, features: VoxelFeatures
) -> NDArray[np.float32]:
    """Return the probability of lesion, (X, Y, Z), from features; 0 outside of the brain."""
    found = np.zeros(features.places.shape, np.float32)
    logits = network(torch.from_numpy(features.values))
    found[features.places] = torch.sigmoid(logits).numpy()
    return found


def _local_white_brightness(
    image: Image, is_usual: NDArray[np.bool_], brightness: float
) -> Image:
    """Return the brightness of white matter in the surroundings of each voxel, (X, Y, Z).

    It varies over a scan because of the shading of the receiver coil. `is_usual` (X, Y, Z) marks
    white matter without lesions; `brightness` is the median brightness of white matter, which is
    used where there is none nearby.
    """
    # At a third of the resolution, since shading is smooth.
    step = 3
    sigma = _SHADING_MM / step
    part = (slice(None, None, step),) * 3
    weights = is_usual[part].astype(np.float32)
    summed = ndimage.gaussian_filter(image[part] * weights, sigma)
    shares = ndimage.gaussian_filter(weights, sigma)
    least = 0.01
    coarse = (summed + least * brightness) / (shares + least)
    fine = np.repeat(np.repeat(np.repeat(coarse, step, 0), step, 1), step, 2)
    x, y, z = image.shape
    fine = ndimage.uniform_filter(fine[:x, :y, :z], step)
    return np.asarray(np.maximum(fine, 0.3 * brightness), np.float32)


def _mean_inside_brain(values: Image, inside: Image, sigma: float) -> Image:
    """Return the Gaussian-weighted mean of values (X, Y, Z) around each voxel, inside the brain.

    `inside` (X, Y, Z) is 1 in the brain and 0 elsewhere; `sigma` is in voxels. Values outside of
    the brain have no weight.
    """
    shares = ndimage.gaussian_filter(inside, sigma, truncate=2)
    summed = ndimage.gaussian_filter(values * inside, sigma, truncate=2)
    return np.asarray(summed / np.maximum(shares, 0.05), np.float32)


def _distance_from_ventricles(ventricle: NDArray[np.bool_]) -> Image:
    """Return the distance (X, Y, Z) from the ventricles, in voxels of 1 mm, at most `_MAX_MM`.

    Small components of the mask `ventricle` (X, Y, Z) are ignored.
    """
    parts, _ = ndimage.label(ventricle)
    is_large = np.bincount(parts.ravel()) >= _LARGE_PART
    is_large[0] = False
    large = is_large[parts]
    if not large.any():
        return np.full(ventricle.shape, _MAX_MM, np.float32)
    distance = ndimage.distance_transform_edt(~large)
    return np.asarray(np.minimum(distance, _MAX_MM), np.float32)


def _prior_at(prior: Image, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate the prior at relative positions (N, 3), giving (N,).

    Positions from 0 to 1 are inside the white matter's extent. The map extends by half of that
    extent beyond each end, so it covers -0.5 to 1.5.
    """
    scale = np.array(prior.shape) / 2 - 0.5
    points = (place + 0.5) * scale
    found: NDArray[np.float64] = ndimage.map_coordinates(
        prior, points.T, order=1, mode="nearest"
    )
    return found
