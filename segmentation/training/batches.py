"""Where batches come from: label maps, a store (`store_batches.py`), or both mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from segmentation.labels.scheme import LabelScheme
from segmentation.space.views import View
from segmentation.synthetic.heads import HeadMaps, aim
from segmentation.synthetic.synthesis import SynthesisConfig, synthesise

__all__ = ["Batch", "MixedSource", "Source", "SyntheticSource"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Images (B, C, H, W) float32, classes (B, H, W) uint8, and what they are, for messages."""

    images: Tensor
    labels: Tensor
    what: str


class Source(Protocol):
    """Gives the same batch for the same arguments, so that a run can be resumed."""

    fingerprint: str

    def expect(self, view: View, first: int, count: int) -> None:
        """Announce slices that will be asked for soon, perhaps more than once."""
        return

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        """`count` slices, the first of which is the view's number `first` since the start."""

    def counts(self, view: View) -> Tensor:
        """(K,) pixels of each class, for the loss."""


class SyntheticSource(Source):
    """Synthetic slices from label maps, each of them new."""

    # In a crop around the head, background covers about this many times the brain.
    background = 1.5

    def __init__(
        self,
        maps: HeadMaps,
        scheme: LabelScheme,
        config: SynthesisConfig,
        size: tuple[int, int],
        channels: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.size, self.neighbours = config, size, channels // 2
        self.fingerprint = maps.fingerprint
        heads = aim(maps, scheme, device)
        # The label maps themselves are on the device once.
        self.heads = {view: heads.seen_in(view) for view in View}

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        images, labels = synthesise(
            self.heads[view],
            self.config,
            view,
            count,
            self.size,
            generator,
            neighbours=self.neighbours,
        )
        return Batch(images, labels, f"synthetic {view.value} slices {first}-{first + count - 1}")

    def counts(self, view: View) -> Tensor:
        heads = self.heads[view]
        voxels = torch.bincount(heads.labels.flatten(), minlength=len(heads.classes)).double()
        counts = torch.zeros(len(heads.scheme), dtype=torch.float64, device=voxels.device)
        counts.index_add_(0, heads.targets.long(), voxels)
        counts[0] = self.background * counts[1:].sum()
        return counts.cpu()


class MixedSource(Source):
    """Synthetic and real slices: `share` of each batch is synthetic, on average."""

    def __init__(self, synthetic: Source, real: Source, share: float) -> None:
        self.synthetic, self.real, self.share = synthetic, real, share
        self.fingerprint = f"{share} {synthetic.fingerprint} {real.fingerprint}"

    def expect(self, view: View, first: int, count: int) -> None:
        for source, start, part in self._parts(first, count):
            source.expect(view, start, part)

    def draw(self, view: View, first: int, count: int, generator: torch.Generator) -> Batch:
        batches = [
            source.draw(view, start, part, generator)
            for source, start, part in self._parts(first, count)
        ]
        return Batch(
            torch.cat([batch.images for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            ", ".join(batch.what for batch in batches),
        )

    def _parts(self, first: int, count: int) -> list[tuple[Source, int, int]]:
        """Whose slices they are, from which of its own on, and how many."""
        # Of the slices up to n, floor(share n) are synthetic: exact over time for any batch size.
        start, end = (int(self.share * n) for n in (first, first + count))
        parts = (
            (self.synthetic, start, end - start),
            (self.real, first - start, count - (end - start)),
        )
        return [part for part in parts if part[2]]

    def counts(self, view: View) -> Tensor:
        parts = [s.counts(view).double() for s in (self.synthetic, self.real)]
        shares = (self.share, 1 - self.share)
        return torch.stack([q * p / p.sum() for q, p in zip(shares, parts, strict=True)]).sum(0)
