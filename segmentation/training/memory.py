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
# Memory of a step, relative to the tensors that float32 keeps for the backward pass: measured 1.4
# to 1.6 times in float32, 0.7 to 1.0 times in bfloat16 (docs/notes/speed.md). The minimum is used,
# so that no batch is refused that fits.
_OF_KEPT = 1.4
_OF_KEPT_IN_BFLOAT16 = 0.7


class StepMemory(NamedTuple):
    """Memory of a training step, in bytes.

    A step with n slices at once takes `fixed` + n * `each`.
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
        """Estimate the memory for slices of `size` (rows, columns), without computing anything."""
        kept, weights = _bytes_of_activations_and_weights(config, size)
        of_kept = _OF_KEPT_IN_BFLOAT16 if bfloat16 else _OF_KEPT
        return cls(_COPIES_OF_WEIGHTS * weights, int(of_kept * kept))

    def needed(self, slices: int) -> int:
        """Return the bytes of a step with this many slices at once."""
        return self.fixed + slices * self.each

    def largest_batch(self, batch: int, available: int) -> int:
        """Return the largest divisor of `batch` that fits into `available` bytes; 0 if none does.

        It is a divisor so that accumulation can make up the number of slices per step.
        """
        largest = 0
        for slices in range(1, batch + 1):
            if batch % slices == 0 and self.needed(slices) <= available:
                largest = slices
        return largest


def smaller_batch(batch: int, accumulate: int, smaller: int) -> str:
    """Return advice to set `batch` to `smaller` and to accumulate more batches in each step.

    If `smaller` is 0, because no batch fits, smaller slices and networks are advised.
    """
    if not smaller:
        return "set data.rows and data.columns, or network.filters, lower"
    more = accumulate * batch // smaller
    return (
        f"set batch to {smaller} and accumulate to {more}: as many slices to a step, "
        f"but batch norms see {smaller} at a time"
    )


def _bytes_of_activations_and_weights(
    config: NetworkConfig, size: tuple[int, int]
) -> tuple[int, int]:
    """Return two sizes in bytes: the tensors kept for one slice's backward pass, and the weights.

    Both are in float32. The network runs on torch's meta device, where tensors have a shape but no
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
        # Tensors that are saved twice count once. The reference in `held` prevents the reuse of the
        # storage's address.
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
