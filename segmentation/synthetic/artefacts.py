"""What scanners and software do to synthetic slices: field of view, masks, blur, motion, noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from trinat.segmentation.synthetic.draw import Draw
from trinat.segmentation.synthetic.slabs import Thickness, grow

# The standard deviation of a Gaussian whose full width at half maximum is 1.
_SIGMA_OF_WIDTH = 0.42


def find_field_of_view(draw: Draw, head: Tensor, points: Tensor) -> Tensor:
    """Voxels in the scanner's field of view, (B, C, H, W); it may end within the head."""
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


def find_removed(draw: Draw, head: Tensor, entries: Tensor, points: Tensor) -> Tensor:
    """Voxels that a skull-stripped or defaced scan does not show, (B, C, H, W)."""
    config = draw.config
    count = len(entries)
    per_image = (count, 1, 1, 1)
    near_brain = grow(draw.heads.is_brain[entries.long()], 3)
    # Masks follow the hull, not each sulcus: widened by 3 mm, then drawn back by 3, 1 or 0.
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
    """Voxels (B, C, H, W) beyond a plane in front of and below the brain, where defacing cuts."""
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


def blur(draw: Draw, images: Tensor, thickness: Thickness) -> Tensor:
    """A scanner's point spread on images (B, C, H, W).

    It is Gaussian, and wide along one axis in thick-sliced scans.
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
    # Each image has a kernel of its own: a grouped convolution, first along rows, then columns.
    groups = count * channels
    blurred = images.reshape(1, groups, *images.shape[2:])
    down = kernels[:, 0].repeat_interleave(channels, 0)
    blurred = conv2d(blurred, down[:, None, :, None], padding="same", groups=groups)
    right = kernels[:, 1].repeat_interleave(channels, 0)
    blurred = conv2d(blurred, right[:, None, None, :], padding="same", groups=groups)
    blurred = blurred.view_as(images)
    if channels == 1:
        return blurred
    return _blur_across(blurred, sigma[:, 2])


def _blur_across(images: Tensor, sigma: Tensor) -> Tensor:
    """Slices (B, C, H, W) mixed with their neighbours by Gaussians of widths (B,)."""
    number = torch.arange(images.shape[1], device=images.device)
    distance = number[:, None] - number
    relative = distance / sigma[:, None, None]
    weights = torch.exp(-0.5 * relative**2)
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bcd,bdhw->bchw", weights, images)


def move(draw: Draw, images: Tensor) -> Tensor:
    """Motion during the scan: some lines of k-space were measured with the head elsewhere."""
    # Slices of a batch are alike: only the first few may be moved, and which of them are need not
    # be known here, so that few Fourier transforms are made.
    config = draw.config
    count = math.ceil(config.motion * len(images))
    if not count:
        return images
    rows, columns = images.shape[2:]
    is_moved = draw.chance(count, config.motion * len(images) / count)
    phase = _random_phase(draw, count, rows, columns)
    # A band of lines, from where the head moved to where it came back.
    start = draw.uniform(0, 1, count, 1)
    length = draw.uniform(0.05, 0.4, count, 1)
    line = torch.arange(rows, device=draw.device) / rows
    is_hit = ((line - start) % 1 < length) & is_moved[:, None]
    shift = torch.polar(torch.ones_like(phase), phase * is_hit[:, :, None])
    spectrum = torch.fft.rfft2(images[:count]) * shift[:, None]
    images = images.clone()
    images[:count] = torch.fft.irfft2(spectrum, s=(rows, columns))
    return images


def _random_phase(draw: Draw, count: int, rows: int, columns: int) -> Tensor:
    """How a shift in a random direction turns the phase of half a spectrum, (B, H, W / 2 + 1)."""
    direction = draw.uniform(0, 2 * torch.pi, count, 1, 1)
    shift_mm = draw.uniform(0, draw.config.motion_mm, count, 1, 1)
    length = 2 * torch.pi * shift_mm
    along_rows = torch.fft.fftfreq(rows, device=draw.device)[:, None]
    along_columns = torch.fft.rfftfreq(columns, device=draw.device)
    frequency = direction.cos() * along_rows + direction.sin() * along_columns
    phase: Tensor = length * frequency
    return phase


def corrupt(draw: Draw, images: Tensor, white: Tensor) -> Tensor:
    """Bias field, noise, gamma and gain: raw intensities to the working grid's scale."""
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
