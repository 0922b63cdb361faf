"""Shared tools of the network benchmarks: a training step, medians, operations, processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "Timing",
    "in_process",
    "operations",
    "step_of",
    "timing",
]


def step_of(
    network: nn.Module, slices: Tensor, labels: Tensor, *, bf16: bool = False
) -> Callable[[], None]:
    """Run forward, loss, backward and update of `network` on one batch, as training does."""
    import torch

    from trinat.segmentation.models.losses import LossConfig, build_loss

    loss = build_loss(LossConfig(), torch.ones(33)).to(slices.device)
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3)

    def step() -> None:
        with torch.autocast(slices.device.type, torch.bfloat16, enabled=bf16):
            logits = network(slices)
        optimiser.zero_grad(set_to_none=True)
        loss(logits, labels).backward()
        optimiser.step()

    return step


Timing = tuple[float, float]  # medians of wall-clock seconds and processor seconds


def timing(work: Callable[[], Any], repetitions: int = 3) -> Timing:
    """Return the median times of a call, after one warm-up call.

    Other work on the machine stretches wall-clock time most of all.
    """
    work()
    taken = []
    for _ in range(repetitions):
        clock, processor = time.perf_counter(), time.process_time()
        work()
        taken.append((time.perf_counter() - clock, time.process_time() - processor))
    by_clock, by_processor = zip(*taken, strict=True)
    return statistics.median(by_clock), statistics.median(by_processor)


def operations(work: Callable[[], Any]) -> float:
    """Return the multiplications and additions of convolutions and matrix products in one call."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def in_process(call: str) -> dict[str, float]:
    """Run a Python expression in a fresh process and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
