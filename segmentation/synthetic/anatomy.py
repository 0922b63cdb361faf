"""Anatomy of the phantom: classes of a whole head on a 1 mm grid, with T1 intensities.

The file is derived (`pipelines/data/anatomy.py` at commit f8e9679: cropped, simplified, its
outer fluid renumbered) from a label map and intensity priors of SynthSeg,
https://github.com/BBillot/SynthSeg, Apache-2.0.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.labels.scheme import load_scheme

ANATOMY_FILE = "anatomy.npz"
MIXED = 255

_SAMPLES_AT_ONCE = 2**14


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A head on an isotropic RAS grid, with A tissues, some of which are structures of quicknat33.

    - `spacing_mm`: voxel size; `extent_mm`: size of the anatomy at 1 mm, from left to right, back
      to
      front and bottom to top;
    - `tissues` (X, Y, Z): the tissue of each voxel, 0 to A - 1;
    - `truth` (X, Y, Z): the class of each voxel in quicknat33, 0 for tissues that have none;
    - `cells` (X-1, Y-1, Z-1): for each group of 2 x 2 x 2 neighbouring voxels, their class if all
      have
      the same, else MIXED;
    - `contrast` (A,): each tissue's row in `means` and `spreads`; both sides of a structure share
      one;
    - `means` (C, 2): mean intensity of a tissue in real T1 scans scaled to 0..255, as mean and
      standard
      deviation over scans;
    - `spreads` (C, 2): standard deviation of the intensity within a tissue, in the same form.
    """

    spacing_mm: int
    extent_mm: tuple[int, int, int]
    tissues: NDArray[np.uint8]
    truth: NDArray[np.uint8]
    cells: NDArray[np.uint8]
    contrast: NDArray[np.uint8]
    means: NDArray[np.float32]
    spreads: NDArray[np.float32]


@cache
def load_anatomy(spacing_mm: int = 1) -> Anatomy:
    """Load the anatomy on a grid of `spacing_mm`, a whole number.

    The arrays are shared between calls and read-only.
    """
    folder = resources.files("trinat.segmentation.synthetic")
    with folder.joinpath(ANATOMY_FILE).open("rb") as file:
        stored = dict(np.load(file, allow_pickle=False))
    packed = lzma.decompress(stored["tissues_xz"].tobytes())
    tissues = np.frombuffer(packed, np.uint8).reshape(stored["shape"])
    if spacing_mm > 1:
        tissues = _coarsen(tissues, spacing_mm)
    # A structure outside of the scheme, such as skin, is background.
    class_of = {
        int(n): index for index, n in enumerate(load_scheme("quicknat33").fs_ids)
    }
    classes = [class_of.get(int(number), 0) for number in stored["fs_ids"]]
    truth = np.array(classes, np.uint8)[tissues]
    x, y, z = stored["shape"].tolist()
    anatomy = Anatomy(
        spacing_mm=spacing_mm,
        extent_mm=(x, y, z),
        tissues=tissues,
        truth=truth,
        cells=cells_of(truth),
        contrast=stored["contrast"],
        means=stored["means"],
        spreads=stored["spreads"],
    )
    for array in vars(anatomy).values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return anatomy


def _coarsen(tissues: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Return the most frequent tissue of each block of `factor` voxels along each axis.

    The last plane is repeated until the blocks are complete.
    """
    missing = [(0, -size % factor) for size in tissues.shape]
    filled = np.pad(tissues, missing, mode="edge")
    members = []
    for i, j, k in np.ndindex(factor, factor, factor):
        corner = filled[i::factor, j::factor, k::factor]
        members.append(corner.astype(np.uint16))
    best = np.zeros(members[0].shape, np.uint16)
    for candidate in members:
        votes = np.zeros(best.shape, np.uint16)
        for member in members:
            votes += member == candidate
        # Equal votes go to the lower number, wherever it is in the block.
        np.maximum(best, votes * 256 + (255 - candidate), out=best)
    return (255 - best % 256).astype(np.uint8)


def cells_of(truth: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return for each group of 2 x 2 x 2 neighbouring voxels their common class, or MIXED.

    From (X, Y, Z) to (X-1, Y-1, Z-1).
    """
    lowest = ndimage.minimum_filter(truth, 2)[1:, 1:, 1:]
    highest = ndimage.maximum_filter(truth, 2)[1:, 1:, 1:]
    return np.where(lowest == highest, lowest, np.uint8(MIXED))


def largest_fraction(
    anatomy: Anatomy,
    places: NDArray[np.float32],
    factors: tuple[int, int, int],
) -> NDArray[np.uint8]:
    """Return the class that fills most of each voxel of a scan, (X, Y, Z), by samples in the voxel.

    Each voxel has f, g, h samples along its axes; these numbers are `factors`. `places` (3, X f, Y
    g, Z h) are the positions of the samples, in voxels of the anatomy. Edge values are repeated
    outside of the anatomy.
    """
    last = (np.array(anatomy.truth.shape) - 1).reshape(3, 1, 1, 1)
    places = np.clip(places, 0, last.astype(np.float32))
    corner = np.minimum(places.astype(np.int32), last.astype(np.int32) - 1)
    index = np.ravel_multi_index(tuple(corner), anatomy.cells.shape)
    codes = anatomy.cells.ravel()[index]
    by_voxel = _samples_last(codes, factors)
    # If all samples lie in cells of one class, that is the voxel's class.
    classes: NDArray[np.uint8] = by_voxel.min(axis=-1)
    largest = by_voxel.max(axis=-1)
    is_mixed = (largest == MIXED) | (classes != largest)

    corner_by_axis = [_samples_last(axis, factors)[is_mixed] for axis in corner]
    place_by_axis = [_samples_last(axis, factors)[is_mixed] for axis in places]
    base = np.stack(corner_by_axis)  # (3, M, samples)
    share = np.stack(place_by_axis) - base
    classes[is_mixed] = _vote(anatomy.truth, base, share)
    return classes


def _vote(
    truth: NDArray[np.uint8],
    base: NDArray[np.int32],
    share: NDArray[np.float32],
) -> NDArray[np.uint8]:
    """Return the class with the largest weight around the samples of M voxels, (M,).

    The eight voxels of the truth around each sample vote with their trilinear weights. `base` (3,
    M, samples) is the index of the first of the eight, and `share` the offset of the sample from
    it, 0 to 1.
    """
    count = int(truth.max()) + 1
    winners = np.empty(base.shape[1], np.uint8)
    chunk = max(1, _SAMPLES_AT_ONCE // base.shape[2])
    for start in range(0, len(winners), chunk):
        part = slice(start, start + chunk)
        voxels = len(winners[part])
        # One bin for each voxel and class.
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
    """Regroup samples (X f, Y g, Z h) by voxel, (X, Y, Z, f g h)."""
    f, g, h = factors
    x, y, z = array.shape
    blocks = array.reshape(x // f, f, y // g, g, z // h, h)
    samples_last = blocks.transpose(0, 2, 4, 1, 3, 5)
    return samples_last.reshape(x // f, y // g, z // h, f * g * h)
