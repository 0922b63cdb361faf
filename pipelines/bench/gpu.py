"""Everything worth knowing of a GPU in one command: speed, memory, right numbers, the same numbers.

    scripts/bench gpu                                            where trinat is installed
    python3 -m pipelines.bench gpu --heads heads.npz --out OUT   with scripts/gpu/wheels alone

Each part is a process of its own with a limit of time: one that fails or hangs costs no other.
OUT/gpu.json is written anew after each part, so that a machine that goes away leaves what it did.
`--device cpu --tiny` rehearses all of it in a minute with networks and slices too small to mean
anything. Parts can be named: scripts/bench gpu step train.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.bench._steps import operations, step_of

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
        _print(name, figures)
    if any("failed" in figures for figures in found["parts"].values()):
        raise SystemExit(1)


def part(name: str, setting: dict[str, Any]) -> None:
    """One part, in its own process: its figures are the last line."""
    print(json.dumps(PARTS[name](Setting(**setting))))


def _in_process(name: str, setting: Setting) -> Figures:
    call = f"from pipelines.bench.gpu import part; part({name!r}, {asdict(setting)!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", call],
            check=False,
            capture_output=True,
            text=True,
            timeout=setting.seconds,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {setting.seconds:.0f} s"}
    if done.returncode:
        return {"failed": " | ".join(done.stderr.strip().splitlines()[-3:])[-600:]}
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _print(name: str, figures: Figures) -> None:
    print(f"{name}")
    for key, value in figures.items():
        for line in value if isinstance(value, list) else [value]:
            shown = f"{line:,.4g}" if isinstance(line, float) else line
            print(f"  {key:48} {shown}", flush=True)


def _device(setting: Setting) -> torch.device:
    import torch

    device = torch.device(setting.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    elif setting.tiny:
        torch.set_num_threads(1)
    return device


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(work: Callable[[], Any], setting: Setting, calls: int = 5, blocks: int = 7) -> float:
    """A call's: median over blocks of calls, the device waited for after each block."""
    device = _device(setting)
    calls, blocks = (1, 2) if setting.tiny else (calls, blocks)
    for _ in range(calls):
        work()
    _wait(device)
    taken = []
    for _ in range(blocks):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        _wait(device)
        taken.append((time.perf_counter() - began) / calls)
    return statistics.median(taken)


def _network(name: str, setting: Setting, **changes: Any) -> QuickNat:
    import torch

    from segmentation.models.quicknat import FAST, PUBLISHED, QuickNat

    config = {PUBLISHED_NAME: PUBLISHED, FAST_NAME: FAST}[name].model_copy(update=changes)
    if setting.tiny:
        config = config.model_copy(update={"filters": 4, "depth": 2})
    torch.manual_seed(0)
    return QuickNat(config).to(_device(setting))


def _batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """Random slices and labels: zeros would be quicker than scans are."""
    import torch

    device = _device(setting)
    torch.manual_seed(1)
    shape = (setting.batch, setting.size, setting.size)
    slices = torch.randn(shape, device=device)[:, None]
    return slices, torch.randint(0, 33, shape, device=device, dtype=torch.uint8)


def _cells(setting: Setting) -> Iterator[tuple[str, bool]]:
    for name in (PUBLISHED_NAME, FAST_NAME):
        for compiled in (False, True):
            # A C++ compiler is at work for a minute there, and not where a GPU is.
            if not (compiled and setting.device == "cpu"):
                yield name, compiled


