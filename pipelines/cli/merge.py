"""trinat merge: one set of tables from the shards of a run."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    out: Path = typer.Argument(help="The --out that the shards of trinat predict wrote to."),
) -> int:
    """Join the ledgers of shards: summary.tsv, volumes.tsv, qc.tsv and report.html.

    Example: trinat merge labels/
    """
    from pipelines.predict.merge import merge

    outcome = merge(out)
    typer.echo(f"{outcome.done} done, {outcome.failed} failed: {out / 'report.html'}")
    return outcome.exit
