"""Synthetic T1-like slices from label maps, on the fly, in torch, on the device of the maps.

All random numbers of a batch come from one generator: a seed fixes the slices on a given device.
Neither here nor in the modules that this one calls is a GPU asked for a number, is anything chosen
by a mask or copied from the host: each of these would make the host wait for all that is queued.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trinat.segmentation.labels.scheme import IGNORE
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.appearance import (
    blur,
    corrupt,
    find_field_of_view,
    find_removed,
    move,
    paint,
)
from trinat.segmentation.synthetic.draw import Draw
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.slabs import (
    Thickness,
    choose_thickness,
    cut_slabs,
    displace_borders,
    look_up,
    places_within_voxels,
)
from trinat.segmentation.synthetic.targets import Heads


def synthesise(
    heads: Heads,
    config: SynthesisConfig,
    view: View,
    count: int,
    size: tuple[int, int],
    generator: torch.Generator,
    neighbours: int = 1,
) -> tuple[Tensor, Tensor]:
    """Images (B, C, H, W), C = 2 neighbours + 1 slices 1 mm apart, and classes (B, H, W).

    `count` is B and `size` (H, W). Classes are those of the middle slice, IGNORE where nothing is
    learnt.
    """
    draw = Draw(heads, config, generator)
    mirrored = draw.chance(count, config.mirrored)
    head = draw.below(len(heads.labels), count)
    plane = cut_slabs(draw, view, head, size, neighbours, mirrored)
    # What the scanner's field of view leaves out is neither seen nor learned.
    seen = find_field_of_view(draw, head, plane)
    middle = look_up(heads, head, plane[:, :, neighbours]) * seen[:, neighbours]
    middle = middle.long()
    classes = _classes_to_learn(heads, config, middle, mirrored)
    # What the image shows: away from the target's borders, and anywhere within a voxel.
    shown = plane + displace_borders(draw, head, plane)
    thickness = choose_thickness(draw, view, count)
    entries = []
    if config.places == 1:
        entries.append(look_up(heads, head, shown) * seen)
    else:
        for _ in range(config.places):
            place = shown + places_within_voxels(draw, thickness, size)
            entries.append(look_up(heads, head, place) * seen)
    removed = find_removed(draw, head, entries[0], plane)
    # Fluid that a stripped scan does not show cannot be learnt; where brain was, it can.
    unseen = removed[:, neighbours] & heads.is_fluid[middle]
    classes = classes.masked_fill(unseen, 0)
    images = _render(draw, entries, removed, thickness)
    return images, classes


def _classes_to_learn(
    heads: Heads,
    config: SynthesisConfig,
    entries: Tensor,
    mirrored: Tensor,
) -> Tensor:
    """Classes of entries (B, H, W) in heads of which some are `mirrored` (B,)."""
    classes = torch.where(
        mirrored[:, None, None], heads.mirrored_targets[entries], heads.targets[entries]
    )
    if not config.learn_brain:
        # Entry 0 is air.
        is_within_skull = (entries > 0) & ~heads.is_outside[entries]
        return classes.masked_fill(is_within_skull, IGNORE)
    if config.learn_linings:
        return classes
    return classes.masked_fill(heads.is_lining[entries], IGNORE)


def synthesise_volume(
    heads: Heads,
    config: SynthesisConfig,
    head: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """One head as it is, whole: image (X, Y, Z) and classes (X, Y, Z), for validation."""
    draw = Draw(heads, config, generator)
    entries = heads.labels[head][None]
    axes = [torch.arange(length, device=draw.device) for length in entries.shape[1:]]
    grid = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack(grid)[None]
    index = torch.tensor([head], device=draw.device)
    # Sagittal slices on each other make the slab.
    removed = find_removed(draw, index, entries, points)
    thickness = choose_thickness(draw, View.SAGITTAL, 1)
    image = _render(draw, [entries], removed, thickness)[0]
    return image, heads.targets[entries[0].long()]


def _render(
    draw: Draw,
    entries: list[Tensor],
    removed: Tensor,
    thickness: Thickness,
) -> Tensor:
    """What a scanner makes of entries (B, C, H, W), one or several for each voxel.

    Where voxels are `removed` (B, C, H, W), the images (B, C, H, W) are 0.
    """
    images, white = paint(draw, entries)
    images = blur(draw, images, thickness)
    images = move(draw, images)
    images = corrupt(draw, images, white)
    # As conform does it: vessels go beyond 1, what goes beyond 2 is cut off.
    return images.clamp_(max=2).masked_fill_(removed, 0)
