"""The phantom's anatomy: one whole head as classes on a 1 mm grid, and how its tissues look in T1.

The file is derived (`pipelines/data/anatomy.py` at commit f8e9679: cropped, simplified, its outer
fluid renumbered) from a label map and intensity priors of SynthSeg,
https://github.com/BBillot/SynthSeg, Apache-2.0.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.labels.scheme import load_scheme

ANATOMY_FILE = "anatomy.npz"
MIXED = 255


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The head on a RAS grid of cubes; A tissues, of which some are structures of quicknat33."""

    spacing_mm: int
    extent_mm: tuple[int, int, int]
    tissues: NDArray[np.uint8]  # (X, Y, Z), 0..A-1
    truth: NDArray[np.uint8]  # (X, Y, Z), classes of quicknat33
    cells: NDArray[np.uint8]  # (X-1, Y-1, Z-1): class of all eight corners, or MIXED
    contrast: NDArray[
        np.uint8
    ]  # (A,): rows of `means` and `spreads`; both sides share one
    # (classes, 2) of real T1 scans scaled to 0..255: mean and deviation, over scans, of each
    # tissue's mean (`means`) and of its standard deviation (`spreads`).
    means: NDArray[np.float32]
    spreads: NDArray[np.float32]


@cache
def load_anatomy(spacing_mm: int = 1) -> Anatomy:
    """The anatomy on a grid of 1, 2, ... mm; arrays are shared, and read-only."""
    with (
        resources.files("trinat.segmentation.synthetic")
        .joinpath(ANATOMY_FILE)
        .open("rb") as file
    ):
        stored = dict(np.load(file, allow_pickle=False))
    packed = lzma.decompress(stored["tissues_xz"].tobytes())
    tissues = np.frombuffer(packed, np.uint8).reshape(stored["shape"])
    if spacing_mm > 1:
        tissues = _coarsen(tissues, spacing_mm)
    # A structure outside the scheme, skin say, is background of the truth.
    numbers = stored["fs_ids"]
    classes = {
        int(number): index
        for index, number in enumerate(load_scheme("quicknat33").fs_ids)
    }
    truth = np.array([classes.get(int(n), 0) for n in numbers], np.uint8)[tissues]
    x, y, z = stored["shape"].tolist()
    arrays = (
        tissues,
        truth,
        _cells(truth),
        stored["contrast"],
        stored["means"],
        stored["spreads"],
    )
    for array in arrays:
        array.setflags(write=False)
    return Anatomy(spacing_mm, (x, y, z), *arrays)


def _coarsen(tissues: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """The commonest tissue of each block; the far side is filled up by repeating its last plane."""
    filled = np.pad(
        tissues, [(0, -size % factor) for size in tissues.shape], mode="edge"
    )
    offsets = np.ndindex(factor, factor, factor)
    members = [
        filled[i::factor, j::factor, k::factor].astype(np.uint16) for i, j, k in offsets
    ]
    best = np.zeros(members[0].shape, np.uint16)
    for candidate in members:
        votes = np.zeros(best.shape, np.uint16)
        for member in members:
            votes += member == candidate
        # Equal votes go to the lower number, whichever corner of the block it stands in.
        np.maximum(best, votes * 256 + (255 - candidate), out=best)
    return (255 - best % 256).astype(np.uint8)


def _cells(truth: NDArray[np.uint8]) -> NDArray[np.uint8]:
    extremes = (ndimage.minimum_filter(truth, 2), ndimage.maximum_filter(truth, 2))
    low, high = (found[1:, 1:, 1:] for found in extremes)
    return np.where(low == high, low, np.uint8(MIXED))
