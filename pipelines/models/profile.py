"""trinat profile: where the time of a network goes, module by module and operator by operator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.profiler import profile, record_function
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from trinat.pipelines.common.lock import claimed
from trinat.pipelines.train.run import find_device, read_recipe
from trinat.segmentation.errors import DeviceError, InputError, ModelError
from trinat.segmentation.io.files import atomic_path, read_text, write_whole
from trinat.segmentation.io.memory import free_memory
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.report.page import Column, Columns, render, table
from trinat.segmentation.training.memory import StepMemory

ROWS, TRACE, PAGE = "profile.json", "trace.json", "profile.html"
_PREFIX = "module "
_BACKWARD = "(backward and all else)"
_SIDE = 256
_RATE_SIDE = 1024


@dataclass(frozen=True)
class Row:
    """A module, by its own: without those inside it. `flops` are forward, 2 a multiply-add."""

    name: str
    kind: str
    shape: str
    seconds: float  # a step
    share: float
    flops: float


@dataclass(frozen=True)
class Profiled:
    """`operators`: name, seconds of a step, share, calls."""

    modules: list[Row]
    operators: list[tuple[str, float, float, int]]
    seconds: float
    flops: float
    rate: float  # operations a second of a matrix product in float32 on this device


def write_profile(
    name: str,
    out: Path,
    *,
    device: str = "auto",
    steps: int = 5,
    against: Path | None = None,
) -> Profiled:
    """Profile a model's first view, forward, or a recipe's network, forward and backward."""
    other = None if against is None else _read(against)
    chosen = find_device(device)
    try:
        training = not find_model(name)
    except ModelError:
        training = True
    if training:
        recipe = read_recipe(name)
        network, stage = build(recipe.network), recipe.stages[0]
        rows, columns = stage.data.rows, stage.data.columns
        batch = stage.batch
        if chosen.type == "cpu":
            batch = _batch_with_memory(network.config, batch, (rows, columns))
        size = (batch, network.config.channels, rows, columns)
    else:
        network = next(iter(load_model(name).networks.values())).fold()
        size = (1, network.config.channels, _SIDE, _SIDE)
    network, slices = (
        network.to(chosen).train(training),
        torch.rand(size, device=chosen),
    )
    shape = "x".join(map(str, size))
    lead = f"{name}, forward{' and backward' * training}, {shape} on {chosen}"
    if training and size[0] < stage.batch:
        lead += f"; there is no memory for the recipe's batch of {stage.batch}"
    with claimed(out, (ROWS, TRACE, PAGE)):
        with atomic_path(out / TRACE) as trace:
            found = profile_network(
                network, slices, steps, training=training, trace=trace
            )
        write_whole(out / ROWS, json.dumps(asdict(found), indent=1))
        write_whole(out / PAGE, _page(lead, found, other, against))
    return found


def _batch_with_memory(config: NetworkConfig, batch: int, size: tuple[int, int]) -> int:
    """As many slices of a batch as there is memory for; times are by the slice all the same."""
    step, there = StepMemory.of(config, size), free_memory()
    fits = step.largest_batch(batch, there)
    if not fits:
        raise DeviceError(
            f"a slice of {size[0]}x{size[1]} needs about {step.needed(1) / 2**30:.1f} GiB of "
            f"memory, and {there / 2**30:.1f} GiB are free",
            remedy="profile a smaller network",
        )
    return fits


def profile_network(
    network: Network,
    slices: Tensor,
    steps: int,
    *,
    training: bool = False,
    trace: Path | None = None,
) -> Profiled:
    """Time, operations and shapes; one step goes before that is not counted."""
    flops, shapes = count_flops(network, slices[:1])
    kinds = {path: type(module).__name__ for path, module in network.named_modules()}
    names = {module: _PREFIX + path for path, module in network.named_modules()}
    ranges: list[Any] = []

    def enter(module: nn.Module, given: Any) -> None:
        ranges.append(record_function(names[module]))
        ranges[-1].__enter__()

    def leave(module: nn.Module, given: Any, result: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    def step() -> None:
        with torch.set_grad_enabled(training):
            result = network(slices)
            if training:
                result.logsumexp(1).mean().backward()
        if slices.device.type != "cpu":
            torch.accelerator.synchronize(slices.device)

    step()
    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    with (
        before,
        after,
        profile() as profiler,
    ):  # of the processor, and of a GPU if there is one
        for _ in range(steps):
            with record_function(_PREFIX + _BACKWARD * training):
                step()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    own = _own_times(profiler.events())
    total = sum(own.values())
    modules = []
    for path, seconds in own.items():
        what = path, kinds.get(path, ""), shapes.get(path, "")
        flop = len(slices) * flops.get(path, 0.0)
        modules.append(Row(*what, seconds / steps, seconds / total, flop))
    averages = [e for e in profiler.key_averages() if not e.key.startswith(_PREFIX)]
    averages.sort(key=lambda e: -e.self_cpu_time_total)
    times = [e.self_cpu_time_total / 1e6 for e in averages]
    operators = [
        (e.key, own_s / steps, own_s / sum(times), e.count // steps)
        for e, own_s in zip(averages, times, strict=True)
    ]
    one = torch.rand(_RATE_SIDE, _RATE_SIDE, device=slices.device)
    timer = Timer(
        "one @ one", globals={"one": one}, num_threads=torch.get_num_threads()
    )
    rate = 2 * _RATE_SIDE**3 / timer.timeit(5).median
    return Profiled(
        modules, operators, total / steps, sum(row.flops for row in modules), rate
    )


def count_flops(
    network: Network, slices: Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Operations of a forward pass by module, its own, and each module's output shape."""
    paths = {module: path for path, module in network.named_modules()}
    shapes: dict[str, str] = {}

    def note(module: nn.Module, given: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            shapes[paths[module]] = " x ".join(map(str, result.shape[1:]))

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), hooks.register_module_forward_hook(note), counter:
        network(slices)
    counts, root = counter.get_flop_counts(), type(network).__name__
    whole = {
        p: float(sum(counts.get(f"{root}.{p}".strip("."), {}).values())) for p in shapes
    }
    own = dict(whole)
    for path in filter(None, whole):
        # Its nearest parent that is called: a list of modules never is.
        parent = path.rpartition(".")[0]
        while parent not in own:
            parent = parent.rpartition(".")[0]
        own[parent] -= whole[path]
    return own, shapes


