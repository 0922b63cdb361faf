"""trinat doctor: what this machine has, and what is wrong with it."""

from __future__ import annotations

import typer


def command(
    json_: bool = typer.Option(False, "--json", help="Print for machines."),
) -> int:
    """Print Python, torch, GPU, memory and packages, and what is wrong with them.

    Example: trinat doctor
    """
    from pipelines.doctor import run

    return run(as_json=json_)
