"""Appearance of synthetic slices: the brightness of tissues, voxel by voxel."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trinat.segmentation.synthetic.draw import Draw


class _ClassBrightness(NamedTuple):
    """Brightness of the I classes of intensity in each scan, on the scale of the priors."""

    mean: Tensor  # (B, I)
    spread: Tensor  # (B, I), standard deviation over voxels
    random_mean: Tensor  # (B, I), of no contrast that T1 has
    random_spread: Tensor  # (B, I)
    is_random: (
        Tensor  # (B, 1) bool: the scan has random contrast in place of that of T1
    )


def paint(draw: Draw, entries: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Intensities of voxels, and those that white matter has.

    `entries` holds one tensor (B, C, H, W) for each place within a voxel. Returns images
    (B, C, H, W) and the brightness (B,) that becomes 1 on the working grid's scale.
    """
    heads = draw.heads
    count = len(entries[0])
    classes = _draw_classes(draw, count)
    # Structures of one class differ a little (the caudate is brighter than the cortex).
    offset = draw.normal(count, len(heads.classes))[:, heads.sideless]
    white = classes.mean[:, heads.white_matter].clamp(min=40)
    # The working grid's scale ends at the brightest tissue: white matter in T1, any in others.
    brightest = classes.mean[:, heads.large_tissues].amax(1).clamp(min=40)
    means = classes.mean[:, heads.classes] + offset * (
        draw.config.structure_offset * white[:, None]
    )
    curved = _change_contrast(draw, means, white)
    means = torch.where(classes.is_random, means, curved)
    means, spreads = _paint_surroundings(draw, classes, means)
    images = _paint_voxels(draw, entries, means, spreads)
    images = _make_patchy(draw, images, entries[0])
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
    power = draw.uniform(math.log(lowest), math.log(highest), len(means), 1).exp()
    darker = (1 - means / white[:, None]).clamp(0, 1)
    return torch.where(darker > 0, white[:, None] * (1 - darker**power), means)


def _paint_surroundings(
    draw: Draw, classes: _ClassBrightness, means: Tensor
) -> tuple[Tensor, Tensor]:
    """Means and spreads (B, E) of all entries, air and what is outside the brain too."""
    heads = draw.heads
    config = draw.config
    count = len(means)
    # Necks and faces differ more than the priors of a few scans say.
    is_random = draw.chance(count, config.outside_contrast)[:, None] & heads.is_outside
    means = torch.where(is_random, classes.random_mean[:, heads.classes], means)
    spreads = torch.where(
        is_random,
        classes.random_spread[:, heads.classes],
        classes.spread[:, heads.classes],
    )
    spreads = spreads * draw.uniform(*config.texture, count, 1)
    # Empty air in half of the heads, as scanners' and defacing software's masks leave it.
    is_empty = draw.chance(count, 0.5)
    means[:, 0] = torch.where(is_empty, 0, means[:, 0])
    spreads[:, 0] = torch.where(is_empty, 0, spreads[:, 0])
    return means, spreads


def _paint_voxels(
    draw: Draw, entries: list[Tensor], means: Tensor, spreads: Tensor
) -> Tensor:
    """Images (B, C, H, W): each voxel is the mean of its entries, with texture."""
    shape = entries[0].shape
    count = len(entries[0])
    flat = [part.view(count, -1).long() for part in entries]
    spread = torch.stack([spreads.gather(1, part) for part in flat]).mean(0)
    images = torch.stack([means.gather(1, part) for part in flat]).mean(0)
    return images.addcmul_(spread, draw.normal(*images.shape)).view(shape)


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
