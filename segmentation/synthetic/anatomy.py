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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from trinat.segmentation.labels.scheme import load_scheme

ANATOMY_FILE = "anatomy.npz"
MIXED = 255


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The head on a RAS grid of cubes; A tissues, of which some are structures of quicknat33.

    - `tissues` (X, Y, Z): 0 to A - 1;
    - `truth` (X, Y, Z): classes of quicknat33, 0 for tissues that are none of these;
    - `cells` (X-1, Y-1, Z-1): the class of all eight corners between voxels, or MIXED;
    - `contrast` (A,): rows of `means` and `spreads`; both sides of a structure share one;
    - `means`, `spreads` (C, 2): of real T1 scans scaled to 0..255, mean and deviation over scans
      of each tissue's mean, and of its standard deviation.
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
    """The anatomy on a grid of 1, 2, ... mm; arrays are shared, and read-only."""
    folder = resources.files("trinat.segmentation.synthetic")
    with folder.joinpath(ANATOMY_FILE).open("rb") as file:
        stored = dict(np.load(file, allow_pickle=False))
    packed = lzma.decompress(stored["tissues_xz"].tobytes())
    tissues = np.frombuffer(packed, np.uint8).reshape(stored["shape"])
    if spacing_mm > 1:
        tissues = _coarsen(tissues, spacing_mm)
    truth = _classes_of_tissues(stored["fs_ids"])[tissues]
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


def _classes_of_tissues(numbers: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
    """The class of quicknat33 of each tissue's FreeSurfer number, (A,).

    A structure outside the scheme, skin say, is background.
    """
    class_of: dict[int, int] = {}
    for index, number in enumerate(load_scheme("quicknat33").fs_ids):
        class_of[int(number)] = index
    return np.array([class_of.get(int(number), 0) for number in numbers], np.uint8)


def _coarsen(tissues: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """The commonest tissue of each block; the far side is filled up by repeating its last plane."""
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
        # Equal votes go to the lower number, whichever corner of the block it stands in.
        np.maximum(best, votes * 256 + (255 - candidate), out=best)
    return (255 - best % 256).astype(np.uint8)


def cells_of(truth: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The class of all eight corners of each cell between voxels, or MIXED."""
    lowest = ndimage.minimum_filter(truth, 2)[1:, 1:, 1:]
    highest = ndimage.maximum_filter(truth, 2)[1:, 1:, 1:]
    return np.where(lowest == highest, lowest, np.uint8(MIXED))
