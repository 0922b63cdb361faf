"""trinat phantom: scans of known anatomy, to try things on and to measure against."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    out: Path = typer.Argument(help="Folder to write to.", file_okay=False),
    subjects: int = typer.Option(1, min=1, max=9999, help="How many heads, all different."),
    seed: int = typer.Option(0, min=0, help="The same seed gives the same files."),
    spacing: tuple[float, float, float] = typer.Option(
        (1.0, 1.0, 1.0), help="Voxel size in mm along the array's axes, 0.3 to 10."
    ),
    orientation: str = typer.Option("RAS", help="Where the array's axes grow to, as LIA."),
    oblique: float = typer.Option(0.0, help="Turn the grid by this many degrees, up to 45."),
    force: bool = typer.Option(False, "--force", help="Overwrite files of the same name."),
) -> None:
    """Write T1 scans of an artificial head, each with its exact segmentation.

    Example: trinat phantom heads --subjects 3 --seed 7 --spacing 0.9 0.9 1.2 --orientation LIA
    """
    from pipelines.common.process import prepare_process
    from pipelines.data.phantom import write_phantoms

    prepare_process()
    for image, labels in write_phantoms(
        out,
        subjects=subjects,
        seed=seed,
        spacing_mm=spacing,
        orientation=orientation.upper(),
        oblique_deg=oblique,
        force=force,
    ):
        typer.echo(f"{image} {labels.name}")
