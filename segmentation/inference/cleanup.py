"""Optional tidying of a label map: one piece a structure, and no holes in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segmentation.space.resample import occupied_box

_TOUCHING = np.ones((3, 3, 3), bool)


def clean_up(
    indices: NDArray[np.uint8], classes: int
) -> tuple[NDArray[np.uint8], dict[int, float]]:
    """Keep each class's largest piece and fill what it encloses; (cleaned map, changed share).

    Lost pieces become the class that surrounds most of them. The share counts, of each class's
    voxels before, those lost or gained.
    """
    out = indices.copy()
    for k in range(1, classes):
        box = occupied_box(out == k)
        if box[0].start == box[0].stop:
            continue
        x, y, z = (slice(max(s.start - 1, 0), s.stop + 1) for s in box)
        part = out[x, y, z]
        pieces, count = ndimage.label(part == k, _TOUCHING)
        if count > 1:
            sizes = np.bincount(pieces.ravel())
            largest = 1 + int(sizes[1:].argmax())
            for number, where in enumerate(ndimage.find_objects(pieces), start=1):
                if number != largest:
                    _give_away(part, pieces, number, where)
        mask = part == k
        # Only background is filled: another structure inside, such as a ventricle, belongs there.
        part[ndimage.binary_fill_holes(mask) & (part == 0)] = k
    before = np.bincount(indices.ravel(), minlength=classes)
    moved = indices != out
    lost = np.bincount(indices[moved], minlength=classes)
    gained = np.bincount(out[moved], minlength=classes)
    changed = (lost + gained) / np.maximum(before, 1)
    return out, {k: float(changed[k]) for k in range(1, classes) if changed[k] > 0}


def _give_away(
    part: NDArray[np.uint8], pieces: NDArray[Any], number: int, where: tuple[slice, ...]
) -> None:
    wide = tuple(slice(max(s.start - 1, 0), s.stop + 1) for s in where)
    piece = pieces[wide] == number
    around = part[wide][ndimage.binary_dilation(piece, _TOUCHING) & ~piece]
    part[wide][piece] = np.bincount(around).argmax() if around.size else 0
