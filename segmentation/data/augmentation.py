"""Augmentation of batches of slices in torch, on the device that trains.

Transforms work on a whole batch: affine and elastic deformation take half the time of MONAI's
(docs/notes/speed.md). Transforms of MONAI and TorchIO can be added by name; they run one slice at a
time.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate

from trinat.segmentation.data.transforms import NamedTransform, SliceTransforms
from trinat.segmentation.data.transforms.base import Share, rising
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.labels.scheme import LabelScheme, without_side
from trinat.segmentation.space.views import View

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
# Ranges from which a strength is drawn: the lowest value and the highest.
_PositiveRange = Annotated[tuple[_Positive, _Positive], AfterValidator(rising)]
_NotNegativeRange = Annotated[tuple[_NotNegative, _NotNegative], AfterValidator(rising)]
_FactorRange = Annotated[tuple[_AtLeastOne, _AtLeastOne], AfterValidator(rising)]

# Contrast curves. `_BRIGHTEST` is the upper limit of the intensity, which hardly any tissue
# exceeds. `_KNOTS` is the number of knots of a curve. `_RISING_SHARE` is the share of curves that
# rise throughout. `_FALLING_SHARE` is the share of curves that rise and then fall again; the fall
# starts at a brightness in the range `_FALL_STARTS`.
_BRIGHTEST = 1.2
_KNOTS = 7
_RISING_SHARE = 0.5
_FALLING_SHARE = 0.3
_FALL_STARTS = (0.5, 0.9)


class AugmentationConfig(BaseModel):
    """Probability (share of slices; 0 disables) and strength of each change; lengths in voxels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flip: Share = 0.5

    affine: Share = 0.8
    rotation_deg: float = Field(default=12.0, ge=0, le=180)
    scaling: float = Field(default=0.15, ge=0, lt=1)
    shearing: float = Field(default=0.08, ge=0, lt=1)
    shift: float = Field(default=12.0, ge=0)

    elastic: Share = 0.3
    # standard deviation
    elastic_shift: float = Field(default=2.5, ge=0)
    elastic_spacing: float = Field(default=32.0, ge=4)

    # a random contrast for each slice: brightness follows a curve that is drawn for it
    contrast: Share = 0.0

    # a random brightness for each structure of `structure_names`, as iron changes deep grey matter
    structures: Share = 0.0
    structure_names: tuple[str, ...] = ()
    # standard deviation; white matter has a brightness of 1
    structure_shift: float = Field(default=0.05, ge=0)

    gain: Share = 0.8
    gain_range: _PositiveRange = (0.8, 1.25)
    bias: Share = 0.4
    # standard deviation of its logarithm
    bias_strength: float = Field(default=0.25, ge=0)
    gamma: Share = 0.3
    gamma_range: _PositiveRange = (0.75, 1.35)

    blur: Share = 0.15
    blur_sigma: _PositiveRange = (0.4, 1.2)
    low_resolution: Share = 0.15
    low_resolution_factor: _FactorRange = (1.2, 4.0)
    noise: Share = 0.3
    noise_std: _NotNegativeRange = (0.005, 0.06)

    # random transforms of TorchIO and MONAI, applied in this order before everything else
    transforms: tuple[NamedTransform, ...] = ()


