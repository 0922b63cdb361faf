"""trinat import-weights: take over a checkpoint of the authors' QuickNAT."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def command(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="File of torch.save.")],
    view: Annotated[
        Literal["coronal", "axial", "sagittal"], typer.Option(help="What it was trained on.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
    labels: Annotated[str, typer.Option(help="Label scheme of its classes.")] = "quicknat33",
    licence: Annotated[
        str, typer.Option(help="Licence of the weights, for the model's description.")
    ] = "",
) -> None:
    """Turn a checkpoint of the authors' PyTorch port into a model folder, running none of it.

    Example: trinat import-weights coronal.pth.tar --view coronal --out models/port-coronal
    """
    from pipelines.models.import_weights import import_weights
    from segmentation.space.views import View

    info = import_weights(file, view=View(view), out=out, labels=labels, licence=licence)
    (config,) = info.architectures.values()
    typer.echo(
        f"{out}: {view}, {config.classes} classes, {config.filters} filters, "
        f"squeeze-and-excitation {config.model_dump()['excitation']}"
    )
