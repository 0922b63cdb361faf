"""The class that fills most of each voxel of the phantom."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trinat.segmentation.synthetic.anatomy import MIXED, Anatomy

_SAMPLES_AT_ONCE = 2**14


def largest_fraction(
    anatomy: Anatomy,
    places: NDArray[np.float32],
    factors: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """The class with the largest share of each voxel, (X, Y, Z).

    `places` (3, X f, Y g, Z h), in voxels of the anatomy, are the samples of the voxels, with
    `factors` f, g, h along each axis. Beyond its edges the anatomy goes on as it ends.
    """
    last = (np.array(anatomy.truth.shape) - 1).reshape(3, 1, 1, 1)
    places = np.clip(places, 0, last.astype(np.float32))
    corner = np.minimum(places.astype(np.int32), last.astype(np.int32) - 1)
    codes = _codes_at(anatomy.cells, corner)
    by_voxel = _samples_last(codes, factors)
    # Where all samples lie in cells of one class, that is the voxel's.
    classes: NDArray[np.uint8] = by_voxel.min(axis=-1)
    largest = by_voxel.max(axis=-1)
    is_mixed = (largest == MIXED) | (classes != largest)

    corner_by_axis = [_samples_last(axis, factors)[is_mixed] for axis in corner]
    place_by_axis = [_samples_last(axis, factors)[is_mixed] for axis in places]
    base = np.stack(corner_by_axis)  # (3, M, samples)
    share = np.stack(place_by_axis) - base
    classes[is_mixed] = _vote(anatomy.truth, base, share)
    return classes


def _codes_at(cells: NDArray[Any], corner: NDArray[np.int32]) -> NDArray[Any]:
    """The codes of the cells whose first corners are `corner` (3, ...)."""
    index = np.ravel_multi_index(tuple(corner), cells.shape)
    codes: NDArray[Any] = cells.ravel()[index]
    return codes


def _vote(
    truth: NDArray[np.uint8],
    base: NDArray[np.int32],
    share: NDArray[np.float32],
) -> NDArray[np.uint8]:
    """The class of most weight around the samples of M voxels, (M,).

    The eight voxels of the truth around each sample vote with their trilinear weights: `base`
    (3, M, samples) is the first of them, and `share` says how far the sample is from that.
    """
    count = int(truth.max()) + 1
    winners = np.empty(base.shape[1], np.uint8)
    chunk = max(1, _SAMPLES_AT_ONCE // base.shape[2])
    for start in range(0, len(winners), chunk):
        part = slice(start, start + chunk)
        voxels = len(winners[part])
        # A bin for each voxel and class.
        first_bin = np.arange(voxels)[:, None] * count
        bins = []
        weights = []
        for corner in np.ndindex(2, 2, 2):
            away = np.array(corner).reshape(3, 1, 1)
            around = truth[tuple(base[:, part] + away)]
            along_axes = np.where(away, share[:, part], 1 - share[:, part])
            bins.append(first_bin + around)
            weights.append(along_axes.prod(axis=0))
        votes = np.bincount(np.ravel(bins), np.ravel(weights), voxels * count)
        winners[part] = votes.reshape(voxels, count).argmax(axis=1)
    return winners


def _samples_last(array: NDArray[Any], factors: tuple[int, int, int]) -> NDArray[Any]:
    """Samples (X f, Y g, Z h) to voxels (X, Y, Z, samples)."""
    f, g, h = factors
    x, y, z = array.shape
    blocks = array.reshape(x // f, f, y // g, g, z // h, h)
    samples_last = blocks.transpose(0, 2, 4, 1, 3, 5)
    return samples_last.reshape(x // f, y // g, z // h, f * g * h)
