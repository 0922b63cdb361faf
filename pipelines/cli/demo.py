"""trinat demo: the whole path on heads that it makes itself."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    out: Path = typer.Option(Path("demo"), help="Folder to write to.", file_okay=False),
    seed: int = typer.Option(0, min=0, help="Another seed makes other heads."),
) -> None:
    """Make three heads in odd geometries, take each to the working grid and back, draw them.

    Example: trinat demo --out demo
    """
    from pipelines.demo import run_demo
    from pipelines.process import prepare_process

    prepare_process()
    for outcome in run_demo(out, seed=seed):
        geometry = outcome.geometry
        spacing = " x ".join(f"{mm:g}" for mm in geometry.spacing_mm)
        typer.echo(
            f"{geometry.name}: {spacing} mm, {geometry.orientation}, "
            f"oblique by {geometry.oblique_deg:g} degrees: "
            f"mean Dice {outcome.mean_dice:.3f} there and back, "
            f"{outcome.swapped:.1%} with sides exchanged at most, {outcome.seconds:.1f} s"
        )
        typer.echo(f"  {outcome.picture}")
