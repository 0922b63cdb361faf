"""A training step (forward, backward, update) against MONAI's `Quicknat`, as it comes.

Each measurement is a fresh process: MONAI's network with default allocation, ours with what `trinat
train` sets up, layout in memory included. Members take turns. Processor seconds are told beside
those of the clock, and what part of the rate of a matrix product they reach: with all of its
operations in convolutions, no step can be quicker than that rate allows.

    scripts/bench train 1 1 2 96 2 both      each layout in memory, not only the one that is used
"""

from __future__ import annotations

import json
import statistics

from pipelines.bench._steps import in_process, matrix_rate, operations, step_of, timing
from pipelines.common.process import prepare_process

MONAI = "monai 1.6.1"
MEMBERS = (MONAI, "published", "fast")
USED, LAYOUTS = "used", ("contiguous_format", "channels_last")


def probe(
    name: str, size: int, batch: int, threads: int, repetitions: int, layout: str = USED
) -> None:
    """Print one member's figures as JSON; seconds are a slice's, by the clock and processor."""
    if name != MONAI:
        prepare_process()
    import torch
    from monai.networks.nets.quicknat import Quicknat

    from segmentation.models.architectures import FAST, PUBLISHED, build
    from segmentation.models.hardware import computes_bfloat16, training_layout

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if name == MONAI:
        network = Quicknat().train()
    else:
        network = build({"published": PUBLISHED, "fast": FAST}[name]).train()
        cpu = torch.device("cpu")
        network.arrange(training_layout(cpu) if layout == USED else getattr(torch, layout))
    slices = torch.randn(batch, 1, size, size)
    labels = torch.randint(0, 33, (batch, size, size), dtype=torch.uint8)
    figures: dict[str, float] = {}
    precisions = [False, True] if computes_bfloat16(torch.device("cpu")) else [False]
    for bf16 in precisions:
        step = step_of(network, slices, labels, bf16=bf16)
        clock, processor = (taken / batch for taken in timing(step, repetitions))
        kind = "bf16" if bf16 else "float32"
        rate = matrix_rate(torch.bfloat16 if bf16 else torch.float32)
        figures |= {f"{kind} clock": clock, f"{kind} processor": processor, f"{kind} rate": rate}
    figures["operations"] = operations(step_of(network, slices[:1], labels[:1]))
    print(json.dumps(figures))


def measure(*arguments: str | int) -> dict[str, float]:
    return in_process(f"from pipelines.bench.train import probe; probe{arguments!r}")


def run(
    turns: str = "3",
    threads: str = "2",
    batch: str = "4",
    size: str = "192",
    repetitions: str = "3",
    layouts: str = USED,
) -> None:
    """Medians over turns; how many times faster than MONAI is a median of ratios within a turn."""
    print(f"a training step, batch of {batch}, {size}x{size}, 33 classes, {threads} threads")
    lying = {USED: (USED,), "both": LAYOUTS}[layouts]
    cells = [(MONAI, USED), *((name, lies) for name in MEMBERS[1:] for lies in lying)]
    taken = [
        {
            (name, lies): measure(name, int(size), int(batch), int(threads), int(repetitions), lies)
            for name, lies in cells
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
            clock, processor, rate, work = (
                statistics.median(row[key] for row in rows)
                for key in (f"{kind} clock", f"{kind} processor", f"{kind} rate", "operations")
            )
            # As it comes: MONAI in float32.
            faster, leaner = (
                statistics.median(
                    turn[cells[0]][f"float32 {key}"] / turn[cell][f"{kind} {key}"] for turn in taken
                )
                for key in ("clock", "processor")
            )
            name = f"{cell[0]}, {kind}" + ("" if cell[1] == USED else f", {cell[1]}")
            print(
                f"{name:40}{1 / clock:16.2f}{processor:14.3f} s{faster:15.1f}x{leaner:15.1f}x"
                f"{work / processor / rate:16.0%}"
            )