def _own_times(events: Iterable[Any]) -> dict[str, float]:
    """Seconds in each module, without the modules that it called."""
    own: dict[str, float] = defaultdict(float)
    for event in events:
        if event.name.startswith(_PREFIX):
            # On a GPU, ranges on the processor end when work was handed over, not when it was done.
            seconds = float(event.device_time_total or event.cpu_time_total) / 1e6
            own[event.name.removeprefix(_PREFIX)] += seconds
            # By who called it, not by its name: one activation serves many layers.
            caller = event.cpu_parent
            while caller is not None and not caller.name.startswith(_PREFIX):
                caller = caller.cpu_parent
            if caller is not None:
                own[caller.name.removeprefix(_PREFIX)] -= seconds
    return dict(own)


def _read(folder: Path) -> dict[str, Row]:
    try:
        return {
            row["name"]: Row(**row)
            for row in json.loads(read_text(folder / ROWS))["modules"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"has no {ROWS} of this version",
            where=folder,
            remedy="give a folder of trinat profile",
        ) from None


def _page(
    lead: str, found: Profiled, other: dict[str, Row] | None, against: Path | None
) -> str:
    columns: Columns = [
        "Module",
        "Kind",
        "Output",
        Column("ms", 2),
        Column("% of time", 1),
    ]
    columns += [
        Column("GFLOP", 3),
        Column("% of rate", 1, "of the rate of a matrix product here"),
    ]
    if other is not None:
        columns.append(Column("± ms", 2, f"against {against}", sign=True))
    rows: list[list[Any]] = []
    for row in found.modules:
        reached = row.flops / row.seconds / found.rate if row.seconds > 0 else 0.0
        cells = [row.name or "(network)", row.kind, row.shape, 1e3 * row.seconds]
        rows.append([*cells, 100 * row.share, row.flops / 1e9, 100 * reached])
        if other is not None:
            before = other.get(row.name)
            rows[-1].append(
                None if before is None else 1e3 * (row.seconds - before.seconds)
            )
    titles: Columns = ["Operator", Column("ms", 3), Column("%", 1), Column("Calls", 0)]
    operators = [
        [name, 1e3 * own_s, 100 * share, n] for name, own_s, share, n in found.operators
    ]
    note = "Own times on the processor."
    return render(
        "toolbox.html",
        title="Profile",
        lead=lead,
        cards=[
            ("A step", f"{1e3 * found.seconds:.1f} ms", "as profiled"),
            ("Forward", f"{found.flops / 1e9:.1f} GFLOP", "two for each multiply-add"),
            (
                "Matrix product",
                f"{found.rate / 1e9:.0f} GFLOP/s",
                "float32, measured here",
            ),
        ],
        text="Times are each module's own, without the modules inside it: shares add up to 100 %. "
        f"Open {TRACE} at ui.perfetto.dev.",
        pictures=[],
        tables=[
            table("modules", "Modules", columns, rows),
            table("operators", "Operators", titles, operators, note=note),
        ],
    )
