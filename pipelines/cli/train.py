"""trinat train and runs: training networks, and comparing the results."""

from __future__ import annotations

from pathlib import Path

import typer

from pipelines.cli.options import Quiet


def train(
    config: str = typer.Argument(help="Recipe: a YAML file, or a shipped recipe's name (fast)."),
    view: str = typer.Option(
        "all", help="coronal, axial, sagittal, or all (all views of the recipe)."
    ),
    settings: list[str] = typer.Option(
        None, "--set", help="Override a recipe setting, as stages.0.batch=4; repeatable."
    ),
    out: Path = typer.Option(None, "--out", "-o", help="Run folder. Default: runs/NAME."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:1."),
    nproc: int = typer.Option(
        1, min=1, help="Processes that share each batch: one per GPU, or one per CPU core."
    ),
    seconds: float = typer.Option(
        None,
        min=1,
        help="Train for this wall time instead of the recipe's steps or epochs; "
        "with --resume, for the rest of the schedule.",
    ),
    quiet: Quiet = False,
) -> int:
    """Train one network per view from a recipe; a run can be resumed at any point.

    Example: trinat train fast --set data.synthetic.heads=labelmaps --out runs/fast --nproc 2
    """
    from functools import partial

    from pipelines.cli.progress import training_progress
    from pipelines.train.launch import launch
    from pipelines.train.run import read_recipe

    recipe = read_recipe(config, settings or ())
    launch(
        recipe,
        out or Path("runs") / recipe.name,
        partial(training_progress, quiet),
        view=view,
        resume=resume,
        seconds=seconds,
        device=device,
        processes=nproc,
    )
    return 0


def runs(
    runs: list[Path] = typer.Argument(help="Run folders; the first is the reference."),
    out: Path = typer.Option(
        None, "--out", "-o", help="Also write curves and tables to this HTML page."
    ),
) -> int:
    """Compare training runs: settings that differ, steps, time, loss and best Dice.

    Example: trinat runs runs/a runs/b --out compared.html
    """
    from rich.console import Console
    from rich.table import Table

    from pipelines.train.runs import compare

    changed, summaries = compare(runs, out)
    table = Table("Run", "Job", "Steps", "Hours", "Final loss", "Best Dice")
    for run, jobs in summaries.items():
        for job in jobs:
            figures = (job.hours, job.final_loss, job.best_dice)
            shown = ("" if value is None else f"{value:.3f}" for value in figures)
            table.add_row(run, job.name, str(job.steps), *shown)
    Console().print(table)
    for line in (*changed, *([] if out is None else [out])):
        typer.echo(line)
    return 0
