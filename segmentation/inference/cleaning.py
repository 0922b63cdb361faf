"""Cleaning of labels: one piece a structure, and no holes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from trinat.segmentation.grid import grown, is_empty
from trinat.segmentation.space.resample import occupied_box

# Voxels that share a face, an edge or a corner are one piece.
_TOUCHING = np.ones((3, 3, 3), bool)


def clean_up(
    indices: NDArray[np.uint8], classes: int
) -> tuple[NDArray[np.uint8], dict[int, float]]:
    """Keep each class's largest piece and fill what it encloses; (cleaned map, changed share).

    Lost pieces become the class that surrounds most of them. The share counts, of each class's
    voxels before, those lost or gained.
    """
    cleaned = indices.copy()
    for k in range(1, classes):
        box = occupied_box(cleaned == k)
        if is_empty(box):
            continue
        part = cleaned[grown(box, cleaned.shape)]
        _keep_largest_piece(part, k)
        # Only background is filled: another structure inside, such as a ventricle, belongs there.
        filled = ndimage.binary_fill_holes(part == k)
        part[filled & (part == 0)] = k
    return cleaned, _changed_shares(indices, cleaned, classes)


def with_classes(
    probabilities: Tensor,
    before: NDArray[np.uint8],
    after: NDArray[np.uint8],
) -> Tensor:
    """Probabilities (X, Y, Z, K) whose most probable classes are `after` and were `before`.

    In each voxel that differs, the two classes exchange their probabilities: sums stay, and so
    does the entropy.
    """
    places = torch.from_numpy(np.argwhere(before != after)).unbind(1)
    old = _classes_at(before, places)
    new = _classes_at(after, places)
    changed = probabilities[places]
    largest = changed.gather(1, old)
    smaller = changed.gather(1, new)
    changed.scatter_(1, old, smaller)
    changed.scatter_(1, new, largest)
    # Of several classes that are equally probable the first would win.
    beaten = changed.argmax(1, keepdim=True) != new
    larger = torch.nextafter(largest, torch.ones_like(largest))
    changed.scatter_(1, new, torch.where(beaten, larger, largest))
    result = probabilities.clone()
    result[places] = changed
    return result


def _classes_at(classes: NDArray[np.uint8], places: tuple[Tensor, ...]) -> Tensor:
    """Classes (N, 1) of a map at places, as the index that `gather` takes."""
    found = torch.from_numpy(classes)[places]
    return found.to(torch.int64)[:, None]


def _keep_largest_piece(part: NDArray[np.uint8], k: int) -> None:
    """Give all pieces of class k in `part` but the largest away, in place."""
    pieces, count = ndimage.label(part == k, _TOUCHING)
    if count < 2:
        return
    sizes = np.bincount(pieces.ravel())
    largest = 1 + int(sizes[1:].argmax())
    for number, box in enumerate(ndimage.find_objects(pieces), start=1):
        if number == largest:
            continue
        around = grown(box, part.shape)
        _give_away(part[around], pieces[around] == number)


def _give_away(part: NDArray[np.uint8], piece: NDArray[np.bool_]) -> None:
    """Make a piece the class that surrounds most of it, in place; background if there is none."""
    rim = ndimage.binary_dilation(piece, _TOUCHING) & ~piece
    neighbours = part[rim]
    if neighbours.size:
        part[piece] = np.bincount(neighbours).argmax()
    else:
        part[piece] = 0


def _changed_shares(
    before: NDArray[np.uint8],
    after: NDArray[np.uint8],
    classes: int,
) -> dict[int, float]:
    """Voxels lost and gained, of those before, of each class that changed but background."""
    sizes = np.bincount(before.ravel(), minlength=classes)
    differs = before != after
    lost = np.bincount(before[differs], minlength=classes)
    gained = np.bincount(after[differs], minlength=classes)
    changed = (lost + gained) / np.maximum(sizes, 1)
    return {k: float(changed[k]) for k in range(1, classes) if changed[k] > 0}
