"""trinat runs: training runs side by side."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    runs: list[Path] = typer.Argument(help="Folders of runs; the first is the one to compare to."),
    out: Path = typer.Option(None, "--out", help="Also write curves and tables as a page (HTML)."),
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
    for line in changed:
        typer.echo(line)
    if out is not None:
        typer.echo(str(out))
    return 0
