"""trinat profile: where the time of a network goes, module by module and operator by operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trinat.pipelines.common.lock import claimed
from trinat.pipelines.laboratory.profiler import Profiled, Row, profile_network
from trinat.pipelines.train.run import find_device, read_recipe
from trinat.segmentation.errors import DeviceError, InputError, ModelError
from trinat.segmentation.io.files import atomic_path, read_text, write_whole
from trinat.segmentation.io.memory import free_memory
from trinat.segmentation.models.architectures import build
from trinat.segmentation.models.base import Network, NetworkConfig
from trinat.segmentation.models.checkpoint import load_model
from trinat.segmentation.models.zoo import find_model
from trinat.segmentation.report.page import Column, Columns, Table, render, table
from trinat.segmentation.training.memory import StepMemory

ROWS = "profile.json"
TRACE = "trace.json"
PAGE = "profile.html"
_SIDE = 256  # of the slice that a model is profiled with


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
    if _is_model(name):
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


def _is_model(name: str) -> bool:
    try:
        find_model(name)
    except ModelError:
        return False
    return True


def _model_subject(name: str, device: torch.device) -> _Subject:
    """The network of a model's first view, and one slice."""
    networks = load_model(name).networks
    first = next(iter(networks.values())).fold()
    size = (1, first.config.channels, _SIDE, _SIDE)
    network = first.to(device).eval()
    slices = torch.rand(size, device=device)
    lead = f"{name}, forward, {_shown_size(size)} on {device}"
    return _Subject(network, slices, training=False, lead=lead)


def _recipe_subject(name: str, device: torch.device) -> _Subject:
    """A recipe's network, and a batch of its first stage, or as much of it as fits in memory."""
    recipe = read_recipe(name)
    stage = recipe.stages[0]
    network = build(recipe.network)
    rows = stage.data.rows
    columns = stage.data.columns
    batch = stage.batch
    if device.type == "cpu":
        batch = _batch_with_memory(network.config, batch, (rows, columns))
    size = (batch, network.config.channels, rows, columns)
    network = network.to(device).train()
    slices = torch.rand(size, device=device)
    lead = f"{name}, forward and backward, {_shown_size(size)} on {device}"
    if batch < stage.batch:
        lead += f"; there is no memory for the recipe's batch of {stage.batch}"
    return _Subject(network, slices, training=True, lead=lead)


def _shown_size(size: tuple[int, ...]) -> str:
    """A size as people write it: 3x64x64."""
    return "x".join(str(length) for length in size)


def _batch_with_memory(config: NetworkConfig, batch: int, size: tuple[int, int]) -> int:
    """As many slices of a batch as there is memory for; times are by the slice all the same."""
    step = StepMemory.of(config, size)
    free = free_memory()
    fits = step.largest_batch(batch, free)
    if not fits:
        needed_gib = step.needed(1) / 2**30
        free_gib = free / 2**30
        raise DeviceError(
            f"a slice of {size[0]}x{size[1]} needs about {needed_gib:.1f} GiB of memory, "
            f"and {free_gib:.1f} GiB are free",
            remedy="profile a smaller network",
        )
    return fits


def _read_rows(folder: Path) -> dict[str, Row]:
    """The modules of an earlier profile, by name."""
    try:
        content = json.loads(read_text(folder / ROWS))
        return {row["name"]: Row(**row) for row in content["modules"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"has no {ROWS} of this version",
            where=folder,
            remedy="give a folder of trinat profile",
        ) from None


def _page(
    lead: str,
    found: Profiled,
    earlier: Mapping[str, Row] | None,
    against: Path | None,
) -> str:
    """The page; compared with the `earlier` profile in the folder `against`, if there is one."""
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
        tables=[_modules_table(found, earlier, against), _operators_table(found)],
    )


def _modules_table(
    found: Profiled, earlier: Mapping[str, Row] | None, against: Path | None
) -> Table:
    """A row a module, in the order in which they are called first."""
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


def _operators_table(found: Profiled) -> Table:
    """A row for each of torch's operators, the slowest first."""
    columns: Columns = ["Operator", Column("ms", 3), Column("%", 1), Column("Calls", 0)]
    rows = []
    for name, seconds, share, calls in found.operators:
        rows.append([name, 1e3 * seconds, 100 * share, calls])
    note = "Own times on the processor."
    return table("operators", "Operators", columns, rows, note=note)
