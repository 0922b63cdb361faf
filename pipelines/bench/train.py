"""A training step (forward, backward, update) against MONAI's `Quicknat`, as it comes.

Each measurement is a fresh process: MONAI's network with default allocation, ours with what `trinat
train` sets up, layout in memory included. Members take turns. Processor seconds are told beside
those of the clock, and what part of the rate of a matrix product they reach: with all of its
operations in convolutions, no step can be quicker than that rate allows.

    scripts/bench train 1 1 2 96 no 2 both      each layout in memory, not only the one that is used
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from pipelines.bench._steps import in_process, matrix_rate, operations, step_of, timing
from pipelines.bench.models import MONAI, arrange, network_of
from pipelines.process import prepare_process

MEMBERS = (MONAI, "published", "fast")
USED, LAYOUTS = "used", ("contiguous_format", "channels_last")


def probe(
    name: str,
    size: int,
    batch: int,
    threads: int,
    compiled: bool,
    repetitions: int,
    layout: str = USED,
) -> None:
    """Print one member's figures as JSON; seconds are a slice's, NaN where it cannot be had."""
    if name != MONAI:
        prepare_process()
    import torch

    from segmentation.models.hardware import computes_bfloat16

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = network_of(name).train()
    arrange(network, None if layout == USED else getattr(torch, layout))
    slices = torch.randn(batch, 1, size, size)
    labels = torch.randint(0, 33, (batch, size, size), dtype=torch.uint8)
    figures: dict[str, float] = {}
    precisions = [False, True] if computes_bfloat16(torch.device("cpu")) else [False]
    for bf16 in precisions:
        run: Any = torch.compile(network) if compiled else network
        step = step_of(run, slices, labels, bf16=bf16)
        clock, processor = (taken / batch for taken in timing(step, repetitions))
        kind = "bf16" if bf16 else "float32"
        rate = matrix_rate(torch.bfloat16 if bf16 else torch.float32)
        figures |= {f"{kind} clock": clock, f"{kind} processor": processor, f"{kind} rate": rate}
    figures["operations"] = operations(step_of(network, slices[:1], labels[:1]))
    print(json.dumps(figures))


def measure(
    name: str, size: int, batch: int, threads: int, compiled: bool, repetitions: int, layout: str
) -> dict[str, float]:
    arguments = (name, size, batch, threads, compiled, repetitions, layout)
    return in_process(f"from pipelines.bench.train import probe; probe{arguments!r}")


def run(
    turns: str = "3",
    threads: str = "2",
    batch: str = "4",
    size: str = "192",
    compiled: str = "both",
    repetitions: str = "3",
    layouts: str = USED,
) -> None:
    """Medians over turns; how many times faster than MONAI is a median of ratios within a turn."""
    print(f"a training step, batch of {batch}, {size}x{size}, 33 classes, {threads} threads")
    ways = {"both": (False, True), "yes": (True,), "no": (False,)}[compiled]
    lying = {USED: (USED,), "both": LAYOUTS}[layouts]
    # MONAI's network is measured as it comes, so never compiled.
    cells = [
        (MONAI, False, USED),
        *((name, way, lies) for way in ways for name in MEMBERS[1:] for lies in lying),
    ]
    taken = [
        {
            (name, way, lies): measure(
                name, int(size), int(batch), int(threads), way, int(repetitions), lies
            )
            for name, way, lies in cells
        }
        for _ in range(int(turns))
    ]
    head = ("slices/s", "processor", "faster", "by processor", "of matrix rate")
    print(f"{'':40}" + "".join(f"{column:>16}" for column in head))
    for cell in cells:
        for kind in ("float32", "bf16"):
            rows = [turn[cell] for turn in taken]
            if f"{kind} clock" not in rows[0]:
                continue
            base = [turn[cells[0]] for turn in taken]
            clock, processor, rate, work = (
                statistics.median(row[key] for row in rows)
                for key in (f"{kind} clock", f"{kind} processor", f"{kind} rate", "operations")
            )
            # As it comes: MONAI in float32.
            faster, leaner = (
                statistics.median(
                    b[f"float32 {key}"] / r[f"{kind} {key}"]
                    for b, r in zip(base, rows, strict=True)
                )
                for key in ("clock", "processor")
            )
            name = f"{cell[0]}, {kind}" + (", compiled" if cell[1] else "")
            name += "" if cell[2] == USED else f", {cell[2]}"
            print(
                f"{name:40}{1 / clock:16.2f}{processor:14.3f} s{faster:15.1f}x{leaner:15.1f}x"
                f"{work / processor / rate:16.0%}"
            )
