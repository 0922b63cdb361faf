"""How fast a GPU makes synthetic slices, trains and infers, and how much memory that takes.

    scripts/bench gpu [--heads heads.npz] [--out OUT] [PART ...]

OUT/gpu.json is written anew after each figure. `--device cpu --tiny` rehearses all of it with sizes
too small to mean much.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from benches._steps import operations, step_of
from trinat.pipelines.jobs.process import prepare_training
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.architectures import FAST, PUBLISHED, build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.space.views import View
from trinat.segmentation.synthetic.heads import HeadMaps, load_heads, phantom_heads
from trinat.segmentation.synthetic.settings import SynthesisConfig
from trinat.segmentation.synthetic.synthesis import synthesise
from trinat.segmentation.synthetic.targets import aim
from trinat.segmentation.training.state import seeded

Figures = dict[str, float | str]
SCHEME = load_scheme("quicknat33")


@dataclass(frozen=True)
class Setting:
    """What every part is given."""

    device: str = "cuda"
    heads: str = "phantom"
    batch: int = 32
    size: int = 256
    tiny: bool = False

    @property
    def on_gpu(self) -> bool:
        """Elsewhere bfloat16 may be emulated and a compiler takes minutes: no rehearsal."""
        return self.device != "cpu"

    def network(self, config: NetworkConfig) -> Network:
        small = {"filters": 4, "depth": 2} if self.tiny else {}
        torch.manual_seed(0)
        return build(config.model_copy(update=small)).to(self.device)

    def slices(self) -> tuple[Tensor, Tensor]:
        """Random slices and labels: zeros would be quicker than scans are."""
        torch.manual_seed(1)
        shape = (self.batch, self.size, self.size)
        slices = torch.randn(shape, device=self.device)[:, None]
        return slices, torch.randint(
            0, 33, shape, device=self.device, dtype=torch.uint8
        )

    def maps(self) -> HeadMaps:
        if self.heads == "phantom":
            return phantom_heads(4 if self.tiny else 1)
        return load_heads(Path(self.heads))

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds_of(self, work: Callable[[], Any]) -> float:
        """A call's: the median over blocks of calls; torch's timer waits for the device."""
        timer = Timer(
            "work()", globals={"work": work}, num_threads=torch.get_num_threads()
        )
        return float(
            timer.blocked_autorange(min_run_time=0.01 if self.tiny else 2).median
        )

    def first_step(self, work: Callable[[], Any]) -> Figures:
        """Compiling takes place in it."""
        began = time.perf_counter()
        work()
        self.wait()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        return {"first step, s": time.perf_counter() - began}

    def memory(self) -> Figures:
        if not self.on_gpu:
            return {}
        return {"peak memory, GiB": torch.cuda.max_memory_allocated() / 2**30}


def device_part(setting: Setting) -> Iterator[Figures]:
    """What it is, and its two ceilings: copies and matrix products."""
    side, words = (256, 1 << 16) if setting.tiny else (8192, 1 << 30)
    source = torch.randn(words, device=setting.device)
    target = torch.empty_like(source)
    shape, kind = (side, side), torch.bfloat16
    left, right = (
        torch.randn(shape, device=setting.device, dtype=kind) for _ in range(2)
    )
    name = torch.cuda.get_device_name() if setting.on_gpu else "cpu"
    yield {"name": name, "torch": torch.__version__}
    if setting.on_gpu:
        yield {"memory, GiB": torch.cuda.get_device_properties(0).total_memory / 2**30}
    taken = setting.seconds_of(lambda: target.copy_(source))
    yield {"copy, GB/s (read and written)": 8e-9 * words / taken}
    taken = setting.seconds_of(lambda: left @ right)
    yield {"bfloat16 matrix product, TFLOP/s": 2e-12 * side**3 / taken}


def synthesis_part(setting: Setting) -> Iterator[Figures]:
    """Synthesis alone, with and without neighbours."""
    heads = aim(setting.maps(), SCHEME, setting.device)
    generator = seeded(setting.device, 0)
    given = (
        heads,
        SynthesisConfig(),
        View.CORONAL,
        setting.batch,
        (setting.size,) * 2,
        generator,
    )
    for neighbours in (0, 1):
        taken = setting.seconds_of(partial(synthesise, *given, neighbours=neighbours))
        yield {f"slices/s of {2 * neighbours + 1} channels": setting.batch / taken}


def network_part(setting: Setting) -> Iterator[Figures]:
    """Slices a second on data that are there: of a training step, with its operations and memory,
    and of inference, norms folded."""
    slices, labels = setting.slices()

    def measure(config: NetworkConfig, compiled: bool) -> Iterator[Figures]:
        network = setting.network(config).train()
        run: Any = torch.compile(network) if compiled else network
        step = step_of(run, slices, labels, bf16=setting.on_gpu)
        yield setting.first_step(step)
        taken = setting.seconds_of(step)
        # Before operations are counted: that step is not compiled, and takes more.
        yield {"trained slices/s": setting.batch / taken, **setting.memory()}
        plain = step_of(network, slices, labels, bf16=setting.on_gpu)
        yield {"TFLOP/s": operations(plain) / taken / 1e12}
        folded = setting.network(config).fold()
        run = torch.compile(folded) if compiled else folded

        @torch.inference_mode()
        def infer() -> None:
            with torch.autocast(
                slices.device.type, torch.bfloat16, enabled=setting.on_gpu
            ):
                run(slices)

        yield {"inferred slices/s": setting.batch / setting.seconds_of(infer)}

    for name, config in (("published", PUBLISHED), ("fast", FAST)):
        yield from named(f"{name}: ", measure(config, False))
        if setting.on_gpu:
            yield from named(f"{name}, compiled: ", measure(config, True))


def named(name: str, figures: Iterator[Figures]) -> Iterator[Figures]:
    """Figures under a name of their own; if they fail, that is said, and others can go on."""
    try:
        for found in figures:
            yield {name + key: value for key, value in found.items()}
    except Exception as error:
        # Compilers fail in many ways, and memory runs out.
        yield {f"{name}not measured": f"{type(error).__name__}: {error}"[:300]}


# The most telling first: a machine may be gone before the last.
PARTS: dict[str, Callable[[Setting], Iterator[Figures]]] = {
    "device": device_part,
    "synthesis": synthesis_part,
    "network": network_part,
}


def run(*arguments: str) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--heads", default="phantom", help="a heads file, for real variety"
    )
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {min(unknown)}; there are {', '.join(PARTS)}")
    batch, size = (2, 32) if given.tiny else (given.batch, 256)
    setting = Setting(given.device, given.heads, batch, size, given.tiny)
    prepare_training(torch.device(setting.device))
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"setting": asdict(setting), "parts": {}}
    for name in given.parts or PARTS:
        figures: Figures = {}
        found["parts"][name] = figures
        for figure in named("", PARTS[name](setting)):
            figures |= figure
            (given.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(figure), flush=True)
    if any(
        "not measured" in key for figures in found["parts"].values() for key in figures
    ):
        raise SystemExit(1)
