"""trinat profile: where the time of a network goes, module by module and operator by operator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from pipelines.common.lock import claimed
from pipelines.train.run import find_device, read_recipe
from segmentation.errors import InputError, ModelError
from segmentation.io.files import atomic_path, atomic_text, read_text, write_whole
from segmentation.models.architectures import build
from segmentation.models.base import Network
from segmentation.models.checkpoint import load_model
from segmentation.models.zoo import find_model
from segmentation.report.figures import MODEL_COLORS, Drawing, canvas
from segmentation.report.page import Column, Columns, render, table

__all__ = ["Profiled", "Row", "count_flops", "profile_network", "write_profile"]

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
    """`operators`: name, seconds of a step, share, calls, megabytes that were allocated."""

    modules: list[Row]
    operators: list[tuple[str, float, float, int, float]]
    seconds: float
    flops: float
    rate: float  # operations a second of a matrix product on this device


def write_profile(
    name: str, out: Path, *, device: str = "auto", steps: int = 5, against: Path | None = None
) -> Profiled:
    """Profile a model's first view, forward, or a recipe's network, forward and backward."""
    other = None if against is None else _read(against)
    chosen = find_device(device)
    training = not _is_model(name)
    if training:
        recipe = read_recipe(name)
        stage = recipe.stages[0]
        network = build(recipe.network)
        slices = torch.rand(
            stage.batch, network.config.channels, stage.data.rows, stage.data.columns
        )
    else:
        network = next(iter(load_model(name).networks.values())).fold()
        slices = torch.rand(1, network.config.channels, _SIDE, _SIDE)
    network, slices = network.to(chosen).train(training), slices.to(chosen)
    shape = "x".join(map(str, slices.shape))
    lead = f"{name}, forward{' and backward' * training}, {shape} on {chosen}"
    with claimed(out, (ROWS, TRACE, PAGE)):
        found = profile_network(network, slices, steps, training=training, trace=out / TRACE)
        with atomic_text(out / ROWS) as file:
            json.dump(asdict(found), file, indent=1)
        write_whole(out / PAGE, _page(lead, found, other, against))
    return found


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
    flops = {name: len(slices) * value for name, value in flops.items()}

    def step() -> None:
        with torch.set_grad_enabled(training):
            result = network(slices)
            if training:
                result.logsumexp(1).mean().backward()
        if slices.device.type != "cpu":
            torch.accelerator.synchronize(slices.device)

    step()
    activities = [ProfilerActivity.CPU]
    if slices.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with _named(network), profile(activities=activities, profile_memory=True) as profiler:
        for _ in range(steps):
            with record_function(_PREFIX):
                step()
    if trace is not None:
        with atomic_path(trace) as temporary:
            profiler.export_chrome_trace(str(temporary))
    events = profiler.key_averages()
    inner = _own_times(profiler.events(), steps)
    total = sum(inner.values())
    inner[_BACKWARD if training else ""] = inner.pop("")
    kinds = {path: type(module).__name__ for path, module in network.named_modules()}
    modules = [
        Row(path, kinds.get(path, ""), shapes.get(path, ""), own, own / total, flops.get(path, 0.0))
        for path, own in inner.items()
    ]
    operators = [event for event in events if not event.key.startswith(_PREFIX)]
    selves = [event.self_cpu_time_total for event in operators]
    rows = [
        (
            e.key,
            t / 1e6 / steps,
            t / sum(selves),
            e.count // steps,
            e.self_cpu_memory_usage / 1e6 / steps,
        )
        for e, t in sorted(zip(operators, selves, strict=True), key=lambda pair: -pair[1])
    ]
    return Profiled(modules, rows, total, sum(flops.values()), _rate(slices.device))


def count_flops(network: Network, slices: Tensor) -> tuple[dict[str, float], dict[str, str]]:
    """Operations of a forward pass by module, its own, and each module's output shape."""
    shapes: dict[str, str] = {}

    def note(path: str, module: nn.Module, given: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            shapes[path] = " x ".join(map(str, result.shape[1:]))

    handles = [m.register_forward_hook(partial(note, p)) for p, m in network.named_modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(slices)
    for handle in handles:
        handle.remove()
    root = type(network).__name__
    found = {
        path.removeprefix(root).removeprefix("."): float(sum(by_operator.values()))
        for path, by_operator in counter.get_flop_counts().items()
        if path != "Global"
    }
    return _own(found, network), shapes


def _own(values: dict[str, float], network: nn.Module) -> dict[str, float]:
    """Without what the modules inside have, so that all of them add up to the whole."""
    own = {path: values[path] for path, _ in network.named_modules() if path in values}
    for path in list(own):
        # Its nearest parent that has a value: a list of modules is never called.
        parent = path
        while parent:
            parent = parent.rpartition(".")[0]
            if parent in own:
                own[parent] -= values[path]
                break
    return own


@contextmanager
def _named(network: nn.Module) -> Iterator[None]:
    """Each module's forward is a range of its own in the profile."""
    open_: list[Any] = []

    def enter(path: str, *_: object) -> None:
        open_.append(record_function(_PREFIX + path))
        open_[-1].__enter__()

    def leave(*_: object) -> None:
        open_.pop().__exit__(None, None, None)

    handles = [
        handle
        for path, module in network.named_modules()
        if path
        for handle in (
            module.register_forward_pre_hook(partial(enter, path)),
            module.register_forward_hook(leave),
        )
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _own_times(events: Iterable[Any], steps: int) -> dict[str, float]:
    """Seconds of a step in each module, without the modules that it called."""
    own: dict[str, float] = defaultdict(float)
    for event in events:
        if not event.name.startswith(_PREFIX):
            continue
        # On a GPU, ranges on the processor end when work was handed over, not when it was done.
        seconds = float(event.device_time_total or event.cpu_time_total) / 1e6 / steps
        own[event.name.removeprefix(_PREFIX)] += seconds
        # By who called it, not by its name: one activation serves many layers.
        caller = event.cpu_parent
        while caller is not None and not caller.name.startswith(_PREFIX):
            caller = caller.cpu_parent
        if caller is not None:
            own[caller.name.removeprefix(_PREFIX)] -= seconds
    return dict(own)


def _rate(device: torch.device) -> float:
    """Operations a second of a matrix product in float32, two for each multiply-add."""
    from torch.utils.benchmark import Timer

    one = torch.rand(_RATE_SIDE, _RATE_SIDE, device=device)
    timer = Timer("one @ one", globals={"one": one}, num_threads=torch.get_num_threads())
    return float(2 * _RATE_SIDE**3 / timer.timeit(5).median)


def _is_model(name: str) -> bool:
    try:
        find_model(name)
    except ModelError:
        return False
    return True


def _read(folder: Path) -> dict[str, Row]:
    try:
        return {row["name"]: Row(**row) for row in json.loads(read_text(folder / ROWS))["modules"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"has no {ROWS} of this version", where=folder, remedy="give a folder of trinat profile"
        ) from None


def _page(lead: str, found: Profiled, other: dict[str, Row] | None, against: Path | None) -> str:
    columns: Columns = [
        *("Module", "Kind", "Output"),
        Column("ms", 2),
        Column("% of time", 1),
        Column("GFLOP", 3),
        Column("% of rate", 1, "of the rate of a matrix product here"),
    ]
    rows: list[list[Any]] = []
    for row in found.modules:
        reached = row.flops / row.seconds / found.rate if row.seconds > 0 else 0.0
        cells = [row.name or "(network)", row.kind, row.shape, 1e3 * row.seconds]
        rows.append([*cells, 100 * row.share, row.flops / 1e9, 100 * reached])
        if other is not None:
            before = other.get(row.name)
            rows[-1].append(None if before is None else 1e3 * (row.seconds - before.seconds))
    if other is not None:
        columns.append(Column("± ms", 2, f"against {against}", sign=True))
    operators = [[n, 1e3 * t, 100 * share, calls, mb] for n, t, share, calls, mb in found.operators]
    return render(
        "toolbox.html",
        title="Profile",
        lead=lead,
        cards=[
            ("A step", f"{1e3 * found.seconds:.1f} ms", "as profiled"),
            ("Forward", f"{found.flops / 1e9:.1f} GFLOP", "two for each multiply-add"),
            ("Matrix product", f"{found.rate / 1e9:.0f} GFLOP/s", "float32, measured here"),
        ],
        text="Times are each module's own, without the modules inside it: shares add up to 100 %. "
        f"Open {TRACE} at ui.perfetto.dev.",
        pictures=[],
        drawings=[_graph(found)],
        tables=[
            table("modules", "Modules", columns, rows),
            table(
                "operators",
                "Operators",
                ["Operator", Column("ms", 3), Column("%", 1), Column("Calls", 0), Column("MB", 1)],
                operators,
                note="Own times on the processor; memory: allocated less freed.",
            ),
        ],
    )


def _graph(found: Profiled) -> Drawing:
    """The network's parts in their order, with shapes and shares: own time and all inside."""
    parts: dict[str, list[Row]] = {}
    for row in found.modules:
        part = ".".join(row.name.split(".")[:2])
        parts.setdefault(part, []).append(row)
    names = list(parts)
    shares = [100 * sum(row.share for row in rows) for rows in parts.values()]
    with canvas(8.6, 0.3 * len(names) + 0.9) as (figure, axis):
        axis.barh(range(len(names)), shares, color=MODEL_COLORS[0])
        for place, (rows, share) in enumerate(zip(parts.values(), shares, strict=True)):
            shape = next((row.shape for row in rows if row.shape), "")
            axis.text(share, place, f"  {share:.1f} %  {shape}", va="center", fontsize=8)
        axis.set_yticks(range(len(names)), [name or "(network)" for name in names])
        axis.set_xlim(0, 1.35 * max(shares))
        axis.set_xlabel("% of a step")
        axis.invert_yaxis()
    return Drawing("graph", figure, "Parts of the network, their output and share of the time")
