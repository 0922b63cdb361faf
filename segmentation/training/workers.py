"""Processes that train together: each draws its part of a batch, gradients are averaged.

On a busy CPU, several processes of one thread each may do better than one with several threads:
they wait for each other once a step, threads at every layer (docs/training.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import distributed
from torch.nn import Parameter

__all__ = ["ALONE", "Workers"]


@dataclass(frozen=True)
class Workers:
    """This process's place among `count`; torch.distributed is set up if there are several."""

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def average(self, parameters: Sequence[Parameter], loss: float) -> float:
        """Average gradients in place, and the loss, over all processes."""
        if self.count == 1:
            return loss
        gradients = [p.grad for p in parameters if p.grad is not None]
        parts = [g.flatten() for g in gradients]
        # One message for all: small ones cost more than they carry.
        flat = torch.cat([*parts, parts[0].new_tensor([loss])])
        distributed.all_reduce(flat)
        flat /= self.count
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view(gradient.shape))
            start += gradient.numel()
        return float(flat[-1])

    def largest(self, value: float) -> float:
        """The largest of all processes' values: what they all then go by."""
        if self.count == 1:
            return value
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        tensor = torch.tensor([value], dtype=torch.float64, device=device)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)


ALONE = Workers()