def device_part(setting: Setting) -> Figures:
    """What it is, and its two ceilings: copies and matrix products."""
    import torch

    device = _device(setting)
    side, words = (256, 1 << 16) if setting.tiny else (8192, 1 << 30)
    source = torch.randn(words, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    figures: Figures = {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "copy, GB/s (read and written)": 8e-9
        * words
        / _seconds(lambda: target.copy_(source), setting),
        "bf16 matrix product, TFLOP/s": 2e-12 * side**3 / _seconds(lambda: left @ right, setting),
    }
    if device.type == "cuda":
        figures["memory, GiB"] = torch.cuda.get_device_properties(device).total_memory / 2**30
    return figures


def forward_part(setting: Setting) -> Figures:
    """Slices a second of inference: norms folded, bf16, channels last."""
    import torch

    slices, _ = _batch(setting)
    figures: Figures = {}
    for name, compiled in _cells(setting):
        network: Any = _network(name, setting).fold()
        run = torch.compile(network) if compiled else network

        def work(run: Any = run) -> None:
            with (
                torch.inference_mode(),
                torch.autocast(slices.device.type, torch.bfloat16, enabled=setting.bf16),
            ):
                run(slices)

        with _noted(figures, f"{name}{', compiled' if compiled else ''}") as cell:
            cell["slices/s"] = setting.batch / _seconds(work, setting)
    return figures


def step_part(setting: Setting) -> Figures:
    """Slices a second of a training step on data that are there, its operations, its memory."""
    import torch

    slices, labels = _batch(setting)
    figures: Figures = {}
    for name, compiled in _cells(setting):
        network = _network(name, setting).train()
        run: Any = torch.compile(network) if compiled else network
        work = step_of(run, slices, labels, bf16=setting.bf16)
        with _noted(figures, f"{name}{', compiled' if compiled else ''}") as cell:
            began = time.perf_counter()
            work()
            _wait(slices.device)
            cell["first step, s"] = time.perf_counter() - began
            if slices.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            taken = _seconds(work, setting)
            cell["slices/s"] = setting.batch / taken
            plain = step_of(network, slices, labels, bf16=setting.bf16)
            cell["TFLOP/s"] = operations(plain) / taken / 1e12
            if slices.device.type == "cuda":
                cell["peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


def channels_part(setting: Setting) -> Figures:
    """What zeros to a multiple of eight channels are worth: 5x5 to 64, with gradient."""
    import torch
    from torch import nn

    from segmentation.models.blocks import convolve_aligned

    device = _device(setting)
    figures: Figures = {}
    for channels in (1, 64, 65, 72):
        for aligned in (False, True) if channels % 8 else (False,):
            torch.manual_seed(0)
            convolution = nn.Conv2d(channels, 64, 5, padding=2).to(device)
            shape = (setting.batch, channels, setting.size, setting.size)
            x = torch.randn(shape, device=device).to(memory_format=torch.channels_last)
            x.requires_grad_(channels > 1)

            def work(
                x: Tensor = x, convolution: nn.Conv2d = convolution, aligned: bool = aligned
            ) -> None:
                with torch.autocast(device.type, torch.bfloat16, enabled=setting.bf16):
                    y = convolve_aligned(convolution, x) if aligned else convolution(x)
                y.float().mean().backward()

            convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            taken = _seconds(work, setting)
            figures[f"{channels} channels{', with zeros' if aligned else ''}, ms"] = 1e3 * taken
    return figures


def synthesis_part(setting: Setting) -> Figures:
    """Drawing alone, with and without neighbours."""
    from segmentation.heads import aim
    from segmentation.labels import load_scheme
    from segmentation.synthesis import SynthesisConfig, synthesise
    from segmentation.training.state import seeded
    from segmentation.views import View

    device = _device(setting)
    began = time.perf_counter()
    heads, _ = aim(_heads(setting), load_scheme("quicknat33"), device)
    figures: Figures = {"heads made ready, s": time.perf_counter() - began}
    size = (setting.size, setting.size)
    generator = seeded(device, 0)
    for neighbours in (0, 1):

        def work(neighbours: int = neighbours) -> None:
            synthesise(
                heads,
                SynthesisConfig(),
                View.CORONAL,
                setting.batch,
                size,
                generator,
                neighbours=neighbours,
            )

        rate = setting.batch / _seconds(work, setting)
        figures[f"slices/s of {2 * neighbours + 1} channels"] = rate
    return figures


def train_part(setting: Setting) -> Figures:
    """The loop of `trinat train`, data and synthesis included; where the device's time goes."""
    import torch

    from pipelines.budget import read_recipe
    from segmentation.labels import load_scheme
    from segmentation.training.loop import Trainer
    from segmentation.training.network import ViewsNet
    from segmentation.training.sources import SyntheticSource
    from segmentation.views import View

    device = _device(setting)
    tiny = ("network.filters=4", "network.depth=2", "precision=fp32") if setting.tiny else ()
    scheme, maps = load_scheme("quicknat33"), _heads(setting)
    figures: Figures = {}
    for compiled in (False,) if setting.device == "cpu" else (False, True):
        settings = (f"batch={setting.batch}", f"compile={str(compiled).lower()}", *tiny)
        recipe = read_recipe("quicknat", settings, Path("heads"))
        size = (setting.size, setting.size)
        assert recipe.stages[0].data.synthetic is not None
        synthesis = recipe.stages[0].data.synthetic.synthesis
        source = SyntheticSource(maps, scheme, synthesis, size, 1, device)
        torch.manual_seed(0)
        network = ViewsNet(recipe.network, {View.CORONAL: len(scheme)})
        trainer = Trainer(recipe, recipe.stages[0], (View.CORONAL,), network, source, device)
        # By the clock: rates of learning are not what is measured.
        with _noted(figures, "compiled" if compiled else "eager") as cell:
            cell["slices/s"] = setting.batch / _seconds(trainer.step, setting)
            cell |= _profile(trainer.step, setting)
    return figures


def _profile(work: Callable[[], Any], setting: Setting) -> Figures:
    """The part of the time that the device is busy, and with what most of all."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if setting.device == "cpu":
        return {}
    calls = 5
    # Only the device's activities: recording the host's own slows it down.
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        began = time.perf_counter()
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
        wall = time.perf_counter() - began
    # One stream: no two kernels at once. Annotations span kernels that are counted themselves.
    kernels = [
        row
        for row in profiler.key_averages()
        if row.self_device_time_total > 0 and not getattr(row, "is_user_annotation", False)
    ]
    rows = sorted(kernels, key=lambda row: -row.self_device_time_total)
    busy = sum(row.self_device_time_total for row in rows) * 1e-6
    most = [
        f"{row.self_device_time_total / 1e3 / calls:7.2f} ms {row.count // calls:5d} {row.key[:90]}"
        for row in rows[:15]
    ]
    return {
        "device busy, part of the time": busy / wall,
        "kernels a step": float(sum(row.count for row in rows) // calls),
        "ms a step, calls, kernel": most,
    }


def numerics_part(setting: Setting) -> Figures:
    """Logits and gradients against float64 on the same device: relative errors of norms."""
    import copy

    import torch

    slices, labels = (tensor[:4] for tensor in _batch(setting))
    network = _network(PUBLISHED_NAME, setting, dropout=0.0).train()

    def outcome(dtype: torch.dtype, bf16: bool, tf32: bool) -> tuple[Tensor, Tensor]:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        own = copy.deepcopy(network).to(dtype)
        with torch.autocast(slices.device.type, torch.bfloat16, enabled=bf16):
            logits = own(slices.to(dtype))
        loss = torch.nn.functional.cross_entropy(logits.double(), labels.long())
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad.flatten().double() for p in own.parameters() if p.grad is not None]
        return logits.detach().double(), torch.cat(gradients)

    wanted = outcome(torch.float64, False, False)
    figures: Figures = {}
    ways = (("float32", False, False), ("tf32", False, True), ("bf16", True, False))
    for name, bf16, tf32 in ways:
        found = outcome(torch.float32, bf16, tf32)
        for what, got, want in zip(("logits", "gradients"), found, wanted, strict=True):
            figures[f"{name}: {what}"] = float((got - want).norm() / want.norm())
        same = (found[0].argmax(1) == wanted[0].argmax(1)).double().mean()
        figures[f"{name}: pixels of the same class"] = float(same)
    return figures


def determinism_part(setting: Setting) -> Figures:
    """The same three steps twice, with and without torch's deterministic algorithms."""
    import os

    import torch

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    slices, labels = _batch(setting)
    torch.backends.cudnn.benchmark = False

    def weights() -> Tensor:
        network = _network(PUBLISHED_NAME, setting).train()
        torch.backends.cudnn.benchmark = False
        step = step_of(network, slices, labels, bf16=setting.bf16)
        torch.manual_seed(2)
        for _ in range(3):
            step()
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    figures: Figures = {}
    for asked in (False, True):
        torch.use_deterministic_algorithms(asked)
        name = "deterministic algorithms" if asked else "as it comes"
        figures[f"{name}: the same bits twice"] = torch.equal(weights(), weights())
    return figures


def scan_part(setting: Setting) -> Figures:
    """A head of 256³ at 1 mm from file to file, three views; needs all of trinat."""
    try:
        import nibabel  # noqa: F401
        import scipy  # noqa: F401

        from segmentation.inference.segmenter import Segmenter
        from segmentation.phantom import phantom
        from segmentation.volume import Volume
    except ImportError as error:
        return {"skipped": f"no {error.name} here: a scan is not read without it"}
    import torch

    from segmentation.conform import conform
    from segmentation.models.checkpoint import load_model
    from segmentation.models.zoo import find_model

    shipped = load_model(find_model("fast"))
    own = {
        view: _network(PUBLISHED_NAME, setting, classes=network.config.classes).cpu().eval()
        for view, network in shipped.networks.items()
    }
    random = replace(
        shipped,
        networks=own,
        info=shipped.info.model_copy(
            update={"architectures": {view: network.config for view, network in own.items()}}
        ),
    )
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.nii.gz"
        spacing = 4.0 if setting.tiny else 1.0
        conform(phantom(0, spacing_mm=(spacing,) * 3)[0]).volume.write(path)
        for name, model in (("fast", shipped), ("published, random weights", random)):
            if setting.tiny and name == "fast":
                continue
            segmenter = Segmenter(model, device=setting.device)
            for turn in ("first", "second"):
                began = time.perf_counter()
                segmenter.segment(Volume.read(path)).labels.write(
                    Path(folder) / "labels.nii.gz", labels=True
                )
                figures[f"{name}: {turn} scan, s"] = time.perf_counter() - began
            if setting.device != "cpu":
                figures[f"{name}: peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return figures


@contextmanager
def _noted(figures: Figures, name: str) -> Iterator[Figures]:
    """Figures of one cell under its name; a cell that fails says so, and the others go on."""
    cell: Figures = {}
    try:
        yield cell
    except Exception as error:
        # Compilers fail in many ways, and memory runs out.
        cell["not measured"] = f"{type(error).__name__}: {error}"[:300]
    figures |= {f"{name}: {key}": value for key, value in cell.items()}


def _heads(setting: Setting) -> Any:
    from segmentation.heads import load_heads, phantom_heads

    if setting.heads == "phantom":
        return phantom_heads(4 if setting.tiny else 1)
    return load_heads(Path(setting.heads))


# The most telling first: a machine may be gone before the last.
PARTS: dict[str, Callable[[Setting], Figures]] = {
    "device": device_part,
    "train": train_part,
    "step": step_part,
    "synthesis": synthesis_part,
    "numerics": numerics_part,
    "determinism": determinism_part,
    "channels": channels_part,
    "forward": forward_part,
    "scan": scan_part,
}
