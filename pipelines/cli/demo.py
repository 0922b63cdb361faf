"""trinat demo: the whole path on heads that it makes itself."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    out: Path = typer.Option(Path("demo"), help="Folder to write to.", file_okay=False),
    seed: int = typer.Option(0, min=0, help="Another seed makes other heads."),
    model: str = typer.Option("fast", help="A shipped model or a model's folder."),
) -> int:
    """Make three heads in odd geometries, segment them, compare with their truth.

    Example: trinat demo --out demo
    """
    import time

    from pipelines.common.process import prepare_process
    from pipelines.demo import run_demo

    prepare_process()
    start = time.monotonic()

    def say(step: str) -> None:
        typer.echo(f"{time.monotonic() - start:5.0f} s  {step}")

    status = run_demo(out, seed=seed, model=model, say=say)
    if not status:
        say(f"done; open {out / 'report' / 'report.html'}")
    return status
