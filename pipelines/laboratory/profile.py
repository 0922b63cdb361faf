"""trinat profile: where the time of a network goes, module by module and operator by operator."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.profiler import profile, record_function
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.train.run import find_device, read_recipe
from trinat.segmentation.errors import DeviceError, InputError, ModelError
from trinat.segmentation.io.files import atomic_path, read_text, write_whole
from trinat.segmentation.io.memory import free_memory
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.report.page import Column, Columns, Table, render, table
from trinat.segmentation.training.memory import StepMemory

ROWS = "profile.json"
TRACE = "trace.json"
PAGE = "profile.html"
_SIDE = 256  # of the slice that a model is profiled with
# What the names of modules begin with in the profiler's record.
_PREFIX = "module "
# The name for what a training step does outside the forward pass.
_BACKWARD = "(backward and all else)"
_RATE_SIDE = 1024  # of the matrices that the device's rate is measured with


@dataclass(frozen=True)
class Row:
    """A module, by its own: without those inside it.

    `shape` is that of its output, `seconds` are those of a step, `share` is their part of the
    whole step, and `flops` are operations forward, 2 a multiply-add.
    """

    name: str
    kind: str
    shape: str
    seconds: float
    share: float
    flops: float


@dataclass(frozen=True)
class Profiled:
    """A network's profile, of one step.

    `operators` have name, seconds, share and calls. `rate` is what the device reaches in a matrix
    product in float32, in operations a second.
    """

    modules: list[Row]
    operators: list[tuple[str, float, float, int]]
    seconds: float
    flops: float
    rate: float


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is profiled: a network on the device, and its input (N, C, H, W)."""

    network: Network
    slices: Tensor
    training: bool
    lead: str  # the sentence that says all this on the page


def write_profile(
    name: str,
    out: Path,
    *,
    device: str = "auto",
    steps: int = 5,
    against: Path | None = None,
) -> Profiled:
    """Profile a model's first view, forward, or a recipe's network, forward and backward.

    `name` is that of a model or a recipe, or a path. Writes a page, a table and a trace to `out`.
    `against` is the folder of an earlier profile, which the page compares with.
    """
    earlier = None
    if against is not None:
        earlier = _read_rows(against)
    chosen_device = find_device(device)
    is_model = True
    try:
        find_model(name)
    except ModelError:
        is_model = False
    if is_model:
        subject = _model_subject(name, chosen_device)
    else:
        subject = _recipe_subject(name, chosen_device)
    with claimed(out, (ROWS, TRACE, PAGE)):
        with atomic_path(out / TRACE) as trace:
            found = profile_network(
                subject.network,
                subject.slices,
                steps,
                training=subject.training,
                trace=trace,
            )
        write_whole(out / ROWS, json.dumps(asdict(found), indent=1))
        write_whole(out / PAGE, _page(subject.lead, found, earlier, against))
    return found


def _model_subject(name: str, device: torch.device) -> _Subject:
    """Take the network of a model's first view, and one slice."""
    networks = load_model(name).networks
    first = next(iter(networks.values())).fold()
    size = (1, first.config.channels, _SIDE, _SIDE)
    network = first.to(device).eval()
    slices = torch.rand(size, device=device)
    lead = f"{name}, forward, {_shown_size(size)} on {device}"
    return _Subject(network, slices, training=False, lead=lead)


def _recipe_subject(name: str, device: torch.device) -> _Subject:
    """Build a recipe's network, and a batch of its first stage or as much as fits in memory."""
    recipe = read_recipe(name)
    stage = recipe.stages[0]
    network = build(recipe.network)
    rows = stage.data.rows
    columns = stage.data.columns
    batch = stage.batch
    if device.type == "cpu":
        # As many slices as there is memory for: times are by the slice all the same.
        memory = StepMemory.of(network.config, (rows, columns))
        free = free_memory()
        batch = memory.largest_batch(batch, free)
        if not batch:
            raise DeviceError(
                f"a slice of {rows}x{columns} needs about {memory.needed(1) / 2**30:.1f} GiB of "
                f"memory, and {free / 2**30:.1f} GiB are free",
                remedy="profile a smaller network",
            )
    size = (batch, network.config.channels, rows, columns)
    network = network.to(device).train()
    slices = torch.rand(size, device=device)
    lead = f"{name}, forward and backward, {_shown_size(size)} on {device}"
    if batch < stage.batch:
        lead += f"; there is no memory for the recipe's batch of {stage.batch}"
    return _Subject(network, slices, training=True, lead=lead)


