"""What the parts of scripts/bench gpu share: what they are told, networks, batches, the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from segmentation.models.quicknat import QuickNat

Figures = dict[str, float | str | bool | list[str]]
PUBLISHED_NAME, FAST_NAME = "published", "fast"


@dataclass(frozen=True)
class Setting:
    """What every part is told."""

    device: str = "cuda"
    heads: str = "phantom"
    batch: int = 32
    size: int = 256
    tiny: bool = False
    seconds: float = 240.0  # for one part

    @property
    def bf16(self) -> bool:
        """Emulated on most processors, and then no rehearsal for a minute."""
        return self.device != "cpu"


def device_of(setting: Setting) -> torch.device:
    import torch

    device = torch.device(setting.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    elif setting.tiny:
        torch.set_num_threads(1)
    return device


def wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], setting: Setting, calls: int = 5, blocks: int = 7) -> float:
    """A call's: median over blocks of calls, the device waited for after each block."""
    device = device_of(setting)
    calls, blocks = (1, 2) if setting.tiny else (calls, blocks)
    for _ in range(calls):
        work()
    wait(device)
    taken = []
    for _ in range(blocks):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        wait(device)
        taken.append((time.perf_counter() - began) / calls)
    return statistics.median(taken)


def network_of(name: str, setting: Setting, **changes: Any) -> QuickNat:
    import torch

    from segmentation.models.quicknat import FAST, PUBLISHED, QuickNat

    config = {PUBLISHED_NAME: PUBLISHED, FAST_NAME: FAST}[name].model_copy(update=changes)
    if setting.tiny:
        config = config.model_copy(update={"filters": 4, "depth": 2})
    torch.manual_seed(0)
    return QuickNat(config).to(device_of(setting))


def batch_of(setting: Setting) -> tuple[Tensor, Tensor]:
    """Random slices and labels: zeros would be quicker than scans are."""
    import torch

    device = device_of(setting)
    torch.manual_seed(1)
    shape = (setting.batch, setting.size, setting.size)
    slices = torch.randn(shape, device=device)[:, None]
    return slices, torch.randint(0, 33, shape, device=device, dtype=torch.uint8)


def cells(setting: Setting) -> Iterator[tuple[str, str, bool]]:
    """A title, a network's name, and whether it is compiled."""
    for name in (PUBLISHED_NAME, FAST_NAME):
        for compiled in (False, True):
            # A C++ compiler is at work for a minute there, and not where a GPU is.
            if not (compiled and setting.device == "cpu"):
                yield f"{name}{', compiled' if compiled else ''}", name, compiled


def named(name: str, figures: Iterator[Figures]) -> Iterator[Figures]:
    """Figures under a name of their own; if they fail, that is said, and others can go on."""
    try:
        for found in figures:
            yield {f"{name}: {key}": value for key, value in found.items()}
    except Exception as error:
        # Compilers fail in many ways, and memory runs out.
        yield {f"{name}: not measured": f"{type(error).__name__}: {error}"[:300]}


def heads_of(setting: Setting) -> Any:
    from segmentation.heads import load_heads, phantom_heads

    if setting.heads == "phantom":
        return phantom_heads(4 if setting.tiny else 1)
    return load_heads(Path(setting.heads))
