"""Synthetic T1-like slices from label maps, generated in torch on the device of the maps.

Planes cut the heads (`slabs.py`). The entries of the voxels on these planes get the brightness of
their tissues. Then the effects of scanners and software are added: field of view, masks, blur,
motion, noise.

All random numbers of a batch come from one generator: a seed determines the slices on a given
device. Neither this module nor `slabs.py` reads a value from the GPU, indexes by a mask or copies
from the host: each of these would make the host wait for all queued work.

In shapes, B is the number of slices in a batch, C the number of neighbouring planes of a slice, (H,
W) its rows and columns, E the number of entries and I the number of intensity classes (see
`Heads`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.slabs import (
    Draw,
    Thickness,
    choose_thickness,
    cut_slabs,
    displace_borders,
    grow,
    look_up,
    places_within_voxels,
)
from trinat.segmentation.synthetic.targets import Heads

# Brightness out of 255; a divisor, so it must not be near 0.
_DARKEST_WHITE_MATTER = 40
# Standard deviation of a Gaussian whose full width at half maximum is 1.
_SIGMA_OF_WIDTH = 0.42


def synthesise(
    heads: Heads,
    config: SynthesisConfig,
    view: View,
    count: int,
    size: tuple[int, int],
    generator: torch.Generator,
    neighbours: int = 1,
) -> tuple[Tensor, Tensor]:
    """Synthesise a batch of slices from label maps: images (B, C, H, W) and classes (B, H, W).

    `heads` are the label maps of whole heads, and `config` has the strength of each variation.
    `count` is B and `size` is (H, W). A slice has C = 2 `neighbours` + 1 planes, 1 mm apart. The
    classes are those of the middle plane; IGNORE marks pixels that are not learnt.
    """
    draw = Draw(heads, config, generator)
    mirrored = draw.chance(count, config.mirrored)
    head = draw.below(len(heads.labels), count)
    plane = cut_slabs(draw, view, head, size, neighbours, mirrored)
    # Voxels outside of the scanner's field of view are neither visible nor learnt.
    seen = _find_field_of_view(draw, head, plane)
    middle = look_up(heads, head, plane[:, :, neighbours]) * seen[:, neighbours]
    middle = middle.long()
    classes = _classes_to_learn(heads, middle, mirrored)
    # The image differs from the labels: borders are displaced, and samples lie anywhere within a
    # voxel.
    shown = plane + displace_borders(draw, head, plane)
    thickness = choose_thickness(draw, view, count)
    entries = []
    if config.places == 1:
        entries.append(look_up(heads, head, shown) * seen)
    else:
        for _ in range(config.places):
            place = shown + places_within_voxels(draw, thickness, size)
            entries.append(look_up(heads, head, place) * seen)
    removed = _find_removed(draw, head, entries[0], plane)
    # Fluid that stripping has removed cannot be learnt, but removed brain can.
    unseen = removed[:, neighbours] & heads.is_fluid[middle]
    classes = classes.masked_fill(unseen, 0)
    images = _render(draw, entries, removed, thickness)
    return images, classes


def _classes_to_learn(
    heads: Heads,
    entries: Tensor,
    mirrored: Tensor,
) -> Tensor:
    """Return the class that a network learns in each pixel, (B, H, W).

    `entries` (B, H, W) are tissue numbers, indices into the tables of `heads`. `mirrored` (B,) says
    in which slices left and right are exchanged. Linings of ventricles are not learnt: their pixels
    get IGNORE.
    """
    classes = torch.where(
        mirrored[:, None, None], heads.mirrored_targets[entries], heads.targets[entries]
    )
    return classes.masked_fill(heads.is_lining[entries], IGNORE)


def synthesise_volume(
    heads: Heads,
    config: SynthesisConfig,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Synthesise the first head, whole and undeformed: image and classes, (X, Y, Z) each."""
    draw = Draw(heads, config, generator)
    entries = heads.labels[0][None]
    axes = [torch.arange(length, device=draw.device) for length in entries.shape[1:]]
    grid = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack(grid)[None]
    index = torch.tensor([0], device=draw.device)
    # Sagittal slices, stacked, make the slab.
    removed = _find_removed(draw, index, entries, points)
    thickness = choose_thickness(draw, View.SAGITTAL, 1)
    image = _render(draw, [entries], removed, thickness)[0]
    return image, heads.targets[entries[0].long()]


