"""How fast a GPU is at what trinat does, and how much memory that takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.bench._gpu import (
    PUBLISHED_NAME,
    Figures,
    Setting,
    batch_of,
    cells,
    device_of,
    heads_of,
    named,
    network_of,
    seconds_of,
    wait,
)
from pipelines.bench._steps import operations, step_of

if TYPE_CHECKING:
    from torch import Tensor


def device_part(setting: Setting) -> Iterator[Figures]:
    """What it is, and its two ceilings: copies and matrix products."""
    import torch

    device = device_of(setting)
    side, words = (256, 1 << 16) if setting.tiny else (8192, 1 << 30)
    source = torch.randn(words, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    yield {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        yield {"memory, GiB": memory / 2**30}
    taken = seconds_of(lambda: target.copy_(source), setting)
    yield {"copy, GB/s (read and written)": 8e-9 * words / taken}
    taken = seconds_of(lambda: left @ right, setting)
    yield {"bf16 matrix product, TFLOP/s": 2e-12 * side**3 / taken}


def forward_part(setting: Setting) -> Iterator[Figures]:
    """Slices a second of inference: norms folded, bf16, channels last."""
    import torch

    slices, _ = batch_of(setting)

    def forward(name: str, compiled: bool) -> Iterator[Figures]:
        network: Any = network_of(name, setting).fold()
        run = torch.compile(network) if compiled else network

        def work() -> None:
            with (
                torch.inference_mode(),
                torch.autocast(slices.device.type, torch.bfloat16, enabled=setting.bf16),
            ):
                run(slices)

        yield {"slices/s": setting.batch / seconds_of(work, setting)}

    for title, name, compiled in cells(setting):
        yield from named(title, forward(name, compiled))


def step_part(setting: Setting) -> Iterator[Figures]:
    """Slices a second of a training step on data that are there, its operations, its memory."""
    import torch

    slices, labels = batch_of(setting)

    def step(name: str, compiled: bool) -> Iterator[Figures]:
        network = network_of(name, setting).train()
        run: Any = torch.compile(network) if compiled else network
        work = step_of(run, slices, labels, bf16=setting.bf16)
        yield _first_step(work, setting)
        if slices.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        taken = seconds_of(work, setting)
        yield {"slices/s": setting.batch / taken}
        if slices.device.type == "cuda":
            # Before operations are counted: that step is not compiled, and takes more.
            yield {"peak memory, GiB": torch.cuda.max_memory_allocated() / 2**30}
        plain = step_of(network, slices, labels, bf16=setting.bf16)
        yield {"TFLOP/s": operations(plain) / taken / 1e12}

    for title, name, compiled in cells(setting):
        yield from named(title, step(name, compiled))


def _first_step(work: Callable[[], Any], setting: Setting) -> Figures:
    """Compiling takes place in it."""
    began = time.perf_counter()
    work()
    wait(device_of(setting))
    return {"first step, s": time.perf_counter() - began}


def channels_part(setting: Setting) -> Iterator[Figures]:
    """What zeros to a multiple of eight channels are worth: 5x5 to 64, with gradient."""
    import torch
    from torch import nn

    from segmentation.models.blocks import convolve_aligned

    device = device_of(setting)
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
            taken = seconds_of(work, setting)
            yield {f"{channels} channels{', with zeros' if aligned else ''}, ms": 1e3 * taken}


def synthesis_part(setting: Setting) -> Iterator[Figures]:
    """Drawing alone, with and without neighbours."""
    from segmentation.heads import aim
    from segmentation.labels import load_scheme
    from segmentation.synthesis import SynthesisConfig, synthesise
    from segmentation.training.state import seeded
    from segmentation.views import View

    device = device_of(setting)
    began = time.perf_counter()
    heads, _ = aim(heads_of(setting), load_scheme("quicknat33"), device)
    yield {"heads made ready, s": time.perf_counter() - began}
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

        rate = setting.batch / seconds_of(work, setting)
        yield {f"slices/s of {2 * neighbours + 1} channels": rate}


def train_part(setting: Setting) -> Iterator[Figures]:
    """The loop of `trinat train`, data and synthesis included; where the device's time goes."""
    import torch

    from pipelines.budget import read_recipe
    from segmentation.labels import load_scheme
    from segmentation.training.loop import Trainer
    from segmentation.training.network import ViewsNet
    from segmentation.training.sources import SyntheticSource
    from segmentation.views import View

    device = device_of(setting)
    tiny = ("network.filters=4", "network.depth=2", "precision=fp32") if setting.tiny else ()
    scheme, maps = load_scheme("quicknat33"), heads_of(setting)

    def train(compiled: bool) -> Iterator[Figures]:
        settings = (f"batch={setting.batch}", f"compile={str(compiled).lower()}", *tiny)
        recipe = read_recipe("quicknat", settings, Path("heads"))
        size = (setting.size, setting.size)
        assert recipe.stages[0].data.synthetic is not None
        synthesis = recipe.stages[0].data.synthetic.synthesis
        source = SyntheticSource(maps, scheme, synthesis, size, 1, device)
        torch.manual_seed(0)
        network = ViewsNet(recipe.network, {View.CORONAL: len(scheme)})
        trainer = Trainer(recipe, recipe.stages[0], (View.CORONAL,), network, source, device)
        yield _first_step(trainer.step, setting)
        if trainer.not_compiled:
            yield {"went on without its compiler": trainer.not_compiled[:300]}
        # By the clock: rates of learning are not what is measured.
        yield {"slices/s": setting.batch / seconds_of(trainer.step, setting)}
        yield _profile(trainer.step, setting)

    for compiled in (False,) if setting.device == "cpu" else (False, True):
        yield from named("compiled" if compiled else "eager", train(compiled))


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


