"""Slices of a store cut to the size of a recipe, as a batch on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trinat.segmentation.data.dataset import StoredSlice


def cut(
    slices: Sequence[StoredSlice],
    size: tuple[int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Cut around what is labelled, at a random place, or pad with background, to `size`.

    Subjects may differ in shape. Returns images (B, C, H, W) and labels (B, H, W) on the
    generator's device.
    """
    device = generator.device
    batch = len(slices)
    # All at once, since a GPU is waited for when its numbers are looked at.
    drawn = torch.rand((batch, 2), generator=generator, device=device)
    pinned = device.type == "cuda"
    channels = len(slices[0].image.codes)
    shape = (batch, channels, *size)
    codes = torch.empty(shape, dtype=torch.uint16, pin_memory=pinned)
    shape_of_labels = (batch, *size)
    labels = torch.zeros(shape_of_labels, dtype=torch.uint8, pin_memory=pinned)
    for stored, shares, image, truth in zip(
        slices, drawn.tolist(), codes.numpy(), labels.numpy(), strict=True
    ):
        _fill(image, truth, stored, shares)
    scales = [stored.image.scale for stored in slices]
    zeros = [stored.image.zero for stored in slices]
    images = _to_float(codes.to(device, non_blocking=True), scales, zeros)
    return images, labels.to(device, non_blocking=True)


def _fill(
    image: NDArray[np.uint16],
    labels: NDArray[np.uint8],
    stored: StoredSlice,
    shares: tuple[float, float],
) -> None:
    """Fill image (C, H, W) and labels (H, W), which are 0, with a window of a stored slice.

    `shares` say where the window is, down and across; beyond the slice is background.
    """
    height, width = labels.shape
    down, across = shares
    rows = _window(np.any(stored.labels, axis=1), height, down)
    columns = _window(np.any(stored.labels, axis=0), width, across)
    inside = stored.labels[rows, columns]
    height_inside, width_inside = inside.shape
    labels[:height_inside, :width_inside] = inside
    image[...] = stored.image.zero
    image[:, :height_inside, :width_inside] = stored.image.codes[:, rows, columns]


def _to_float(codes: Tensor, scales: Sequence[float], zeros: Sequence[int]) -> Tensor:
    """Codes (B, C, H, W) as values, each by its own scale and zero, on the device of the codes.

    As `Quantised.values` does it, operation by operation, so that no bit differs.
    """

    def per_slice(numbers: Sequence[float]) -> Tensor:
        values = torch.tensor(numbers, dtype=torch.float32, device=codes.device)
        return values.view(-1, 1, 1, 1)

    images = codes.float()
    if any(zeros):
        images -= per_slice(zeros)
    images *= per_slice(scales)
    return images


def _window(labelled: NDArray[np.bool_], want: int, share: float) -> slice:
    """`want` places of an axis, which show all that is `labelled` on it if they can.

    Where they cannot, they show nothing else. `share`, from 0 to below 1, says which of the windows
    that do; an axis may be too short.
    """
    have = len(labelled)
    places = np.flatnonzero(labelled)
    low = 0
    high = have
    if len(places):
        low = int(places[0])
        high = int(places[-1]) + 1
    latest = max(0, have - want)
    from_low = min(low, latest)
    up_to_high = min(max(0, high - want), latest)
    first = min(from_low, up_to_high)
    last = max(from_low, up_to_high)
    start = first + int(share * (last + 1 - first))
    return slice(start, start + want)
