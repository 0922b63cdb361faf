"""Members of the QuickNAT family, and MONAI's: size, operations, time of a step and a forward.

Each measurement is a fresh process. MONAI's network runs in one as it comes; ours with the
allocation that `trinat` sets up. Members take turns, so that a drifting machine favours none.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

from pipelines.bench._steps import in_process, operations, seconds, step_of
from pipelines.process import prepare_process
from segmentation.models.quicknat import FAST, PUBLISHED, QuickNatConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

MONAI = "monai 1.6.1"
MEMBERS: dict[str, QuickNatConfig] = {
    "published": PUBLISHED,
    "published, no SE": PUBLISHED.model_copy(update={"excitation": "none"}),
    "fast": FAST,
    "fast, 24 filters": FAST.model_copy(update={"filters": 24}),
    "fast, 48 filters": FAST.model_copy(update={"filters": 48}),
    "fast, 16 of 5x5": FAST.model_copy(update={"filters": 16, "kernel": 5}),
    "fast, norm first": FAST.model_copy(update={"order": PUBLISHED.order}),
    "fast, PReLU": FAST.model_copy(update={"activation": "prelu"}),
    "fast, with SE": FAST.model_copy(update={"excitation": "both"}),
    "fast, depth 3": FAST.model_copy(update={"depth": 3}),
}


def network_of(name: str) -> nn.Module:
    if name == MONAI:
        from monai.networks.nets.quicknat import Quicknat

        return Quicknat()  # type: ignore[no-any-return]
    from segmentation.models.quicknat import QuickNat

    return QuickNat(MEMBERS[name])


def probe(name: str, size: int, batch: int) -> None:
    """Print one member's figures as JSON; seconds are a slice's, medians of five."""
    if name != MONAI:
        prepare_process()
    import torch

    torch.manual_seed(0)
    network = network_of(name)
    arrange(network)
    slices = torch.randn(batch, 1, size, size)
    labels = torch.randint(0, 33, (batch, size, size), dtype=torch.uint8)
    figures: dict[str, float] = {"parameters": sum(p.numel() for p in network.parameters())}
    figures["step"] = seconds(step_of(network, slices, labels)) / batch
    figures["step bf16"] = seconds(step_of(network, slices, labels, bf16=True)) / batch
    network.eval()
    inference: nn.Module = network if name == MONAI else network.fold()  # type: ignore[operator]
    with torch.inference_mode():
        figures["forward"] = seconds(lambda: inference(slices)) / batch
        with torch.autocast("cpu", torch.bfloat16):
            figures["forward bf16"] = seconds(lambda: inference(slices)) / batch
    print(json.dumps(figures))


def arrange(network: nn.Module, layout: torch.memory_format | None = None) -> None:
    """Ours lie in memory as training on this processor has them, or so; MONAI's as it comes."""
    import torch

    from segmentation.models.hardware import training_layout
    from segmentation.models.quicknat import QuickNat

    if isinstance(network, QuickNat):
        network.arrange(layout or training_layout(torch.device("cpu")))


def giga_operations(name: str) -> float:
    """10^9 multiplications and additions for a slice of 256 x 256."""
    import torch

    network = network_of(name).eval()
    with torch.inference_mode():
        return operations(lambda: network(torch.zeros(1, 1, 256, 256))) / 1e9


def measure(name: str, size: int, batch: int) -> dict[str, float]:
    call = f"from pipelines.bench.models import probe; probe({name!r}, {size}, {batch})"
    return in_process(call)


def run(size: str = "192", batch: str = "4", repetitions: str = "3", *names: str) -> None:
    """Medians over processes; how many times faster than MONAI is a median of ratios in turn."""
    chosen = [MONAI, *(names or MEMBERS)]
    turns = [
        {name: measure(name, int(size), int(batch)) for name in chosen}
        for _ in range(int(repetitions))
    ]
    print(f"batch of {batch}, {size} x {size}, 33 classes, ms a slice; (times faster than MONAI)")
    columns = ("step", "step bf16", "forward", "forward bf16")
    print(f"{'':18}{'parameters':>11}{'GFLOP':>8}" + "".join(f"{c:>19}" for c in columns))
    for name in chosen:
        row = f"{name:18}{turns[0][name]['parameters']:>11,.0f}{giga_operations(name):>8.1f}"
        for column in columns:
            taken = statistics.median(turn[name][column] for turn in turns)
            # As it comes: MONAI in float32.
            plain = column.removesuffix(" bf16")
            ratio = statistics.median(turn[MONAI][plain] / turn[name][column] for turn in turns)
            row += f"{1000 * taken:>10.1f} ({ratio:5.1f}x)"
        print(row)
