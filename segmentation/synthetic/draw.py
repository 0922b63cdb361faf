"""Random numbers of one generator, on the device of the head maps that slices are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.targets import Heads


class Draw:
    """Head maps, how to draw from them, and random numbers of one generator on their device.

    The order of the calls decides what a seed gives: another order is another data set.
    """

    def __init__(
        self,
        heads: Heads,
        config: SynthesisConfig,
        generator: torch.Generator,
    ) -> None:
        self.heads = heads
        self.config = config
        self.generator = generator
        self.device = heads.labels.device

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers of this shape: mean 0, standard deviation 1."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Numbers of this shape, spread evenly from `low` to `high`."""
        drawn = torch.rand(shape, generator=self.generator, device=self.device)
        return low + (high - low) * drawn

    def below(self, high: int, *shape: int) -> Tensor:
        """Whole numbers of this shape, from 0 to `high` - 1."""
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def chance(self, count: int, share: float) -> Tensor:
        """Flags (count,), of which about this share is set."""
        return self.uniform(0, 1, count) < share

    def smooth(
        self,
        count: int,
        channels: int,
        size: Sequence[int],
        spacing_mm: float,
        strength: float,
    ) -> Tensor:
        """Knots of smooth fields (B, C, ...) for planes of `size`, each as strong as drawn.

        Knots lie `spacing_mm` apart; the standard deviation of each field is drawn from 0 to
        `strength`. The caller interpolates between them.
        """
        knots = [max(2, round(length / spacing_mm) + 1) for length in size]
        values = self.normal(count, channels, *knots)
        return values * self.uniform(0, strength, count, 1, 1, 1)
