"""What a network's time is spent on: each module and operator by itself, and its operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.profiler import profile, record_function
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from trinat.segmentation.models.base import Network

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
    return Profiled(
        modules=modules,
        operators=_operators(profiler.key_averages(), steps),
        seconds=total / steps,
        flops=sum(row.flops for row in modules),
        rate=_rate(slices.device),
    )


@contextmanager
def _modules_recorded(network: Network) -> Iterator[None]:
    """Each call of a module is a range in the profiler's record, by the module's path."""
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
    """Seconds in each module, by its path, without the modules that it called."""
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


def _operators(
    averages: Iterable[Any], steps: int
) -> list[tuple[str, float, float, int]]:
    """Torch's operators, the slowest first: name, own seconds a step, share, calls a step."""
    operators = [event for event in averages if not event.key.startswith(_PREFIX)]
    operators.sort(key=lambda event: -event.self_cpu_time_total)
    times = [event.self_cpu_time_total / 1e6 for event in operators]
    total = sum(times)
    rows = []
    for event, seconds in zip(operators, times, strict=True):
        rows.append((event.key, seconds / steps, seconds / total, event.count // steps))
    return rows


def _rate(device: torch.device) -> float:
    """Operations a second of a matrix product in float32, the median of several."""
    one = torch.rand(_RATE_SIDE, _RATE_SIDE, device=device)
    timer = Timer(
        "one @ one", globals={"one": one}, num_threads=torch.get_num_threads()
    )
    operations = 2 * _RATE_SIDE**3
    return operations / timer.timeit(5).median


def count_flops(
    network: Network, slices: Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Operations of a forward pass by module, its own, and each module's output shape.

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
        if path:
            own[_nearest_parent(path, own)] -= operations
    return own, shapes


def _nearest_parent(path: str, called: Iterable[str]) -> str:
    """The path of the nearest module around this one that is called: a list of modules never is."""
    parent = path.rpartition(".")[0]
    while parent not in called:
        parent = parent.rpartition(".")[0]
    return parent
