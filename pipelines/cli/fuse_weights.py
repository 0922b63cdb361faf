"""trinat fuse-weights: how views are joined, fitted to scans with truth."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer


def command(
    model: str = typer.Argument(help="The model's folder; with --out also a shipped model."),
    scans: Path = typer.Option(..., "--scans", help="T1 scans that did not train it."),
    truth: Path = typer.Option(..., "--truth", help="Their true label maps."),
    out: Path = typer.Option(
        None, "--out", help="Write the weights to this file, and leave the model as it is."
    ),
    mapping: Path = typer.Option(
        None, "--mapping", help="TSV with columns number and freesurfer, for other label numbers."
    ),
    trust_affine: Literal["sform", "qform", "header"] | None = typer.Option(
        None, "--trust-affine", help="What to believe where a header's two forms disagree."
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:1."),
    threads: int | None = typer.Option(None, min=1, help="Threads to compute with."),
    seed: int = typer.Option(0, min=0, help="Of the voxels that are looked at."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print the result alone."),
) -> int:
    """Fit how views are joined, their weights and the kind of mean; kept only where Dice gains.

    Example: trinat fuse-weights models/own --scans t1/ --truth manual/
    """
    from pipelines.common.process import prepare_process
    from pipelines.models.fuse_weights import BEFORE, Settings, fuse_weights

    prepare_process(threads)
    settings = Settings(model, scans, truth, out, mapping, trust_affine, device, seed)
    say = (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
    found = fuse_weights(settings, say)
    for line in found.lines():
        typer.echo(line)
    if out is not None:
        typer.echo(out)
    else:
        typer.echo(
            f"{model}: {'left as it is' if found.chosen == BEFORE else 'brought up to date'}"
        )
    return found.exit
