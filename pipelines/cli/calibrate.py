"""trinat calibrate: how much a model's views must agree for a structure to be trusted."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    model: str = typer.Argument(help="The model's folder."),
    scans: list[Path] = typer.Argument(
        None, help="FreeSurfer subject folders to test the limits on; they set nothing."
    ),
    picture: Path = typer.Option(None, "--picture", help="Draw all structures to this PNG file."),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:1."),
    threads: int | None = typer.Option(None, min=1, help="Threads to compute with."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Print the result alone."),
) -> None:
    """Find the limits that grade a model's structures, on phantoms, and write them to model.yaml.

    Example: trinat calibrate models/own
    """
    from pipelines.common.process import prepare_process
    from pipelines.models.calibrate import calibrate

    prepare_process(threads)
    say = (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
    for line in calibrate(model, scans or (), picture=picture, device=device, say=say):
        typer.echo(line)