def scan_part(setting: Setting) -> Iterator[Figures]:
    """A head of 256³ at 1 mm from file to file, three views; needs all of trinat.

    `published` has random weights, which take the time of trained ones but find no brain: it works
    where `fast` sees one.
    """
    try:
        import nibabel  # noqa: F401
        import safetensors  # noqa: F401
        import scipy  # noqa: F401

        from pipelines.bench._predict_random import Informed, room_seen
        from segmentation.inference.segmenter import Segmenter
        from segmentation.phantom import phantom
        from segmentation.volume import Volume
    except ImportError as error:
        yield {"skipped": f"no {error.name} here: a scan is not read without it"}
        return
    import torch

    from segmentation.conform import conform
    from segmentation.inference.room import Room
    from segmentation.models.checkpoint import load_model
    from segmentation.models.zoo import find_model

    shipped = load_model(find_model("fast"))
    own = {
        view: network_of(PUBLISHED_NAME, setting, classes=network.config.classes).cpu().eval()
        for view, network in shipped.networks.items()
    }
    architectures = {view: network.config for view, network in own.items()}
    info = shipped.info.model_copy(update={"architectures": architectures})
    fast = Segmenter(shipped, device=setting.device)
    published = Informed(replace(shipped, networks=own, info=info), device=setting.device)

    def scan(segmenter: Segmenter, path: Path) -> Iterator[Figures]:
        if setting.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        for turn in ("first", "second"):
            began = time.perf_counter()
            found = segmenter.segment(Volume.read(path))
            found.labels.write(path.with_name("labels.nii.gz"), labels=True)
            yield {f"{turn} scan, s": time.perf_counter() - began}
        if setting.device != "cpu":
            yield {"peak memory, GiB": torch.cuda.max_memory_allocated() / 2**30}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "head.nii.gz"
        if setting.tiny:
            phantom(0, spacing_mm=(8.0, 8.0, 8.0))[0].write(path)
            published.room = Room((slice(112, 144),) * 3)
        else:
            conform(phantom(0)[0]).volume.write(path)
            yield from named("fast", scan(fast, path))
            published.room = room_seen(fast, Volume.read(path))
        yield from named("published, random weights", scan(published, path))
