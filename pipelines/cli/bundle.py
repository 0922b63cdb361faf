"""trinat bundle: views that were trained apart become one model."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    sources: list[Path] = typer.Argument(help="Runs of trinat train, or model folders."),
    out: Path = typer.Option(..., "--out", help="Model folder to write."),
    name: str = typer.Option(None, help="The model's name (default: the folder's)."),
    weights: str = typer.Option(
        None, help="File of trinat fuse-weights, or: default. If not given, the sources' own."
    ),
    licence: str = typer.Option(
        "", help="What the weights may be used under, where a source does not say it."
    ),
    prior: Path = typer.Option(
        None, help="Folder of label maps: make the model's anatomical prior from them."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the model in --out."),
) -> int:
    """Join the views of several runs, and how much each counts, into one model.

    Example: trinat bundle runs/coronal runs/axial runs/sagittal --out models/own
    """
    from pipelines.models.bundle import bundle

    info = bundle(
        sources,
        out,
        name=name,
        weights=weights,
        licence=licence,
        label_maps=prior,
        overwrite=overwrite,
    )
    typer.echo(f"{out}: {', '.join(view.value for view in info.architectures)}")
    for structure in info.not_predicted:
        untaught = [v.value for v, o in info.origins.items() if structure in o.not_predicted]
        if len(untaught) < len(info.origins):
            typer.echo(f"{structure} is not predicted: not taught to {', '.join(untaught)}")
    return 0
