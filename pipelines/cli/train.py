"""trinat train: a recipe becomes networks."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    config: str = typer.Argument(help="A recipe: a YAML file, or a shipped one's name (fast)."),
    view: str = typer.Option("all", help="coronal, axial, sagittal, or all of the recipe's."),
    settings: list[str] = typer.Option(
        None, "--set", help="key=value on top of the recipe, as in stages.0.batch=4."
    ),
    out: Path = typer.Option(None, help="Folder of the run (default: runs/NAME)."),
    resume: bool = typer.Option(False, "--resume", help="Go on where the run in --out stands."),
    device: str = typer.Option("cpu", help="cpu, cuda or cuda:1."),
    nproc: int = typer.Option(
        1, min=1, help="Processes that share each batch: one a GPU, or one a core of a CPU."
    ),
    seconds: float = typer.Option(
        None,
        min=1,
        help="Train within so many seconds of wall time, in place of the recipe's steps or epochs; "
        "with --resume, what is left of the schedule.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print failures and the end alone."),
) -> int:
    """Train one network per view by a recipe; every moment of it can be resumed.

    Example: trinat train fast --set data.synthetic.heads=labelmaps --out runs/fast --nproc 2
    """
    from functools import partial

    from pipelines.cli.training_progress import training_progress
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
