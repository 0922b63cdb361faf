"""trinat export: networks for other run-times."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    model: str = typer.Argument(help="A shipped model or a model's folder."),
    out: Path = typer.Option(..., "--out", "-o", help="Folder for one file a view."),
    format_: str = typer.Option("onnx", "--format", help="onnx"),
) -> int:
    """Write a model's networks as ONNX, checked to give the same labels.

    Example: trinat export fast --format onnx --out fast-onnx/
    """
    from pipelines.models.export import export_model

    for path in export_model(model, out, format_=format_):
        typer.echo(path)
    return 0
