"""trinat train and runs: training networks, and comparing the results."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trinat.pipelines.cli.options import Folds, Quiet, StoreOption, Timings, say_next
from trinat.pipelines.cli.predict import split_devices
from trinat.pipelines.common.naming import FOLD
from trinat.pipelines.common.progress import LINE_S, MINUTE_S, progress
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process

if TYPE_CHECKING:
    from trinat.pipelines.train.job import Job, Watcher
    from trinat.segmentation.training.loop import StepReport


def train(
    config: str = typer.Argument(
        help="Recipe: a YAML file, or a shipped recipe's name (fast)."
    ),
    view: str = typer.Option(
        "all", help="coronal, axial, sagittal, or all (all views of the recipe)."
    ),
    store: StoreOption = None,
    folds: Folds = False,
    start: str = typer.Option(
        None,
        "--start",
        help="Model to start from: name of a shipped model, or a folder.",
    ),
    settings: list[str] = typer.Option(
        None,
        "--set",
        help="Override a recipe setting, such as stages.0.batch=4; repeatable.",
    ),
    out: Path = typer.Option(
        None, "--out", "-o", help="Run folder. Default: runs/NAME."
    ),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
    device: str = typer.Option(
        "auto",
        help="auto, cpu, cuda, cuda:1, mps; cuda:0,1,2 trains a view on each at once.",
    ),
    nproc: int = typer.Option(
        1,
        min=1,
        help="Processes that share each batch: one per GPU, or one per CPU core.",
    ),
    seconds: float = typer.Option(
        None,
        min=1,
        help="Train for this wall time instead of the recipe's steps or epochs; "
        "with --resume, for the rest of the schedule.",
    ),
    timings: Timings = False,
    quiet: Quiet = False,
) -> None:
    """Train one network per view from a recipe; a run can be resumed at any point.

    Example: trinat train quicknat --store store --out runs/quicknat
    """
    if timings and (nproc > 1 or "," in device):
        several = f"--nproc {nproc}" if nproc > 1 else f"--device {device}"
        raise ConfigError(
            f"--timings with {several}: times are of one process",
            remedy="leave one of them out",
        )
    clock = time_process() if timings else None
    with stage("start"):
        from trinat.pipelines.train.launch import launch
        from trinat.pipelines.train.run import on_store, read_recipe
        from trinat.segmentation.data.splits import read_split
        from trinat.segmentation.data.store import SPLIT, Store

    given = [*(settings or ()), *([f"start={json.dumps(start)}"] if start else [])]
    whole = read_recipe(config, given)
    out = out or Path("runs") / whole.name
    places = {out: store / SPLIT if store else None}
    if folds:
        if store is None:
            raise ConfigError(
                "--folds without --store", remedy="name the store that was split"
            )
        places = {
            out / FOLD.format(n): split for n, split in enumerate(Store(store).folds)
        }
    for place, split in places.items():
        recipe = on_store(whole, store, split) if store else whole
        if missing := [v.value for v in whole.views if v not in recipe.views]:
            left = " and ".join(view.value for view in recipe.views)
            typer.echo(
                f"{store} has no {' and no '.join(missing)} slices: {left} are trained"
            )
        model = launch(
            recipe,
            place,
            partial(training_progress, quiet),
            view=view,
            resume=resume,
            seconds=seconds,
            device=",".join(split_devices(device)),
            processes=nproc,
        )
    if store is not None and not quiet and (folds or read_split(store / SPLIT).test):
        tested = (
            ("--folds", "--model", out)
            if folds
            else ("--part", "test", "--model", model)
        )
        say_next("predict", "--store", store, *tested, "--out", "found")
    if clock:
        typer.echo(as_table(clock.take()), err=True)


def runs(
    runs: list[Path] = typer.Argument(help="Run folders; the first is the reference."),
    out: Path = typer.Option(
        None, "--out", "-o", help="Also write curves and tables to this HTML page."
    ),
) -> None:
    """Compare training runs: settings that differ, steps, time, loss, best Dice and IoU.

    Example: trinat runs runs/a runs/b --out compared.html
    """
    from rich.console import Console
    from rich.table import Table

    from trinat.pipelines.train.log import HEAD, compare

    changed, summaries = compare(runs, out)
    table = Table("Run", *HEAD)
    for run, jobs in summaries.items():
        for job in jobs:
            table.add_row(run, *job.shown)
    Console().print(table)
    for line in (*changed, *([] if out is None else [out])):
        typer.echo(line)


@contextmanager
def training_progress(
    quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Watcher]:
    """A watcher that shows epoch, loss, rate and slices a second: every epoch, every minute."""
    from trinat.pipelines.train.job import Watcher

    current: Job | None = None
    epoch = skipped = 0
    with progress(quiet, clock=clock) as shown:

        def step(job: Job, report: StepReport, done: float) -> None:
            nonlocal current, epoch, skipped
            if current is not job:
                current, epoch, skipped = job, report.epoch, 0
                shown.begin(done)
            skipped += not math.isfinite(report.loss)
            bad = f", steps skipped: {skipped}" if skipped else ""
            told = shown.show(
                f"{job.name} epoch {report.epoch} step {report.step} loss {report.loss:.3f} "
                f"rate {report.rate:.2g} {report.slices / report.seconds:.1f} slices/s "
                f"{done:.0%}{bad}",
                done,
                1.0,
                every_s=LINE_S if report.epoch > epoch else MINUTE_S,
            )
            epoch = report.epoch if told else epoch

        yield Watcher(say=shown.say, step=step)
