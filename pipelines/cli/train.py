"""trinat train, runs, learn and next: training networks, and learning from corrected label maps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.cli.options import say_next
from trinat.pipelines.jobs.process import prepare_process
from trinat.pipelines.jobs.progress import log_lines
from trinat.pipelines.learn.settings import LearnSettings
from trinat.pipelines.study.naming import FOLD
from trinat.pipelines.train.progress import training_progress
from trinat.pipelines.train.settings import TrainSettings
from trinat.segmentation.errors import ConfigError
from trinat.segmentation.timing import as_table, stage, time_process


@with_fields
def train(
    config: Annotated[
        str,
        typer.Argument(help="Recipe: a YAML file, or a shipped recipe's name (fast)."),
    ],
    scans: Annotated[
        Callable[..., options.OfStore], Only(options.OfStore, "store", "folds")
    ],
    asked: TrainSettings,
    timings: options.Timings = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one network per view from a recipe; a run can be resumed at any point.

    Example: trinat train quicknat --store store --out runs/quicknat
    """
    of_store = scans()
    store = of_store.store
    folds = of_store.folds
    _refuse_contradictions(of_store, asked)
    clock = time_process() if timings else None
    with stage("start"):
        from trinat.pipelines.train.from_python import as_overrides
        from trinat.pipelines.train.run import (
            adapt_to_store,
            read_recipe,
            refuse_before_others,
            train_by_settings,
        )
        from trinat.segmentation.data.splits import read_split
        from trinat.segmentation.data.store import SPLIT

    overrides = list(asked.overrides)
    if asked.start:
        overrides += as_overrides({"start": asked.start})
    splits: dict[str, Path | None] = {"": None}
    if store is not None:
        splits = _splits_of_runs(store, folds=folds, fold=asked.fold)
    recipes = {}
    for name, split in splits.items():
        whole = read_recipe(config, overrides, store, split)
        out = asked.out or Path("runs") / whole.name
        recipes[out / name] = whole
        if store is not None:
            recipes[out / name] = adapt_to_store(whole, store)
    if store is not None:
        of_store_views = next(iter(recipes.values())).views
        missing = [view.value for view in whole.views if view not in of_store_views]
        if missing:
            left = " and ".join(view.value for view in of_store_views)
            typer.echo(
                f"{store} has no {' and no '.join(missing)} slices: {left} are trained"
            )
    if asked.fold is not None:
        ((run, recipe),) = recipes.items()
        refuse_before_others(recipe, asked.view, run)
    for number, (run, recipe) in enumerate(recipes.items(), start=1):
        if len(recipes) > 1 and not quiet:
            # The steps of all folds are named alike, so announce the fold.
            typer.echo(f"fold {number} of {len(recipes)}: {run}", err=True)
        with training_progress(quiet) as watcher:
            model = train_by_settings(recipe, run, watcher, asked)
    if store is not None and asked.fold is None and not quiet:
        tested: tuple[str | Path, ...] = ("--folds", "--model", out)
        if not folds:
            tested = ("--part", "test", "--model", model)
        if folds or read_split(store / SPLIT).test:
            say_next("predict", "--store", store, *tested, "--out", "found")
    if clock is not None:
        typer.echo(as_table(clock.take()), err=True)


def _refuse_contradictions(scans: options.OfStore, asked: TrainSettings) -> None:
    """Raise ConfigError for folds that are given twice or without --store."""
    of_folds = ["--folds"] if scans.folds else []
    if asked.fold is not None:
        of_folds.append(f"--fold {asked.fold}")
    if len(of_folds) > 1:
        raise ConfigError(" with ".join(of_folds), remedy="leave one of them out")
    if of_folds and scans.store is None:
        raise ConfigError(
            f"{of_folds[0]} without --store",
            remedy="add --store with the store that was split",
        )


def _splits_of_runs(
    store: Path, *, folds: bool, fold: int | None
) -> dict[str, Path | None]:
    """Return the folders of the training runs to do, each with the path of the split to train on.

    The folders are in that of the command. Without `folds` and `fold` there is one run, in that
    folder itself (""), with the store's split. With `folds` there is a run for each fold of the
    store, with `fold` only for that fold. Raises ConfigError if the store does not have this fold.
    """
    from trinat.segmentation.data.store import Store

    if not folds and fold is None:
        return {"": None}
    runs: dict[str, Path | None] = {}
    for number, split in enumerate(Store(store).folds):
        runs[FOLD.format(number)] = split
    if fold is None:
        return runs
    run = FOLD.format(fold)
    if run not in runs:
        remedy = f"choose a fold from 0 to {len(runs) - 1}"
        raise ConfigError(f"has no fold {fold}", where=store, remedy=remedy)
    return {run: runs[run]}


def runs(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders, or folders of runs (folds); the first is the reference."
        ),
    ],
    json_: options.Json = False,
) -> None:
    """Compare training runs: settings that differ, steps, time, loss, best Dice and IoU.

    Example: trinat runs runs/a runs/b
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from trinat.pipelines.train.pages import HEAD, compare

    changed, summaries = compare(runs)
    if json_:
        jobs_of = {
            run: [asdict(job) for job in jobs] for run, jobs in summaries.items()
        }
        typer.echo(json.dumps({"runs": jobs_of, "differences": changed}, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for header in ("Run", *HEAD):
        # On narrow terminals only the run names wrap.
        table.add_column(header, overflow="fold", no_wrap=header != "Run")
    for run, jobs in summaries.items():
        for job in jobs:
            table.add_row(*(Text(cell) for cell in (run, *job.shown)))
    Console().print(table)
    for line in changed:
        typer.echo(line)


@with_fields
def learn(settings: LearnSettings, quiet: options.Quiet = False) -> int:
    """Make the best model that corrected label maps allow; kept only if Dice rises.

    Example: trinat learn results --out own
    """
    from trinat.pipelines.common.models import print_licences
    from trinat.pipelines.learn.learning import learn
    from trinat.pipelines.learn.lesions import learn_lesions

    prepare_process(settings.threads)
    with log_lines(quiet):
        if settings.lesions:
            learnt = learn_lesions(settings)
        else:
            learnt = learn(settings, progress=not quiet)
    for line in learnt.lines:
        typer.echo(line)
    print_licences([str(settings.out)])
    typer.echo(settings.out)
    return learnt.exit
