"""trinat profile: time of a network by module and by operator.

For a model the forward pass is profiled; for a recipe a training step as made by `trinat train`,
with its data, precision, loss and optimiser.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.profiler import profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from trinat.pipelines.jobs.lock import claimed
from trinat.pipelines.jobs.process import prepare_training
from trinat.pipelines.train.data import open_data
from trinat.pipelines.train.run import adapt_to_store, find_device, read_recipe
from trinat.segmentation import timing
from trinat.segmentation.errors import ConfigError, DeviceError, ModelError
from trinat.segmentation.io.files import atomic_path, write_whole
from trinat.segmentation.io.limits import free_memory
from trinat.segmentation.labels.scheme import load_scheme
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.space.views import View
from trinat.segmentation.training.config import StageConfig, SyntheticConfig
from trinat.segmentation.training.loop import Trainer
from trinat.segmentation.training.memory import StepMemory
from trinat.segmentation.training.network import ViewsNet

ROWS = "profile.json"
OPERATORS = "operators.txt"
TRACE = "trace.json"
_SIDE = 256  # height and width of the slice that a model is profiled on
# Prefix of module names in the profiler's record.
_PREFIX = "module "
# Names for the parts of a training step outside the forward pass.
_BACKWARD = "(backward and all else)"
_LOSS = "(loss)"
# Parts of a training step, with the timing stages that belong to each.
_PARTS = {
    "data": ("batches", "transfer"),
    "network": ("forward", "backward"),
    "loss": ("loss",),
    "optimiser": ("optimiser",),
}
_REMEDIES = {
    "data": "more readers (data.store.workers) or less augmentation would help",
    "network": "a GPU, smaller slices or fewer filters would help",
    "loss": "a larger network would cost little more",
    "optimiser": "larger batches would help",
}


@dataclass(frozen=True)
class Row:
    """Profile of one module of a network, without the modules inside it.

    `name` is the module's path in the network, `kind` its class, and `shape` the shape of its
    output. `seconds` is the time per step, and `share` its fraction of the whole step. `flops` are
    the operations of the forward pass in a step, 2 per multiply-add.
    """

    name: str
    kind: str
    shape: str
    seconds: float
    share: float
    flops: float


@dataclass(frozen=True)
class Profiled:
    """Profile of one step of a network.

    `seconds` and `flops` are those of the whole step. `operators` is torch's table of operators,
    over all profiled steps. `parts` maps each part of a training step to its seconds; it is empty
    for a model. `what` says in words what was profiled.
    """

    modules: list[Row]
    operators: str
    seconds: float
    flops: float
    parts: dict[str, float] = field(default_factory=dict)
    what: str = ""

    @property
    def bound(self) -> str:
        """Sentence that names the slowest part of a training step; empty for a model."""
        if not self.parts:
            return ""
        whole = sum(self.parts.values())
        slowest = max(self.parts, key=lambda part: self.parts[part])
        others = [
            f"{part} {seconds / whole:.0%}"
            for part, seconds in self.parts.items()
            if part != slowest
        ]
        return (
            f"The {slowest} bounds the training, with {self.parts[slowest] / whole:.0%} of a step "
            f"({', '.join(others)}): {_REMEDIES[slowest]}."
        )


def write_profile(
    name: str,
    out: Path,
    *,
    device: str = "auto",
    steps: int = 5,
    store: Path | None = None,
) -> Profiled:
    """Profile the forward pass of a model's first view, or a step of a recipe's training.

    `name` is the name of a model or a recipe, or a path. `steps` are averaged. A recipe trains on
    the slices of `store`; without it, on synthetic slices of a phantom. Tables of modules and
    operators, and a trace, are written to `out`.
    """
    chosen_device = find_device(device)
    is_model = True
    try:
        find_model(name)
    except ModelError:
        is_model = False
    if is_model and store is not None:
        raise ConfigError(
            f"{name} is a model, which has no store", remedy="leave --store out"
        )
    with claimed(out, (ROWS, OPERATORS, TRACE)):
        with atomic_path(out / TRACE) as trace:
            if is_model:
                found = _profile_model(name, chosen_device, steps, trace)
            else:
                found = _profile_recipe(name, store, chosen_device, steps, trace)
        content = asdict(found)
        write_whole(out / OPERATORS, content.pop("operators"))
        write_whole(out / ROWS, json.dumps(content, indent=1))
    return found


def _profile_model(
    name: str, device: torch.device, steps: int, trace: Path
) -> Profiled:
    """Profile the forward pass of a model's first view on one slice of random values.

    `trace` is the file for the profiler's trace.
    """
    networks = load_model(name).networks
    first = next(iter(networks.values())).fold()
    size = (1, first.config.channels, _SIDE, _SIDE)
    network = first.to(device).eval()
    slices = torch.rand(size, device=device)
    found = profile_network(network, slices, steps, trace=trace)
    return replace(found, what=f"{name}, forward, {_shown_size(size)} on {device}")


def _profile_recipe(
    name: str, store: Path | None, device: torch.device, steps: int, trace: Path
) -> Profiled:
    """Profile a training step of a recipe's first stage and view.

    Without a store, the slices are synthetic slices of a phantom.
    """
    recipe = read_recipe(name)
    if store is not None:
        recipe = adapt_to_store(recipe, store)
    stage = _fit_to_memory(recipe.network, recipe.stages[0], device)
    batch = stage.batch
    wanted = recipe.stages[0].batch
    if store is None:
        synthetic = stage.data.synthetic or SyntheticConfig(heads="phantom")
        phantom = synthetic.model_copy(update={"heads": "phantom"})
        data = stage.data.model_copy(update={"synthetic": phantom, "store": None})
        stage = stage.model_copy(update={"data": data})
    # The modules of a compiled network are invisible to the profiler.
    stage = stage.model_copy(update={"compile": False, "validation": None})
    scheme = load_scheme(recipe.scheme)
    view = recipe.views[0]
    network = ViewsNet(recipe.network, {view: len(scheme.seen_in(view))})
    prepare_training(device)
    with open_data(recipe, stage, (view,), scheme, device, 1) as (source, _):
        trainer = Trainer(recipe, stage, (view,), network, source, device)
        found = profile_training(trainer, view, steps, trace=trace)
    size = (batch, recipe.network.channels, stage.data.rows, stage.data.columns)
    precision = str(trainer.precision).removeprefix("torch.")
    slices = f"slices of {store}" if store is not None else "synthetic slices"
    what = f"{name}, a training step on {slices}, {_shown_size(size)} in {precision} on {device}"
    if recipe.stages[0].compile:
        what += "; not compiled"
    if batch < wanted:
        what += f"; there is no memory for the recipe's batch of {wanted}"
    return replace(found, what=what)


def _fit_to_memory(
    network: NetworkConfig, stage: StageConfig, device: torch.device
) -> StageConfig:
    """Return the stage with a batch that fits in the free memory.

    A batch that is too large for the CPU's memory is reduced; on a GPU the batch stays as it is.
    DeviceError if not even one slice fits.
    """
    rows = stage.data.rows
    columns = stage.data.columns
    batch = stage.batch
    if device.type == "cpu":
        # Reducing the batch is harmless, because the time of a step is about proportional to it.
        memory = StepMemory.of(network, (rows, columns))
        free = free_memory()
        batch = memory.largest_batch(batch, free)
        if not batch:
            raise DeviceError(
                f"a slice of {rows}x{columns} needs about {memory.needed(1) / 2**30:.1f} GiB of "
                f"memory, and {free / 2**30:.1f} GiB are free",
                remedy="profile a smaller network",
            )
    return stage.model_copy(update={"batch": batch})


def _shown_size(size: tuple[int, ...]) -> str:
    """Format a size for display: 3x64x64."""
    return "x".join(str(length) for length in size)


def profile_network(
    network: Network,
    slices: Tensor,
    steps: int,
    *,
    trace: Path | None = None,
) -> Profiled:
    """Profile `steps` forward passes on slices (N, C, H, W), after one warm-up pass.

    The trace is written to the file `trace`, for Chrome's trace viewer or Perfetto.
    """

    def step() -> None:
        with torch.no_grad():
            network(slices)

    return _measure(
        step,
        steps,
        paths={module: path for path, module in network.named_modules()},
        counted=count_flops(network, slices[:1]),
        slices=len(slices),
        device=slices.device,
        trace=trace,
    )


def profile_training(
    trainer: Trainer, view: View, steps: int, *, trace: Path | None = None
) -> Profiled:
    """Profile `steps` training steps of one view, after one warm-up step.

    The trace is written to the file `trace`, as in `profile_network`.
    """
    paths: dict[nn.Module, str] = {trainer.losses[view]: _LOSS}
    for path, module in trainer.network.named_modules():
        # Names of modules as in the network of a single view.
        shown = path.removeprefix("trunk.")
        if path == f"classifiers.{view.value}":
            shown = "classifier"
        paths[module] = shown
    alone = trainer.network.extract(view).to(trainer.device).eval()
    data = trainer.stage.data
    slice_ = torch.rand(
        1, alone.config.channels, data.rows, data.columns, device=trainer.device
    )
    if trainer.device.type != "cpu":
        timing.wait_first(partial(torch.accelerator.synchronize, trainer.device))
    clock = timing.Clock()

    def step() -> None:
        with timing.timed(clock):
            trainer.step()

    def forget_first() -> None:
        clock.take()

    found = _measure(
        step,
        steps,
        paths=paths,
        counted=count_flops(alone, slice_),
        slices=trainer.stage.batch * trainer.stage.accumulate,
        device=trainer.device,
        trace=trace,
        root=_BACKWARD,
        after_first=forget_first,
    )
    spent = clock.take()
    parts = {}
    for part, stages in _PARTS.items():
        seconds = [wall for name, (wall, _) in spent.items() if name in stages]
        parts[part] = sum(seconds) / steps
    return replace(found, parts=parts)


def _measure(
    step: Callable[[], object],
    steps: int,
    *,
    paths: Mapping[nn.Module, str],
    counted: tuple[dict[str, float], dict[str, str]],
    slices: int,
    device: torch.device,
    trace: Path | None,
    root: str = "",
    after_first: Callable[[], object] = lambda: None,
) -> Profiled:
    """Profile `steps` calls of `step`, after a warm-up call and a call of `after_first`.

    `paths` names the modules whose time is listed separately; `root` names all other time.
    `counted` is the result of `count_flops` for one slice, and a step processes `slices` slices.
    The profiler's trace is written to `trace`.
    """
    flops, shapes = counted

    def waited_for() -> None:
        step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    waited_for()
    after_first()
    # The profiler records the processor, and a GPU if there is one.
    with _modules_recorded(paths), profile() as profiler:
        for _ in range(steps):
            with record_function(_PREFIX + root):
                waited_for()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))

    own_seconds = _own_times(profiler.events())
    total = sum(own_seconds.values())
    kinds = {path: type(module).__name__ for module, path in paths.items()}
    modules = []
    for path, seconds in own_seconds.items():
        row = Row(
            name=path,
            kind=kinds.get(path, ""),
            shape=shapes.get(path, ""),
            seconds=seconds / steps,
            share=seconds / total,
            flops=slices * flops.get(path, 0.0),
        )
        modules.append(row)
    return Profiled(
        modules=modules,
        operators=profiler.key_averages().table(sort_by="self_cpu_time_total"),
        seconds=total / steps,
        flops=sum(row.flops for row in modules),
    )


@contextmanager
def _modules_recorded(paths: Mapping[nn.Module, str]) -> Iterator[None]:
    """Record each call of a module as a range in the profiler, by the module's path."""
    ranges: list[Any] = []

    def enter(module: nn.Module, given: Any) -> None:
        if module in paths:
            started: Any = record_function(_PREFIX + paths[module])
            started.__enter__()
            ranges.append(started)

    def leave(module: nn.Module, given: Any, result: Any) -> None:
        if module in paths:
            ranges.pop().__exit__(None, None, None)

    before = hooks.register_module_forward_pre_hook(enter)
    after = hooks.register_module_forward_hook(leave, always_call=True)
    with before, after:
        yield


