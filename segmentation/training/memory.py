"""Memory of a training step, estimated from shapes alone before the step runs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import NetworkConfig

# Weights, their gradients, two moments of the optimiser, and the running average.
_COPIES_OF_WEIGHTS = 5
# A step takes 1.4 to 1.6 times the memory that is kept for the backward pass, and in bfloat16 0.7
# to 1.0 times the memory that float32 keeps (docs/notes/speed.md). The minimum, so that nothing is
# refused that fits.
_OF_KEPT = 1.4
_OF_KEPT_IN_BFLOAT16 = 0.7


class StepMemory(NamedTuple):
    """Bytes of a step: a fixed part, and a part for each slice at once.

    A batch of n slices takes `fixed` + n * `each`.
    """

    fixed: int
    each: int

    @classmethod
    def of(
        cls,
        config: NetworkConfig,
        size: tuple[int, int],
        *,
        bfloat16: bool = False,
    ) -> StepMemory:
        """Estimate the memory for slices of (rows, columns); nothing is computed."""
        kept, weights = _kept_by_a_slice(config, size)
        of_kept = _OF_KEPT_IN_BFLOAT16 if bfloat16 else _OF_KEPT
        return cls(_COPIES_OF_WEIGHTS * weights, int(of_kept * kept))

    def needed(self, slices: int) -> int:
        """Return the bytes of a step with this many slices at once."""
        return self.fixed + slices * self.each

    def largest_batch(self, batch: int, available: int) -> int:
        """Return the largest divisor of `batch` that fits into `available` bytes; 0 if none does.

        A divisor, since accumulation makes up for the rest.
        """
        largest = 0
        for slices in range(1, batch + 1):
            if batch % slices == 0 and self.needed(slices) <= available:
                largest = slices
        return largest


def smaller_batch(batch: int, accumulate: int, smaller: int) -> str:
    """Return settings with as many slices per step, `smaller` at once, and what then differs."""
    more = accumulate * batch // smaller
    return (
        f"set batch to {smaller} and accumulate to {more}: as many slices to a step, "
        f"but batch norms see {smaller} at a time"
    )


def _kept_by_a_slice(config: NetworkConfig, size: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes kept for the backward pass of one slice, and those of the weights.

    Both are in float32. The network runs on the meta device, where tensors have a shape and no
    content.
    """
    with torch.device("meta"):
        network = build(config).train()
        slices = torch.empty(1, config.channels, *size)
    weights: dict[int, int] = {}
    for parameter in network.parameters():
        storage = parameter.untyped_storage()
        weights[storage._cdata] = storage.nbytes()
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        """Record a tensor that the backward pass will need."""
        storage = tensor.untyped_storage()
        # Tensors that are saved twice count once. The reference prevents reuse of the storage's
        # address.
        kept[storage._cdata] = storage.nbytes()
        held.append(tensor)
        return tensor

    def give_back(tensor: Tensor) -> Tensor:
        return tensor

    with saved_tensors_hooks(keep, give_back):
        network(slices)
    activations = 0
    for place, nbytes in kept.items():
        if place not in weights:
            activations += nbytes
    return activations, sum(weights.values())
