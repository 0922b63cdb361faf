"""How fast a GPU makes synthetic slices, trains and infers, and how much memory that takes.

    scripts/bench gpu [--heads heads.npz] [--out OUT] [--seconds 240] [PART ...]

Each part is a process of its own: one that fails or hangs costs no other. OUT/gpu.json is written
anew after each part. `--device cpu --tiny` rehearses all of it with sizes too small to mean much.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor

from pipelines.bench._steps import operations, step_of
from pipelines.common.process import prepare_training
from segmentation.labels.scheme import load_scheme
from segmentation.models.architectures import FAST, PUBLISHED, build
from segmentation.models.base import Network, NetworkConfig
from segmentation.space.views import View
from segmentation.synthetic.heads import HeadMaps, aim, load_heads, phantom_heads
from segmentation.synthetic.synthesis import SynthesisConfig, synthesise
from segmentation.training.state import seeded

Figures = dict[str, float | str | bool | list[str]]
SCHEME = load_scheme("quicknat33")


@dataclass(frozen=True)
class Setting:
    """What every part is given."""

    device: str = "cuda"
    heads: str = "phantom"
    batch: int = 32
    size: int = 256
    tiny: bool = False
    seconds: float = 240.0  # for one part

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
        return slices, torch.randint(0, 33, shape, device=self.device, dtype=torch.uint8)

    def maps(self) -> HeadMaps:
        if self.heads == "phantom":
            return phantom_heads(4 if self.tiny else 1)
        return load_heads(Path(self.heads))

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds_of(self, work: Callable[[], Any]) -> float:
        """A call's: median over blocks of calls, the device waited for after each block."""
        calls, blocks = (1, 2) if self.tiny else (5, 7)
        taken = []
        for block in range(blocks + 1):
            began = time.perf_counter()
            for _ in range(calls):
                work()
            self.wait()
            # The first block does not count.
            taken += [(time.perf_counter() - began) / calls] if block else []
        return statistics.median(taken)

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
    left, right = (torch.randn(shape, device=setting.device, dtype=kind) for _ in range(2))
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
    given = (heads, SynthesisConfig(), View.CORONAL, setting.batch, (setting.size,) * 2, generator)
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
        yield {"trained slices/s": setting.batch / taken} | setting.memory()
        plain = step_of(network, slices, labels, bf16=setting.on_gpu)
        yield {"TFLOP/s": operations(plain) / taken / 1e12}
        folded = setting.network(config).fold()
        run = torch.compile(folded) if compiled else folded

        @torch.inference_mode()
        def infer() -> None:
            with torch.autocast(slices.device.type, torch.bfloat16, enabled=setting.on_gpu):
                run(slices)

        yield {"inferred slices/s": setting.batch / setting.seconds_of(infer)}

    for name, config in (("published", PUBLISHED), ("fast", FAST)):
        yield from named(name, measure(config, False))
        if setting.on_gpu:
            yield from named(f"{name}, compiled", measure(config, True))


def named(name: str, figures: Iterator[Figures]) -> Iterator[Figures]:
    """Figures under a name of their own; if they fail, that is said, and others can go on."""
    try:
        for found in figures:
            yield {f"{name}: {key}": value for key, value in found.items()}
    except Exception as error:
        # Compilers fail in many ways, and memory runs out.
        yield {f"{name}: not measured": f"{type(error).__name__}: {error}"[:300]}


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
    parser.add_argument("--heads", default="phantom", help="a heads file, for real variety")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=240, help="limit of one part")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {min(unknown)}; there are {', '.join(PARTS)}")
    batch, size = (2, 32) if given.tiny else (given.batch, 256)
    setting = Setting(given.device, given.heads, batch, size, given.tiny, given.seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"setting": asdict(setting), "parts": {}}
    for name in given.parts or PARTS:
        began = time.monotonic()
        figures = _in_process(name, setting)
        found["parts"][name] = figures | {"seconds of this part": time.monotonic() - began}
        (given.out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print(name, json.dumps(figures, indent=1), flush=True)
    if any("failed" in figures for figures in found["parts"].values()):
        raise SystemExit(1)


def part(name: str, setting: dict[str, Any]) -> None:
    """One part, in its own process: a line of JSON as soon as there is something to tell."""
    prepare_training(torch.device(setting["device"]))
    for figures in PARTS[name](Setting(**setting)):
        print(json.dumps(figures), flush=True)


def _in_process(name: str, setting: Setting) -> Figures:
    call = f"from pipelines.bench.gpu import part; part({name!r}, {asdict(setting)!r})"
    return _told([sys.executable, "-W", "ignore", "-c", call], setting.seconds)


def _told(command: Sequence[str], seconds: float) -> Figures:
    """All that a process tells until it ends, and why it failed, if it does."""
    figures: Figures = {}
    # Files, not pipes: a compiler's helpers may live longer, and would hold those open.
    with TemporaryFile() as output, TemporaryFile() as errors:
        try:
            done = subprocess.run(
                command, check=False, stdout=output, stderr=errors, timeout=seconds
            )
            errors.seek(0)
            last = b" | ".join(errors.read().strip().splitlines()[-3:])[-600:]
            why = last.decode(errors="replace") or f"ended with {done.returncode}"
            failed = why if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"took more than {seconds:.0f} s"
        output.seek(0)
        for line in output:
            # A compiler may speak in between, and the last line may be torn.
            with suppress(ValueError, TypeError):
                figures |= json.loads(line)
    return figures | ({"failed": failed} if failed else {})