def _own_times(events: Iterable[Any]) -> dict[str, float]:
    """Return the seconds spent in each module itself, by the module's path.

    Time in modules that it called is not included. `events` are the events of the profiler.
    """
    own: dict[str, float] = defaultdict(float)
    for event in events:
        if not event.name.startswith(_PREFIX):
            continue
        # On a GPU, ranges on the processor end when work was submitted, not when it was done.
        microseconds = event.device_time_total or event.cpu_time_total
        seconds = float(microseconds) / 1e6
        own[event.name.removeprefix(_PREFIX)] += seconds
        # Find the outer module by the event's caller, not by its name: one activation serves many
        # layers.
        caller = event.cpu_parent
        while caller is not None and not caller.name.startswith(_PREFIX):
            caller = caller.cpu_parent
        if caller is not None:
            own[caller.name.removeprefix(_PREFIX)] -= seconds
    return dict(own)


def count_flops(
    network: Network, slices: Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Count the operations of a forward pass in each module; also return the shapes of outputs.

    Both mappings have the module's path as the key, which is "" for the network itself. Operations
    in modules inside a module are not counted again. A shape is a text such as "64 x 32 x 32",
    without the batch. Modules that are never called are left out.
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
        # The nearest enclosing module that is called: a ModuleList, for example, never is.
        parent = path.rpartition(".")[0]
        while parent not in own:
            parent = parent.rpartition(".")[0]
        own[parent] -= operations
    return own, shapes
