"""trinat data export: slices of a store as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trinat.pipelines.cli.data_options import Store
from trinat.pipelines.cli.options import Quiet

Out = Annotated[
    Path,
    typer.Option("--out", "-o", help="Output folder: empty, or of an earlier export."),
]
Format = Annotated[
    Literal["png"],
    typer.Option(
        "--format",
        help="png: 16-bit grey images, and labels as class indices with a palette.",
    ),
]
Views = Annotated[
    list[str] | None,
    typer.Option(help="Views: coronal axial sagittal. Default: all of the store."),
]
Part = Annotated[
    Literal["train", "validation", "test"] | None,
    typer.Option(help="Part of the split. Default: all subjects."),
]
Subjects = Annotated[list[str] | None, typer.Option(help="Subjects. Default: all.")]
Split = Annotated[
    Path | None,
    typer.Option(help="File of the split. Default: STORE/split.json, if it is there."),
]
Labelled = Annotated[
    bool, typer.Option("--labelled", help="Leave out slices without a structure.")
]


def export(
    store: Store,
    out: Out,
    format_: Format = "png",
    views: Views = None,
    part: Part = None,
    subjects: Subjects = None,
    split: Split = None,
    labelled: Labelled = False,
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