def _render(
    draw: Draw,
    entries: list[Tensor],
    removed: Tensor,
    thickness: Thickness,
) -> Tensor:
    """Simulate a scan of the given tissues; return images (B, C, H, W).

    `entries` has tissue numbers, (B, C, H, W), for each of several samples within a voxel, whose
    brightness is averaged. Images are 0 in `removed` voxels (B, C, H, W).
    """
    images, white = _paint(draw, entries)
    images = _blur(draw, images, thickness)
    images = _add_motion(draw, images)
    images = _corrupt(draw, images, white)
    # Values are clipped at 2, as in conform, because vessels may exceed 1.
    return images.clamp_(max=2).masked_fill_(removed, 0)


class _ClassBrightness(NamedTuple):
    """Brightness of the I intensity classes in each of B scans, 0 to 255.

    `mean` and `spread` (B, I) are the values to paint; the spread is the standard deviation over
    the voxels of a class. `random_mean` and `random_spread` (B, I) are a contrast drawn at random,
    unlike T1. `is_random` (B, 1) says in which scans the values to paint are those of the random
    contrast.
    """

    mean: Tensor
    spread: Tensor
    random_mean: Tensor
    random_spread: Tensor
    is_random: Tensor


def _paint(draw: Draw, entries: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Give each tissue a brightness; return images (B, C, H, W) and that of white matter, (B,).

    `entries` has tissue numbers, (B, C, H, W), for each of several samples within a voxel. In scans
    of random contrast, the brightest large tissue takes the place of white matter. Its brightness
    becomes 1 later, when images are scaled as scans are for networks.
    """
    heads = draw.heads
    count = len(entries[0])
    classes = _draw_class_brightness(draw, count)
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


def _draw_class_brightness(draw: Draw, count: int) -> _ClassBrightness:
    """Draw the brightness of each intensity class in `count` scans: as in T1, and at random.

    An intensity class has all tissues that look alike, such as left and right cortex.
    """
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
    """Draw values (B, I) of I intensity classes from their means and standard deviations, (2, I).

    `count` is B, the number of scans. `common` is the correlation of the classes of a scan: the
    share of their variance that is drawn once for all classes.
    """
    own = draw.normal(count, prior.shape[1])
    shared = draw.normal(count, 1)
    deviation = math.sqrt(1 - common) * own + math.sqrt(common) * shared
    return (prior[0] + prior[1] * deviation).clamp_(min=0)


def _change_contrast(draw: Draw, means: Tensor, white: Tensor) -> Tensor:
    """Change the contrast of grey to white matter at random, as between sequences.

    A brightness of x times white matter becomes 1 - (1 - x)^p times, with a random p. `means` (B,
    E) is the brightness of E tissues, `white` (B,) that of white matter. Tissue brighter than white
    matter is not changed.
    """
    lowest, highest = draw.config.contrast
    # Uniform on a logarithmic scale: half the contrast is as likely as twice.
    log_power = draw.uniform(math.log(lowest), math.log(highest), len(means), 1)
    power = log_power.exp()
    white = white[:, None]
    darkness = (1 - means / white).clamp(0, 1)
    changed = white * (1 - darkness**power)
    return torch.where(darkness > 0, changed, means)


def _paint_surroundings(
    draw: Draw, classes: _ClassBrightness, means: Tensor
) -> tuple[Tensor, Tensor]:
    """Set the brightness of air and of tissue outside of the brain.

    `classes` has the brightness of the intensity classes, and `means` (B, E) that of all E tissues.
    Return the mean of each tissue and its standard deviation over voxels, (B, E) each.
    """
    heads = draw.heads
    config = draw.config
    count = len(means)
    # Necks and faces vary more than the priors of a few scans do.
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
    """Return the mean of values (B, E) over the samples of each voxel, (B, V).

    `values` has one for each tissue. `entries` has a tensor for each sample, with the tissue
    numbers of all V voxels, (B, V).
    """
    return torch.stack([values.gather(1, part) for part in entries]).mean(0)


def _make_patchy(draw: Draw, images: Tensor, entries: Tensor) -> Tensor:
    """Vary the brightness of images over a few mm, most strongly outside of the brain."""
    config = draw.config
    count = len(images)
    size = images.shape[2:]
    if config.mottle:
        # The same for a slice and its neighbours: patches are thicker than slices.
        spacing_mm = config.mottle_spacing_mm
        mottle = draw.smooth(count, 1, size, spacing_mm, config.mottle, "bilinear")
        images = images * (1 + mottle)
    # Muscle, fat and bone are patchy where the maps have one label.
    spacing_mm = config.clutter_spacing_mm
    patches = draw.smooth(count, 1, size, spacing_mm, config.clutter, "bilinear").exp()
    is_outside = draw.heads.is_outside[entries.long()]
    return torch.where(is_outside, images * patches, images)


def _find_field_of_view(draw: Draw, head: Tensor, points: Tensor) -> Tensor:
    """Return a mask of the voxels in the scanner's field of view, (B, C, H, W).

    The field of view may cut the head. `head` (B,) is the index of each slice's head, `points` (B,
    3, C, H, W) are the voxels' positions.
    """
    config = draw.config
    count = len(head)
    per_image = (count, 1, 1, 1)
    # One of the six sides of a box.
    side = draw.below(6, count)
    axis = side // 2
    sign = 1.0 - 2 * (side % 2)
    each = torch.arange(count, device=draw.device)
    centre = draw.heads.centre[head, axis]
    distance = points[each, axis] - centre.view(per_image)
    is_cropped = draw.chance(count, config.cropped)
    cropped_at = draw.uniform(*config.cropped_mm, count)
    edge = torch.where(is_cropped, cropped_at, torch.inf)
    return distance * sign.view(per_image) < edge.view(per_image)


def _find_removed(draw: Draw, head: Tensor, entries: Tensor, points: Tensor) -> Tensor:
    """Return a mask of the voxels that skull stripping or defacing removes, (B, C, H, W).

    `head` (B,) is the index of each slice's head, `entries` (B, C, H, W) are the voxels' tissue
    numbers, and `points` (B, 3, C, H, W) their positions.
    """
    config = draw.config
    count = len(entries)
    per_image = (count, 1, 1, 1)
    near_brain = grow(draw.heads.is_brain[entries.long()], 3)
    # Masks follow the hull, not each sulcus: dilated by 3 mm, then eroded by 3, 1 or 0.
    tight = ~grow(~near_brain, 3)
    near = ~grow(~near_brain, 1)
    margin = draw.below(3, count)[:, None, None, None]
    near_or_wide = torch.where(margin == 1, near, near_brain)
    kept = torch.where(margin == 0, tight, near_or_wide)
    is_stripped = draw.chance(count, config.skull_stripped).view(per_image)
    is_face = _find_face(draw, head, points)
    is_defaced = draw.chance(count, config.defaced).view(per_image)
    return (is_stripped & ~kept) | (is_defaced & is_face & ~near_brain)


def _find_face(draw: Draw, head: Tensor, points: Tensor) -> Tensor:
    """Return a mask of the voxels that defacing removes, (B, C, H, W).

    They are those beyond a plane that lies in front of and below the brain.
    """
    count = len(head)
    # x goes left to right.
    forward = draw.uniform(0.5, 1, count)
    up = draw.uniform(-1, -0.2, count)
    normal = torch.stack([torch.zeros_like(up), forward, up], 1)
    distance = torch.einsum("bichw,bi->bchw", points.float(), normal)
    brain = draw.heads.centre[head]
    distance_of_brain = (brain * normal).sum(1)
    level = distance_of_brain + draw.uniform(50, 90, count)
    return distance > level.view(count, 1, 1, 1)


def _blur(draw: Draw, images: Tensor, thickness: Thickness) -> Tensor:
    """Apply a scanner's point spread to images (B, C, H, W).

    It is Gaussian, and wide along the thick axis of scans with thick slices.
    """
    config = draw.config
    count, channels = images.shape[:2]
    sigma = draw.uniform(*config.blur_mm, count, 3)
    lengths = torch.stack((thickness.rows, thickness.columns, thickness.across), 1)
    sigma = torch.where(lengths > 1, _SIGMA_OF_WIDTH * lengths, sigma)
    reach = max(3, math.ceil(0.9 * config.low_resolution_mm))
    taps = torch.arange(-reach, reach + 1, device=draw.device)
    distances = taps / sigma[..., None]
    kernels = torch.exp(-0.5 * distances**2)
    kernels = kernels / kernels.sum(-1, keepdim=True)  # (B, 3, taps)
    # A kernel for each image: a grouped convolution, first along rows, then columns.
    groups = count * channels
    blurred = images.reshape(1, groups, *images.shape[2:])
    down = kernels[:, 0].repeat_interleave(channels, 0)
    blurred = conv2d(blurred, down[:, None, :, None], padding="same", groups=groups)
    right = kernels[:, 1].repeat_interleave(channels, 0)
    blurred = conv2d(blurred, right[:, None, None, :], padding="same", groups=groups)
    blurred = blurred.view_as(images)
    if channels == 1:
        return blurred
    # Slices are mixed with their neighbours.
    number = torch.arange(channels, device=draw.device)
    distance = number[:, None] - number
    relative = distance / sigma[:, 2, None, None]
    weights = torch.exp(-0.5 * relative**2)
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bcd,bdhw->bchw", weights, blurred)


def _add_motion(draw: Draw, images: Tensor) -> Tensor:
    """Simulate motion: some lines of k-space are measured while the head is shifted."""
    # Only the first few slices of a batch may be moved, so that few Fourier transforms are made.
    # This is enough because the slices of a batch are in random order, and no other function needs
    # to know which ones are moved.
    config = draw.config
    count = math.ceil(config.motion * len(images))
    if not count:
        return images
    rows, columns = images.shape[2:]
    is_moved = draw.chance(count, config.motion * len(images) / count)
    # Phase by which a shift in a random direction rotates half a spectrum, (B, H, W / 2 + 1).
    direction = draw.uniform(0, 2 * torch.pi, count, 1, 1)
    shift_mm = draw.uniform(0, config.motion_mm, count, 1, 1)
    along_rows = torch.fft.fftfreq(rows, device=draw.device)[:, None]
    along_columns = torch.fft.rfftfreq(columns, device=draw.device)
    frequency = direction.cos() * along_rows + direction.sin() * along_columns
    phase = 2 * torch.pi * shift_mm * frequency
    # A band of lines, from the movement to the return of the head.
    start = draw.uniform(0, 1, count, 1)
    length = draw.uniform(0.05, 0.4, count, 1)
    line = torch.arange(rows, device=draw.device) / rows
    is_hit = ((line - start) % 1 < length) & is_moved[:, None]
    shift = torch.polar(torch.ones_like(phase), phase * is_hit[:, :, None])
    spectrum = torch.fft.rfft2(images[:count]) * shift[:, None]
    images = images.clone()
    images[:count] = torch.fft.irfft2(spectrum, s=(rows, columns))
    return images


def _corrupt(draw: Draw, images: Tensor, white: Tensor) -> Tensor:
    """Apply bias field, noise, gamma and gain to images (B, C, H, W).

    `white` (B,) is the brightness that becomes 1 when scans are scaled for networks.
    """
    config = draw.config
    count, channels, *size = images.shape
    per_image = (count, 1, 1, 1)
    images = images / white.view(per_image)
    log_gain = draw.normal(count, 1, 4, 4)
    log_gain *= draw.uniform(0, config.bias, *per_image)
    log_bias = interpolate(log_gain, size, mode="bicubic", align_corners=True)
    images *= log_bias.exp_()
    noise = draw.normal(count, channels, *size)
    images += noise * draw.uniform(0, config.noise, *per_image)
    images = images.abs_().clamp_(min=1e-4)
    gamma = torch.exp(config.gamma * draw.normal(*per_image))
    images = images.pow(gamma)
    return images.mul_(draw.uniform(*config.white_matter, *per_image))
