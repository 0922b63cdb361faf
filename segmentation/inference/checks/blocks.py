"""Images in blocks of 2 mm: what is some millimetres large is measured there, in an eighth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float32]

BLOCK = 2
VOXELS = BLOCK**3


def block_sums(values: NDArray[Any]) -> Floats:
    """Sums of blocks of voxels: an image (X, Y, Z) as blocks of 2×2×2.

    What is left over at the ends counts nowhere.
    """
    x = values.shape[0] // BLOCK
    y = values.shape[1] // BLOCK
    z = values.shape[2] // BLOCK
    whole = values[: x * BLOCK, : y * BLOCK, : z * BLOCK]
    blocks = whole.reshape(x, BLOCK, y, BLOCK, z, BLOCK)
    return np.asarray(blocks.sum(axis=(1, 3, 5), dtype=np.float32))


def smoothed(sums: Floats, weights: Floats, width: float) -> Floats:
    """Means of what has weight alone, over a Gaussian of `width` blocks (standard deviation).

    `sums` and `weights` are of the same blocks. Where nothing has weight, the mean of all.
    """
    total = ndimage.gaussian_filter(sums, width, truncate=2.0)
    share = ndimage.gaussian_filter(weights, width, truncate=2.0)
    everywhere = sums.sum() / max(float(weights.sum()), 1.0)
    known = share > 1e-3
    divisor = np.where(known, share, 1)
    means = np.where(known, total / divisor, everywhere)
    return np.asarray(means, np.float32)
