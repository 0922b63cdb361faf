"""Intensities as 16-bit codes, as slice files store them.

4,096 levels are 40 times finer than a good scan's noise and twice finer than a half float near
the bright end. They stand in the lower 12 bits, so that of the shuffled bytes one half hardly
changes from voxel to voxel and the other is mere noise: both are unpacked faster than a mixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEVELS = 4096
# In float32; an image with less between its values is flat.
_SMALLEST_STEP = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class Quantised:
    """Intensities as 16-bit codes: value = (code - zero) * scale, so that 0 stays exactly 0.

    Codes are 0 to 4,095 and may have any shape. The error of a value is at most half of `scale`.
    """

    codes: NDArray[np.uint16]
    scale: float
    zero: int

    def values(self) -> NDArray[np.float32]:
        """The intensities, in the shape of the codes.

        A new array of float32; what was below 0 before is below 0 again.
        """
        values: NDArray[np.float32] = self.codes.astype(np.float32)
        if self.zero:
            values -= np.float32(self.zero)
        values *= np.float32(self.scale)
        return values

    def filling_16_bits(self) -> Quantised:
        """The same values, bit for bit, in codes up to 65,520: seen as a picture, not black.

        Codes and step change by a power of two, by which floating-point numbers are multiplied
        exactly. Codes that need more than 12 bits already stay as they are.
        """
        if self.codes.max(initial=0) >= _LEVELS:
            return self
        factor = 65536 // _LEVELS
        codes = self.codes * np.uint16(factor)
        return Quantised(codes, self.scale / factor, self.zero * factor)


def quantise(image: NDArray[np.float32]) -> Quantised:
    """Spread the values from the lowest (0 or below) to the highest over 4,096 codes.

    Any shape; 0 is always among the values that have a code of their own. An image that is 0
    everywhere gets the scale 1. Values must be finite.
    """
    low = min(float(image.min()), 0.0)
    high = max(float(image.max()), 0.0)
    step = (high - low) / (_LEVELS - 1)
    if step < _SMALLEST_STEP:
        step = 1.0
    zero = round(-low / step)
    levels = np.rint(image / np.float32(step))
    levels += zero
    np.clip(levels, 0, _LEVELS - 1, out=levels)
    return Quantised(levels.astype(np.uint16), step, zero)
