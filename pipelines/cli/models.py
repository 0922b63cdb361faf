"""trinat models: which models there are."""

from __future__ import annotations

import typer


def command(json_: bool = typer.Option(False, "--json", help="Print for machines.")) -> int:
    """List the shipped models: size, speed, scores, and what is not available yet.

    Example: trinat models
    """
    from pipelines.models.shipped import run

    return run(as_json=json_)
