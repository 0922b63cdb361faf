"""Appearance of synthetic slices: the brightness of tissues, voxel by voxel."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trinat.segmentation.synthetic.draw import Draw

# Of 255: what is divided by it stays within bounds.
_DARKEST_WHITE_MATTER = 40


class _ClassBrightness(NamedTuple):
    """Brightness of the I classes of intensity in each of B scans, on the scale of the priors.

    `mean` and `spread` (B, I) are what is painted; a spread is a standard deviation over voxels.
    `random_mean` and `random_spread` (B, I) are of no contrast that T1 has. `is_random` (B, 1) says
    which scans have these in place of the contrast of T1.
    """

    mean: Tensor
    spread: Tensor
    random_mean: Tensor
    random_spread: Tensor
    is_random: Tensor


def paint(draw: Draw, entries: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Intensities of voxels, and those that white matter has.

    `entries` holds one tensor (B, C, H, W) for each place within a voxel. Returns images
    (B, C, H, W) and the brightness (B,) that becomes 1 on the working grid's scale.
    """
    heads = draw.heads
    count = len(entries[0])
    classes = _draw_classes(draw, count)
    # Structures of one class differ a little (the caudate is brighter than the cortex).
    offsets = draw.normal(count, len(heads.classes))[:, heads.sideless]
    white = classes.mean[:, heads.white_matter].clamp(min=_DARKEST_WHITE_MATTER)
    offset_size = draw.config.structure_offset * white[:, None]
    means = classes.mean[:, heads.classes] + offsets * offset_size
    with_contrast = _change_contrast(draw, means, white)
    means = torch.where(classes.is_random, means, with_contrast)
    means, spreads = _paint_surroundings(draw, classes, means)
    # Each voxel is the mean of its entries, with texture.
    flat = [part.view(count, -1).long() for part in entries]
    spread = _mean_of_entries(spreads, flat)
    images = _mean_of_entries(means, flat)
    images.addcmul_(spread, draw.normal(*images.shape))
    images = images.view(entries[0].shape)
    images = _make_patchy(draw, images, entries[0])
    # The working grid's scale ends at the brightest tissue: white matter in T1, any in others.
    large_tissues = classes.mean[:, heads.large_tissues]
    brightest = large_tissues.amax(1).clamp(min=_DARKEST_WHITE_MATTER)
    return images, torch.where(classes.is_random[:, 0], brightest, white)


def _draw_classes(draw: Draw, count: int) -> _ClassBrightness:
    """Brightness of each class of intensity: by the priors of T1, and at random."""
    heads = draw.heads
    config = draw.config
    number = heads.means.shape[1]
    mean = _draw_around(draw, heads.means, count, config.common_gain)
    spread = _draw_around(draw, heads.spreads, count, 0)
    is_random = draw.chance(count, config.random_contrast)[:, None]
    random_mean = draw.uniform(5, 250, count, number)
    random_spread = draw.uniform(2, 25, count, number)
    mean = torch.where(is_random, random_mean, mean)
    spread = torch.where(is_random, random_spread, spread)
    return _ClassBrightness(mean, spread, random_mean, random_spread, is_random)


def _draw_around(draw: Draw, prior: Tensor, count: int, common: float) -> Tensor:
    """Values (B, I) by a prior (2, I) of means and spreads.

    `common` is the share of their variance that the classes of a scan have in common.
    """
    own = draw.normal(count, prior.shape[1])
    shared = draw.normal(count, 1)
    deviation = math.sqrt(1 - common) * own + math.sqrt(common) * shared
    return (prior[0] + prior[1] * deviation).clamp_(min=0)


def _change_contrast(draw: Draw, means: Tensor, white: Tensor) -> Tensor:
    """Means (B, E) with another contrast of grey to white matter: see `contrast` in the settings.

    What is brighter than white matter stays as it is.
    """
    lowest, highest = draw.config.contrast
    # Even on a logarithmic scale: half the contrast is as likely as twice.
    log_power = draw.uniform(math.log(lowest), math.log(highest), len(means), 1)
    power = log_power.exp()
    white = white[:, None]
    darkness = (1 - means / white).clamp(0, 1)
    changed = white * (1 - darkness**power)
    return torch.where(darkness > 0, changed, means)


def _paint_surroundings(
    draw: Draw, classes: _ClassBrightness, means: Tensor
) -> tuple[Tensor, Tensor]:
    """Means and spreads (B, E) of all entries, air and what is outside the brain too."""
    heads = draw.heads
    config = draw.config
    count = len(means)
    # Necks and faces differ more than the priors of a few scans say.
    has_random_outside = draw.chance(count, config.outside_contrast)[:, None]
    is_random = has_random_outside & heads.is_outside
    random_means = classes.random_mean[:, heads.classes]
    random_spreads = classes.random_spread[:, heads.classes]
    means = torch.where(is_random, random_means, means)
    spreads = classes.spread[:, heads.classes]
    spreads = torch.where(is_random, random_spreads, spreads)
    spreads = spreads * draw.uniform(*config.texture, count, 1)
    # Empty air in half of the heads, as scanners' and defacing software's masks leave it.
    is_empty = draw.chance(count, 0.5)
    means[:, 0] = torch.where(is_empty, 0, means[:, 0])
    spreads[:, 0] = torch.where(is_empty, 0, spreads[:, 0])
    return means, spreads


def _mean_of_entries(values: Tensor, entries: list[Tensor]) -> Tensor:
    """Values (B, E) of the entries (B, V) of all places within a voxel, their mean (B, V)."""
    return torch.stack([values.gather(1, part) for part in entries]).mean(0)


def _make_patchy(draw: Draw, images: Tensor, entries: Tensor) -> Tensor:
    """Images whose tissue varies in brightness over some mm, most of all outside the brain."""
    config = draw.config
    count = len(images)
    size = images.shape[2:]
    if config.mottle:
        # Within a slice and its neighbours alike: patches are thicker than slices.
        knots = draw.smooth(count, 1, size, config.mottle_spacing_mm, config.mottle)
        mottle = interpolate(knots, size, mode="bilinear", align_corners=True)
        images = images * (1 + mottle)
    # Muscle, fat and bone are patchy where the maps have one label.
    knots = draw.smooth(count, 1, size, config.clutter_spacing_mm, config.clutter)
    patches = interpolate(knots, size, mode="bilinear", align_corners=True).exp_()
    is_outside = draw.heads.is_outside[entries.long()]
    return torch.where(is_outside, images * patches, images)