def _shown_size(size: tuple[int, ...]) -> str:
    """Write a size as people do: 3x64x64."""
    return "x".join(str(length) for length in size)


def _read_rows(folder: Path) -> dict[str, Row]:
    """Read the modules of an earlier profile, by name."""
    try:
        content = json.loads(read_text(folder / ROWS))
        return {row["name"]: Row(**row) for row in content["modules"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"has no {ROWS} of this version",
            where=folder,
            remedy="give a folder of trinat profile",
        ) from None


def profile_network(
    network: Network,
    slices: Tensor,
    steps: int,
    *,
    training: bool = False,
    trace: Path | None = None,
) -> Profiled:
    """Measure steps on slices (N, C, H, W); one step goes before that is not counted.

    A step is the forward pass, with `training` also the backward pass. `trace` is a file for
    Chrome's trace viewer or Perfetto.
    """
    flops, shapes = count_flops(network, slices[:1])

    def step() -> None:
        with torch.set_grad_enabled(training):
            logits = network(slices)
            if training:
                logits.logsumexp(1).mean().backward()
        if slices.device.type != "cpu":
            torch.accelerator.synchronize(slices.device)

    step()
    name_of_step = _PREFIX
    if training:
        name_of_step += _BACKWARD
    # The profiler records the processor, and a GPU if there is one.
    with _modules_recorded(network), profile() as profiler:
        for _ in range(steps):
            with record_function(name_of_step):
                step()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))

    own_seconds = _own_times(profiler.events())
    total = sum(own_seconds.values())
    kinds = {path: type(module).__name__ for path, module in network.named_modules()}
    modules = []
    for path, seconds in own_seconds.items():
        row = Row(
            name=path,
            kind=kinds.get(path, ""),
            shape=shapes.get(path, ""),
            seconds=seconds / steps,
            share=seconds / total,
            flops=len(slices) * flops.get(path, 0.0),
        )
        modules.append(row)
    averages = [
        event for event in profiler.key_averages() if not event.key.startswith(_PREFIX)
    ]
    averages.sort(key=lambda event: -event.self_cpu_time_total)
    times = [event.self_cpu_time_total / 1e6 for event in averages]
    total_of_operators = sum(times)
    operators = []
    for event, seconds in zip(averages, times, strict=True):
        share = seconds / total_of_operators
        operators.append((event.key, seconds / steps, share, event.count // steps))
    return Profiled(
        modules=modules,
        operators=operators,
        seconds=total / steps,
        flops=sum(row.flops for row in modules),
        rate=_rate(slices.device),
    )


@contextmanager
def _modules_recorded(network: Network) -> Iterator[None]:
    """Make each call of a module a range in the profiler's record, by the module's path."""
    names = {module: _PREFIX + path for path, module in network.named_modules()}
    ranges: list[Any] = []

    def enter(module: nn.Module, given: Any) -> None:
        started: Any = record_function(names[module])
        started.__enter__()
        ranges.append(started)

    def leave(module: nn.Module, given: Any, result: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    with before, after:
        yield


def _own_times(events: Iterable[Any]) -> dict[str, float]:
    """Sum the seconds in each module, by its path, without the modules that it called."""
    own: dict[str, float] = defaultdict(float)
    for event in events:
        if not event.name.startswith(_PREFIX):
            continue
        # On a GPU, ranges on the processor end when work was handed over, not when it was done.
        microseconds = event.device_time_total or event.cpu_time_total
        seconds = float(microseconds) / 1e6
        own[event.name.removeprefix(_PREFIX)] += seconds
        # By who called it, not by its name: one activation serves many layers.
        caller = event.cpu_parent
        while caller is not None and not caller.name.startswith(_PREFIX):
            caller = caller.cpu_parent
        if caller is not None:
            own[caller.name.removeprefix(_PREFIX)] -= seconds
    return dict(own)


def _rate(device: torch.device) -> float:
    """Measure the operations a second of a matrix product in float32, the median of several."""
    one = torch.rand(_RATE_SIDE, _RATE_SIDE, device=device)
    timer = Timer(
        "one @ one", globals={"one": one}, num_threads=torch.get_num_threads()
    )
    operations = 2 * _RATE_SIDE**3
    return operations / timer.timeit(5).median


def count_flops(
    network: Network, slices: Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Count each module's own operations of a forward pass; note its output shape.

    Both are by the module's path; modules that are never called are in neither. The network's own
    path is empty.
    """
    paths = {module: path for path, module in network.named_modules()}
    shapes: dict[str, str] = {}

    def note_shape(module: nn.Module, given: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            path = paths[module]
            shapes[path] = " x ".join(map(str, result.shape[1:]))

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), hooks.register_module_forward_hook(note_shape), counter:
        network(slices)
    counts = counter.get_flop_counts()
    root = type(network).__name__
    whole: dict[str, float] = {}
    for path in shapes:
        name = f"{root}.{path}" if path else root
        by_operator = counts.get(name, {})
        whole[path] = float(sum(by_operator.values()))
    own = dict(whole)
    for path, operations in whole.items():
        if not path:
            continue
        # The nearest module around it that is called: a list of modules never is.
        parent = path.rpartition(".")[0]
        while parent not in own:
            parent = parent.rpartition(".")[0]
        own[parent] -= operations
    return own, shapes


def _page(
    lead: str,
    found: Profiled,
    earlier: Mapping[str, Row] | None,
    against: Path | None,
) -> str:
    """Make the page, and compare with the `earlier` profile in the folder `against`, if any."""
    operators: Columns = [
        "Operator",
        Column("ms", 3),
        Column("%", 1),
        Column("Calls", 0),
    ]
    rows = []
    for name, seconds, share, calls in found.operators:
        rows.append([name, 1e3 * seconds, 100 * share, calls])
    step_ms = 1e3 * found.seconds
    return render(
        "toolbox.html",
        title="Profile",
        lead=lead,
        cards=[
            ("A step", f"{step_ms:.1f} ms", "as profiled"),
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
            _modules_table(found, earlier, against),
            table(
                "operators",
                "Operators",
                operators,
                rows,
                note="Own times on the processor.",
            ),
        ],
    )


def _modules_table(
    found: Profiled, earlier: Mapping[str, Row] | None, against: Path | None
) -> Table:
    """Make a row for each module, in the order in which they are called first."""
    columns: Columns = [
        "Module",
        "Kind",
        "Output",
        Column("ms", 2),
        Column("% of time", 1),
        Column("GFLOP", 3),
        Column("% of rate", 1, "of the rate of a matrix product here"),
    ]
    if earlier is not None:
        columns.append(Column("± ms", 2, f"against {against}", sign=True))
    rows = []
    for module in found.modules:
        share_of_rate = 0.0
        if module.seconds > 0:
            share_of_rate = module.flops / module.seconds / found.rate
        cells: list[Any] = [
            module.name or "(network)",
            module.kind,
            module.shape,
            1e3 * module.seconds,
            100 * module.share,
            module.flops / 1e9,
            100 * share_of_rate,
        ]
        if earlier is not None:
            before = earlier.get(module.name)
            change_ms = None
            if before is not None:
                change_ms = 1e3 * (module.seconds - before.seconds)
            cells.append(change_ms)
        rows.append(cells)
    return table("modules", "Modules", columns, rows)
