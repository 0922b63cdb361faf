"""Data-parallel training: each process has a part of each batch, and gradients are averaged.

The result equals that of DistributedDataParallel: the mean over processes of loss and gradients.
The averaging is done here, in one message after the last backward pass, for two reasons. A batch
may lack a view, whose classifier then has no gradient. And training in a single process needs no
distributed set-up. On a busy CPU, several processes of one thread each may be faster than one
process with several threads: processes wait for each other once in a step, threads at every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.nn import Parameter

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """The processes of a data-parallel training, as seen by one of them.

    `rank` is the number of this process, and `count` the number of processes. torch.distributed is
    set up if there are several. `patient` is a process group with a long timeout: in it, processes
    wait while one of them does work that may take longer than any step. All other messages use the
    default group.
    """

    rank: int = 0
    count: int = 1
    patient: distributed.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """True if this process writes files and reports."""
        return self.rank == 0

    def average(self, parameters: Sequence[Parameter], loss: Tensor) -> Tensor:
        """Average gradients in place over all processes, and return the average of the loss.

        All processes must have a gradient for the same parameters.
        """
        if self.count == 1:
            return loss
        gradients = [one.grad for one in parameters if one.grad is not None]
        parts = [gradient.flatten() for gradient in gradients]
        # A single message for all: small messages cost more than their content.
        loss_part = loss.to(parts[0].dtype).reshape(1)
        flat = torch.cat([*parts, loss_part])
        distributed.all_reduce(flat)
        flat /= self.count
        start = 0
        for gradient in gradients:
            after = start + gradient.numel()
            gradient.copy_(flat[start:after].view(gradient.shape))
            start = after
        return flat[-1]

    def largest(self, value: float) -> float:
        """Return the largest of the values of all processes, in all processes."""
        if self.count == 1:
            return value
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        tensor = torch.tensor([value], dtype=torch.float64, device=device)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)

    def share(self, make: Callable[[], T]) -> T:
        """Run `make` in the process with rank 0, and return its value in all processes.

        The value must be picklable. All processes must call this method, or those that do wait for
        ever.
        """
        if self.count == 1:
            return make()
        made = None
        if self.leads:
            made = make()
        shared = [made]
        distributed.broadcast_object_list(shared, src=0, group=self.patient)
        return shared[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks, in all processes."""
        if self.count == 1:
            return [value]
        values: list[T | None] = [None] * self.count
        distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]


ALONE = Workers()
