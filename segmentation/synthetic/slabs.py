"""Random geometry of synthetic slices: planes through heads, and the tissues on these planes.

In shapes, B is the number of slices in a batch, C the number of neighbouring planes of a slice, and
(H, W) its rows and columns. Head maps have a number, the entry, in each voxel, which says what
tissue it is: an index into their tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from trinat.segmentation.space.views import View, slice_axes
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.targets import Heads


class Draw:
    """Random draws for the synthesis, with the head maps and settings that they depend on.

    `heads` are the label maps of whole heads, and `config` has the strength of each variation. The
    numbers come from `generator` and are on the device of the maps. With the same seed, the same
    sequence of calls gives the same slices.
    """

    def __init__(
        self,
        heads: Heads,
        config: SynthesisConfig,
        generator: torch.Generator,
    ) -> None:
        self.heads = heads
        self.config = config
        self.generator = generator
        self.device = heads.labels.device

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw uniform numbers from `low` to `high`."""
        drawn = torch.rand(shape, generator=self.generator, device=self.device)
        return low + (high - low) * drawn

    def below(self, high: int, *shape: int) -> Tensor:
        """Draw whole numbers from 0 to `high` - 1."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def chance(self, count: int, share: float) -> Tensor:
        """Draw flags (count,), each of which is True with probability `share`."""
        return self.uniform(0, 1, count) < share

    def smooth(
        self,
        count: int,
        channels: int,
        size: Sequence[int],
        spacing_mm: float,
        strength: float,
        mode: Literal["bicubic", "bilinear"] = "bicubic",
    ) -> Tensor:
        """Draw smooth random fields, (B, C, H, W), on planes of `size` (H, W) in mm.

        `count` is B, the number of planes, and `channels` is C. The fields are interpolated, by
        `mode`, between knots about `spacing_mm` apart. The standard deviation of the knots of a
        plane is drawn from 0 to `strength`.
        """
        knots = [max(2, round(length / spacing_mm) + 1) for length in size]
        values = self.normal(count, channels, *knots)
        values = values * self.uniform(0, strength, count, 1, 1, 1)
        return interpolate(values, tuple(size), mode=mode, align_corners=True)


@dataclass(frozen=True)
class Thickness:
    """Size of the voxels of each slice in mm: along its rows, its columns and across it, (B,).

    `axis` is the axis of the head, 0 to 2, that is across the slices.
    """

    rows: Tensor
    columns: Tensor
    across: Tensor
    axis: int


def choose_thickness(draw: Draw, view: View, count: int) -> Thickness:
    """Draw the voxel size of each slice; some slices are of scans with thick voxels.

    Voxels are 1 mm long along all axes, or, in some slices, thick along one random axis of the
    head.
    """
    config = draw.config
    is_low_resolution = draw.chance(count, config.low_resolution)
    thick_axis = draw.below(3, count)
    length_mm = draw.uniform(1, config.low_resolution_mm, count)
    axes = torch.arange(3, device=draw.device)
    is_thick = is_low_resolution[:, None] & (thick_axis[:, None] == axes)
    lengths_mm = torch.where(is_thick, length_mm[:, None], 1.0)
    view_axes = slice_axes(view)
    return Thickness(
        rows=lengths_mm[:, view_axes.rows],
        columns=lengths_mm[:, view_axes.columns],
        across=lengths_mm[:, view_axes.along],
        axis=view_axes.along,
    )


def places_within_voxels(
    draw: Draw, thickness: Thickness, size: tuple[int, int]
) -> Tensor:
    """Draw a random position in each voxel, as an offset from its centre, (B, 3, 1, H, W)."""
    one = draw.uniform(-0.5, 0.5, 1, 3, 1, *size)
    place = one.repeat(len(thickness.across), 1, 1, 1, 1)
    place[:, thickness.axis] *= thickness.across.view(-1, 1, 1, 1)
    return place


def cut_slabs(
    draw: Draw,
    view: View,
    head: Tensor,
    size: tuple[int, int],
    neighbours: int,
    mirrored: Tensor,
) -> Tensor:
    """Return positions of slabs through deformed heads, (B, 3, C, H, W), in voxels of the heads.

    A slab is a slice and its neighbours. `head` (B,) is the index of each slice's head, and
    `mirrored` (B,) says which heads are mirrored. `size` is (H, W); C = 2 `neighbours` + 1 planes
    make a slab. The planes are oblique and bent, so that twenty heads give more than their own
    slices.
    """
    config = draw.config
    count = len(head)
    along, rows, columns = slice_axes(view)
    centre = _choose_centres(draw, along, head)
    # Steps in voxels along rows, columns and slices of the drawn planes, (B, 3, 3).
    rotation = _random_rotation(draw, count)
    shear = torch.triu(draw.normal(count, 3, 3) * config.shearing, 1)
    log_scale = draw.uniform(-1, 1, count, 3) * config.scaling
    affine = rotation @ (shear + torch.diag_embed(torch.exp(log_scale)))
    frame = torch.stack([affine[:, :, axis] for axis in (rows, columns, along)], -1)
    # In a mirrored head the plane is mirrored, so that the left side appears on the right.
    frame[:, 0] *= torch.where(mirrored, -1.0, 1.0)[:, None]
    # Row and column of each pixel of a plane, from its middle, (H, W, 2).
    height, width = size
    row = torch.arange(height, device=draw.device) - (height - 1) / 2
    column = torch.arange(width, device=draw.device) - (width - 1) / 2
    grid = torch.stack(torch.meshgrid(row, column, indexing="ij"), -1)
    flat = torch.einsum("hwa,bia->bihw", grid, frame[:, :, :2])
    bend = draw.smooth(count, 3, size, config.elastic_spacing_mm, config.elastic_mm)
    plane = flat + centre[:, :, None, None] + bend
    offsets = torch.arange(
        -neighbours, neighbours + 1, device=draw.device, dtype=plane.dtype
    )
    across = frame[:, :, 2]
    steps = across[..., None] * offsets  # (B, 3, C)
    return plane[:, :, None] + steps[..., None, None]


def look_up(heads: Heads, head: Tensor, places: Tensor) -> Tensor:
    """Return the tissue numbers (B, ...) of the voxels nearest to positions (B, 3, ...).

    `head` (B,) is the index of each slice's head. Positions are in voxels. Outside of the maps
    there is air, entry 0.
    """
    points = places.round().int()
    inside = torch.ones_like(points[:, 0], dtype=torch.bool)
    # Flat index into the maps, built axis by axis from the number of the head.
    one_a_head = (len(head), *[1] * (points.ndim - 2))
    index = head.view(one_a_head).expand_as(inside)
    for axis, length in enumerate(heads.labels.shape[1:]):
        position = points[:, axis]
        inside &= (position >= 0) & (position < length)
        index = index * length + position.clamp(0, length - 1)
    entries = heads.labels.view(-1)[index]
    return entries * inside


def displace_borders(draw: Draw, head: Tensor, plane: Tensor) -> Tensor:
    """Draw by how much the image is displaced from the labels, (B, 3, C, H, W), in voxels.

    `head` (B,) is the index of each slice's head, `plane` (B, 3, C, H, W) are the positions of its
    voxels. Only voxels near deep structures are displaced: the borders of the cerebral cortex
    follow the image.
    """
    heads = draw.heads
    config = draw.config
    size = plane.shape[3:]
    spacing_mm = config.border_spacing_mm
    displacement = draw.smooth(len(plane), 3, size, spacing_mm, config.border_mm)
    entries = look_up(heads, head, plane).long()
    near = grow(heads.is_deep[entries], 3)
    return displacement[:, :, None] * near[:, None]


def grow(mask: Tensor, reach: int) -> Tensor:
    """Dilate slices (..., H, W) by a square of `reach` voxels to each side.

    25 times as fast as max_pool2d on one core.
    """
    for axis in (-2, -1):
        length = mask.shape[axis]
        grown = mask.clone()
        for step in range(1, min(reach, length - 1) + 1):
            before = grown.narrow(axis, 0, length - step)
            before |= mask.narrow(axis, step, length - step)
            after = grown.narrow(axis, step, length - step)
            after |= mask.narrow(axis, 0, length - step)
        mask = grown
    return mask


def _choose_centres(draw: Draw, along: int, head: Tensor) -> Tensor:
    """Draw the centre of each plane, (B, 3), in voxels of the heads.

    `along` is the axis of the head across the slices, and `head` (B,) the index of each slice's
    head. Most centres are near the middle of the brain in the plane. Along the axis across it, they
    are at a random structure or anywhere in the head. Some centres are anywhere in the head in all
    directions.
    """
    heads = draw.heads
    config = draw.config
    count = len(head)
    _, structures, points = heads.points.shape[:3]
    structure = draw.below(structures, count)
    point = draw.below(points, count)
    by_structure = heads.points[head, structure, point][:, along].float()
    first, last = heads.extent[head].float().unbind(1)
    extent = last - first
    anywhere = first + extent * draw.uniform(0, 1, count, 1)
    shift = draw.uniform(-1, 1, count, 3) * config.shift_mm
    near_centre = heads.centre[head] + shift
    is_balanced = draw.chance(count, config.balanced)
    near_centre[:, along] = torch.where(is_balanced, by_structure, anywhere[:, along])
    is_off_centre = draw.chance(count, config.astray)[:, None]
    off_centre = first + extent * draw.uniform(0, 1, count, 3)
    return torch.where(is_off_centre, off_centre, near_centre)


def _random_rotation(draw: Draw, count: int) -> Tensor:
    """Draw rotation matrices about random axes, (B, 3, 3)."""
    spread = draw.config.rotation_deg * torch.pi / 180
    angles = draw.normal(count, 3) * spread
    upper = torch.zeros(count, 3, 3, device=draw.device)
    upper[:, 0, 1] = angles[:, 0]
    upper[:, 0, 2] = angles[:, 1]
    upper[:, 1, 2] = angles[:, 2]
    skew = upper - upper.mT
    # Rodrigues: 1 + sin(a)/a K + (1 - cos a)/a^2 K^2; torch's matrix_exp asks the GPU for norms.
    turns = angles.norm(dim=1)[:, None, None] / torch.pi
    first_order = turns.sinc() * skew
    half_turns = turns / 2
    second_order = 0.5 * half_turns.sinc() ** 2 * (skew @ skew)
    identity = torch.eye(3, device=draw.device)
    rotation: Tensor = identity + first_order + second_order
    return rotation
