"""trinat suspects: a researcher's tools around training."""

from __future__ import annotations

from pathlib import Path

import typer

from pipelines.cli.options import Device, Quiet, Threads, say_next

_STORE = typer.Argument(help="Slice store.")


def suspects(
    store: Path = _STORE,
    model: str = typer.Option(..., help="Model to hold the labels against: a name or a folder."),
    out: Path = typer.Option(None, "--out", "-o", help="Output folder. Default: STORE/suspects."),
    every: int = typer.Option(6, min=1, help="Look at every n-th slice."),
    limit: float = typer.Option(8.0, min=0, help="Score above which a subject is excluded."),
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> int:
    """Find subjects whose labels are likely wrong; write a page and a list for trinat split.

    Example: trinat suspects store --model fast
    """
    from pipelines.common.exits import Exit
    from pipelines.common.process import prepare_process
    from pipelines.common.progress import progress
    from pipelines.models.suspects import EXCLUDE, find_suspects

    prepare_process(threads)
    folder = out or store / "suspects"
    with progress(quiet) as shown:
        ranked = find_suspects(
            store,
            model,
            folder,
            every=every,
            limit=limit,
            device=device,
            finished=lambda done, of: shown.show(f"{done}/{of} subjects", done, of),
        )
    for suspect in ranked:
        if suspect.score > limit:
            typer.echo(f"{suspect.subject}: {suspect.score:.1f}, {suspect.why}")
    typer.echo(folder / "suspects.html")
    if not quiet:
        say_next("split", store, "--exclude", folder / EXCLUDE)
    return Exit.OK
