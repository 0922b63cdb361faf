"""trinat data export: slices of a store as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from trinat.pipelines.cli.options import Quiet


def export(
    store: Path = typer.Argument(help="Slice store.", exists=True, file_okay=False),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Output folder: empty, or of an earlier export."
    ),
    format_: Literal["png"] = typer.Option(
        "png",
        "--format",
        help="png: 16-bit grey images, and labels as class indices with a palette.",
    ),
    views: list[str] = typer.Option(
        None, help="Views: coronal axial sagittal. Default: all of the store."
    ),
    part: Literal["train", "validation", "test"] = typer.Option(
        None, help="Part of the split. Default: all subjects."
    ),
    subjects: list[str] = typer.Option(None, help="Subjects. Default: all."),
    split: Path = typer.Option(
        None, help="File of the split. Default: STORE/split.json, if it is there."
    ),
    labelled: bool = typer.Option(
        False, "--labelled", help="Leave out slices without a structure."
    ),
    quiet: Quiet = False,
) -> int:
    """Write slices of a store as pictures, with a table that says whose they are.

    Example: trinat data export store --out pictures --format png --views coronal
    """
    from trinat.pipelines.common.exits import batch_exit
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.data.export import SLICES, ExportSettings, export_slices
    from trinat.segmentation.space.views import chosen_views

    settings = ExportSettings(
        store=store,
        out=out,
        views=chosen_views(views or None),
        part=part,
        subjects=tuple(subjects or ()),
        split=split,
        labelled=labelled,
    )
    with batch_progress(quiet) as finished:
        outcomes = export_slices(settings, finished)
    failures = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failures:
        typer.echo(f"{outcome.subject}: failed: {outcome.failure}", err=True)
    done = len(outcomes) - len(failures)
    slices = sum(len(outcome.rows) for outcome in outcomes)
    typer.echo(
        f"{out / SLICES}: {slices} slices of {done} subjects, {len(failures)} failed"
    )
    return batch_exit(done=done, failed=len(failures))