class Augmenter:
    """Random augmentation of batches of slices of one view, configured by an `AugmentationConfig`.

    The order is: transforms of TorchIO and MONAI, flip, deformation, structures, contrast,
    brightness, resolution and noise. Each slice of a batch has its own random numbers. On a given
    device, the seed of the generator determines the result.
    """

    def __init__(
        self,
        config: AugmentationConfig,
        view: View,
        scheme: LabelScheme,
    ) -> None:
        """Set up the transforms of slices of one view.

        `scheme` is the scheme of the labels in the slices. For sagittal slices this is a scheme
        with one class for both sides of a structure. Raises ConfigError if slices are flipped and a
        class has no counterpart on the other side, or if the scheme lacks one of the structures
        whose brightness is to change.
        """
        if config.flip and scheme.has_unpartnered_sides:
            raise ConfigError(
                f"{scheme.name} has classes on one side only, whose slices cannot be flipped",
                where="flip",
                remedy="set flip: 0",
            )
        self.config = config
        self.view = view
        self._transforms = SliceTransforms(config.transforms)
        # `_partner` maps each class to the class of the other side. Values that are no class, such
        # as IGNORE, map to themselves.
        self._partner = torch.arange(256)
        self._partner[: len(scheme)] = torch.from_numpy(
            scheme.partner_permutation.copy()
        )
        if config.structures:
            self._groups = _classes_by_structure(config.structure_names, scheme)

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """Return augmented copies of images (N, C, H, W) float and integer labels (N, H, W).

        With a `generator` on the CPU, all devices use the same random parameters, and a GPU is
        never synchronised.
        """
        draw = _Draw(generator, len(images))
        config = self.config
        if self._transforms:
            images, labels = _transform(self._transforms, images, labels, draw)
        is_flipped = upload(draw.happens(config.flip), images.device)
        images, labels = self._flip(images, labels, is_flipped)
        images, labels = _deform(images, labels, config, draw)
        # Disabled structures and contrast draw no random numbers, so that older recipes still
        # produce the same batches.
        if config.structures:
            images = _shift_structures(images, labels, self._groups, config, draw)
        if config.contrast:
            images = _change_contrast(images, config, draw)
        images = _brighten(images, config, draw)
        images = _degrade(images, config, draw)
        return images, labels

    def _flip(
        self,
        images: Tensor,
        labels: Tensor,
        chosen: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Mirror the slices for which `chosen` (N,) is True.

        In coronal and axial slices, left and right are mirrored, and the labels of the two sides
        are swapped. In sagittal slices, only the order of the channels is reversed.
        """
        image_chosen = _per_slice(chosen)
        if self.view is View.SAGITTAL:
            # Channels of a sagittal slab are neighbouring slices from left to right, so a flip
            # reverses their order. The labels do not distinguish sides.
            return torch.where(image_chosen, images.flip(1), images), labels
        self._partner = self._partner.to(labels.device)
        mirrored = labels.flip(-1).long()
        swapped = self._partner[mirrored].to(labels.dtype)
        images = torch.where(image_chosen, images.flip(-1), images)
        labels = torch.where(chosen[:, None, None], swapped, labels)
        return images, labels


class _Draw:
    """Random numbers for a batch of `count` slices, one row per slice, on the generator's device.

    In the shapes of its results, N is `count`.
    """

    def __init__(self, generator: torch.Generator, count: int) -> None:
        self.generator = generator
        self.count = count
        self.device = generator.device

    def happens(self, share: float) -> Tensor:
        """Return (N,) bool that are True with probability `share`, drawn for each slice."""
        return self.uniform(0, 1) < share

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw (N, *shape) from the uniform distribution between `low` and `high`."""
        size = (self.count, *shape)
        drawn = torch.rand(size, generator=self.generator, device=self.device)
        return low + (high - low) * drawn

    def normal(self, *shape: int) -> Tensor:
        """Draw (N, *shape) with mean 0 and standard deviation 1."""
        size = (self.count, *shape)
        return torch.randn(size, generator=self.generator, device=self.device)

    def seed(self) -> int:
        """Draw a seed for another random number generator."""
        drawn = torch.randint(2**31, (), generator=self.generator, device=self.device)
        return int(drawn)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from host memory to the device; to a GPU without waiting for its queued work."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _per_slice(values: Tensor) -> Tensor:
    """Reshape (N,) to (N, 1, 1, 1), which broadcasts against images (N, C, H, W)."""
    return values.view(-1, 1, 1, 1)


def _indices(chosen: Tensor) -> Tensor:
    """Return the indices at which `chosen` (N,) is True."""
    return chosen.nonzero().flatten()


def _transform(
    transforms: SliceTransforms,
    images: Tensor,
    labels: Tensor,
    draw: _Draw,
) -> tuple[Tensor, Tensor]:
    """Apply the recipe's TorchIO and MONAI transforms to each slice, on the CPU.

    `draw` gives the seed of each slice. The results have the dtype and the device of the arguments.
    """
    changed_images = []
    changed_labels = []
    for image, classes in zip(images.cpu().float(), labels.cpu(), strict=True):
        image, classes = transforms(image, classes, draw.seed())
        changed_images.append(image)
        changed_labels.append(classes)
    images = torch.stack(changed_images).to(images)
    labels = torch.stack(changed_labels).to(labels)
    return images, labels


def _deform(
    images: Tensor,
    labels: Tensor,
    config: AugmentationConfig,
    draw: _Draw,
) -> tuple[Tensor, Tensor]:
    """Apply affine and elastic deformation to randomly chosen slices, in a single resampling.

    Interpolation is linear for images and nearest for labels.
    """
    height, width = images.shape[-2:]
    is_affine = draw.happens(config.affine)
    is_elastic = draw.happens(config.elastic)
    matrix, shift = _affine(config, draw)
    knots_down = max(2, round(height / config.elastic_spacing) + 1)
    knots_across = max(2, round(width / config.elastic_spacing) + 1)
    warp = draw.normal(2, knots_down, knots_across) * config.elastic_shift
    chosen = _indices(is_affine | is_elastic)
    if not len(chosen):
        return images, labels

    # A slice with elastic but without affine deformation gets the identity matrix and no shift.
    identity = torch.eye(2, device=draw.device)
    matrix = torch.where(is_affine.view(-1, 1, 1), matrix, identity)
    shift = shift * is_affine[:, None]
    warp = warp * _per_slice(is_elastic)
    device = images.device
    source = _sampling_grid(
        upload(matrix[chosen], device),
        upload(shift[chosen], device),
        upload(warp[chosen], device),
        height,
        width,
    )
    chosen = upload(chosen, device)

    images = images.clone()
    images[chosen] = grid_sample(
        images[chosen], source, "bilinear", align_corners=False
    )
    labels = labels.clone()
    classes = labels[chosen, None].to(source.dtype)
    moved = grid_sample(classes, source, "nearest", align_corners=False)
    labels[chosen] = moved.squeeze(1).to(labels.dtype)
    return images, labels


def _sampling_grid(
    matrix: Tensor,
    shift: Tensor,
    warp: Tensor,
    height: int,
    width: int,
) -> Tensor:
    """Return the sampling grid for `grid_sample`, (N, H, W, 2).

    It has the source position of each voxel of the result. `matrix` (N, 2, 2) and `shift` (N, 2)
    are applied to positions relative to the centre of the slice. `warp` (N, 2, knots down, knots
    across) is interpolated between its knots and added. All are in voxels, rows first.
    """
    device = matrix.device
    rows = torch.arange(height, device=device) - (height - 1) / 2
    columns = torch.arange(width, device=device) - (width - 1) / 2
    # Positions relative to the centre, (2, H, W).
    mesh = torch.meshgrid(rows, columns, indexing="ij")
    grid = torch.stack(mesh)
    turned = torch.einsum("nij,jhw->nihw", matrix, grid)
    source = turned + shift.view(-1, 2, 1, 1)
    source += interpolate(warp, (height, width), mode="bicubic", align_corners=True)
    # grid_sample expects columns before rows, and -1..1 from edge to edge of the outer voxels.
    down, across = source.unbind(1)
    x = across * (2 / width)
    y = down * (2 / height)
    return torch.stack((x, y), -1)


def _affine(config: AugmentationConfig, draw: _Draw) -> tuple[Tensor, Tensor]:
    """Draw the affine deformation: a matrix (N, 2, 2) and a shift (N, 2).

    They map each position in the result to its position in the source image, relative to the
    centre, in voxels.
    """
    angle = draw.uniform(-1, 1) * math.radians(config.rotation_deg)
    # Uniform in the logarithm, so that enlarging by a factor is as likely as shrinking by the same
    # factor.
    log_scale = draw.uniform(-1, 1, 2) * math.log1p(config.scaling)
    scale = torch.exp(log_scale)
    shear = draw.uniform(-1, 1) * config.shearing
    cos = angle.cos()
    sin = angle.sin()
    zero = torch.zeros_like(angle)
    one = torch.ones_like(angle)
    rotation = torch.stack((cos, -sin, sin, cos), -1)
    shearing = torch.stack((one, shear, zero, one), -1)
    turned_and_sheared = rotation.view(-1, 2, 2) @ shearing.view(-1, 2, 2)
    matrix = turned_and_sheared @ torch.diag_embed(scale)
    shift = draw.uniform(-1, 1, 2) * config.shift
    return matrix, shift


def _classes_by_structure(names: tuple[str, ...], scheme: LabelScheme) -> Tensor:
    """Return a mask (structures, 256) of the classes of each structure, both sides together.

    Raises ConfigError if the scheme has no class of that name.
    """
    groups = torch.zeros(len(names), 256, dtype=torch.bool)
    for group, name in zip(groups, names, strict=True):
        for label in scheme.labels:
            if without_side(label.name) == name:
                group[label.index] = True
        if not group.any():
            raise ConfigError(
                f"{scheme.name} has no structure {name}", where="structure_names"
            )
    return groups


def _shift_structures(
    images: Tensor,
    labels: Tensor,
    groups: Tensor,
    config: AugmentationConfig,
    draw: _Draw,
) -> Tensor:
    """Make structures brighter or darker in some slices, by a random amount for each structure.

    `groups` (structures, 256) has the classes of each structure. Borders stay as soft as those of a
    scan of these voxels: the change is smoothed over 3×3 voxels.
    """
    is_changed = draw.happens(config.structures)
    shifts = draw.normal(len(groups)) * config.structure_shift
    shifts *= is_changed[:, None]
    by_class = upload(shifts @ groups.to(shifts), images.device)
    shift = by_class.gather(1, labels.long().flatten(1)).view_as(labels)
    smooth = avg_pool2d(shift[:, None], 3, stride=1, padding=1)
    # Empty background, such as around a skull-stripped brain, stays empty.
    return torch.where(images > 0, (images + smooth).clamp(min=0), images)


def _change_contrast(images: Tensor, config: AugmentationConfig, draw: _Draw) -> Tensor:
    """Change the contrast of some slices: brightness follows a random curve.

    Most curves rise, as brightness does from fluid to grey to white matter. Some fall from grey to
    white matter, as in FLAIR. Air is dark in all of them.
    """
    is_changed = draw.happens(config.contrast)
    heights = draw.uniform(0, _BRIGHTEST, _KNOTS)
    kind = draw.uniform(0, 1, 1)
    rising = heights.sort(1).values
    top = draw.uniform(*_FALL_STARTS, 1)
    falling = (top - (rising - top).abs()).clamp(min=0)
    heights = torch.where(kind < _RISING_SHARE + _FALLING_SHARE, falling, heights)
    heights = torch.where(kind < _RISING_SHARE, rising, heights)
    heights[:, 0] = 0
    chosen = _indices(is_changed)
    if not len(chosen):
        return images

    device = images.device
    heights = upload(heights[chosen], device)
    chosen = upload(chosen, device)
    images = images.clone()
    images[chosen] = _along_curves(images[chosen], heights)
    return images


def _along_curves(images: Tensor, heights: Tensor) -> Tensor:
    """Map the brightness of images (N, C, H, W) through piecewise linear curves.

    `heights` (N, knots) are the values of the curves at their knots. Knots are evenly spaced from 0
    to `_BRIGHTEST`; brighter values are clipped to it.
    """
    intervals = heights.shape[1] - 1
    place = (images * (intervals / _BRIGHTEST)).clamp(0, intervals)
    knot = place.long().clamp(max=intervals - 1)
    part = place - knot
    at_knot = knot.flatten(1)
    below = heights.gather(1, at_knot).view_as(images)
    above = heights.gather(1, at_knot + 1).view_as(images)
    return below + part * (above - below)


def _brighten(images: Tensor, config: AugmentationConfig, draw: _Draw) -> Tensor:
    """Apply gain, bias field and gamma to randomly chosen slices; intensities of 0 stay 0."""
    gain = draw.uniform(*config.gain_range)
    has_gain = draw.happens(config.gain)
    device = images.device
    factor = upload(_per_slice(torch.where(has_gain, gain, 1.0)), device)
    has_bias = _per_slice(draw.happens(config.bias))
    knots = draw.normal(1, 4, 4) * config.bias_strength * has_bias
    if config.bias:
        size = images.shape[-2:]
        logarithm = interpolate(
            upload(knots, device), size, mode="bicubic", align_corners=True
        )
        factor = factor * logarithm.exp()
    images = images * factor

    has_gamma = draw.happens(config.gamma)
    gamma = torch.where(has_gamma, draw.uniform(*config.gamma_range), 1.0)
    if config.gamma:
        images = images.clamp(min=0) ** upload(_per_slice(gamma), device)
    return images


def _degrade(images: Tensor, config: AugmentationConfig, draw: _Draw) -> Tensor:
    """Blur, lower the resolution and add noise, each in randomly chosen slices.

    The resolution is lowered along rows, columns or both. Noise is added to voxels above 0 only.
    """
    images = _coarsen(images, config, draw)
    has_noise = draw.happens(config.noise)
    strength = torch.where(has_noise, draw.uniform(*config.noise_std), 0.0)
    if config.noise:
        # Noise for whole images is too large to draw on the CPU and upload.
        device = images.device
        generator = torch.Generator(device).manual_seed(draw.seed())
        noise = torch.empty_like(images).normal_(generator=generator)
        noisy = images + noise * upload(_per_slice(strength), device)
        # Empty background, such as around a skull-stripped brain, stays empty.
        images = torch.where(images > 0, noisy, images)
    return images


def _coarsen(images: Tensor, config: AugmentationConfig, draw: _Draw) -> Tensor:
    """Blur in the plane and lower the resolution along rows, columns or both, in random slices."""
    is_blurred = draw.happens(config.blur)
    sigma = draw.uniform(*config.blur_sigma)
    is_coarse = draw.happens(config.low_resolution)
    factor = draw.uniform(*config.low_resolution_factor)
    direction = draw.uniform(0, 3).floor()  # 0: rows alone, 1: columns alone, 2: both
    chosen = _indices(is_blurred | is_coarse)
    if not len(chosen):
        return images

    device = images.device
    # Blurring and coarsening are linear along each axis, so one matrix for rows and one for columns
    # apply both.
    widths = torch.where(is_blurred, sigma, 1e-3)[chosen]
    operators = []
    for axis, length in enumerate(images.shape[-2:]):
        is_coarse_here = is_coarse & (direction != 1 - axis)
        factors = torch.where(is_coarse_here, factor, 1.0)[chosen]
        blurring = _blur_matrix(upload(widths, device), length)
        coarsening = _coarse_matrix(upload(factors, device), length)
        operators.append(coarsening @ blurring)
    rows, columns = operators
    chosen = upload(chosen, device)
    images = images.clone()
    images[chosen] = rows[:, None] @ images[chosen] @ columns[:, None].mT
    return images


def _blur_matrix(sigma: Tensor, length: int) -> Tensor:
    """Return matrices (N, L, L) that smooth a line of L = `length` voxels with a Gaussian.

    `sigma` (N,) is the standard deviation in voxels. Each row of a matrix sums to 1.
    """
    place = torch.arange(length, device=sigma.device, dtype=sigma.dtype)
    distance = (place[:, None] - place) / sigma.view(-1, 1, 1)
    weights = torch.exp(-0.5 * distance**2)
    return weights / weights.sum(-1, keepdim=True)


def _coarse_matrix(factor: Tensor, length: int) -> Tensor:
    """Return matrices (N, L, L) that lower the resolution of a line of L = `length` voxels.

    They average the line to longer voxels and interpolate linearly back to the original spacing.
    `factor` (N,) is the length of the longer voxels in original voxels, at least 1. Each row of a
    matrix sums to 1.
    """
    place = torch.arange(length, device=factor.device, dtype=factor.dtype)
    step = factor[:, None]
    below = torch.floor(place / step)
    weight = (place / step - below)[..., None]

    def average(voxel: Tensor) -> Tensor:
        """Return the weights (N, L, L) with which original voxels are averaged to longer voxels.

        `voxel` (N, L) has the index of a longer voxel for each position. The weights are
        proportional to the overlap and sum to 1.
        """
        centre = (voxel * step)[..., None]
        distance = (place - centre).abs()
        reach = step[..., None] / 2 + 0.5
        overlap = (reach - distance).clamp(0, 1)
        # A longer voxel beyond the end of the line takes the value of the last original voxel.
        outside = overlap.sum(-1, keepdim=True) == 0
        last = (place == length - 1).to(overlap.dtype)
        overlap = torch.where(outside, last, overlap)
        return overlap / overlap.sum(-1, keepdim=True)

    return (1 - weight) * average(below) + weight * average(below + 1)
