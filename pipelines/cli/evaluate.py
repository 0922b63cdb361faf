"""trinat evaluate: predictions against truths, as tables and as a report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import typer


def command(
    truth: Path = typer.Option(..., "--truth", help="True label maps: a folder or a file."),
    pred: list[Path] = typer.Option(
        ..., "--pred", help="Predicted label maps; give it again for another model."
    ),
    out: Path = typer.Option(..., "--out", help="Folder for the report and its tables."),
    model_name: list[str] = typer.Option(
        [], "--model-name", help="What to call the predictions, one for each --pred."
    ),
    labels: str = typer.Option(
        "quicknat33", "--labels", help="Label scheme to compare in: a name or a TSV file."
    ),
    mapping: Path | None = typer.Option(
        None,
        "--mapping",
        help="TSV with columns number, freesurfer and maybe of (truth, prediction, both), for "
        "label numbers that are not FreeSurfer's.",
    ),
    images: Path | None = typer.Option(
        None, "--images", help="The T1 scans, to show the worst cases on."
    ),
    resample: bool = typer.Option(
        False, "--resample", help="Bring predictions on another grid to the truth's."
    ),
    trust_affine: Literal["sform", "qform", "header"] | None = typer.Option(
        None, "--trust-affine", help="What to believe where a header's two forms disagree."
    ),
    not_predicted: list[str] = typer.Option(
        [],
        "--not-predicted",
        help="A structure that the models cannot predict, such as CSF; give it again for another. "
        "For predictions made by trinat it is read from their folder.",
    ),
    jobs: int | None = typer.Option(None, "--jobs", help="Processes; all processors if not given."),
    show_heads: bool = typer.Option(
        False, "--show-heads", help="Show whole heads, faces included, not the brain alone."
    ),
    tables_only: bool = typer.Option(False, "--tables-only", help="No figures and no page."),
    pdf: bool = typer.Option(False, "--pdf", help="Also print the report to PDF, with Chromium."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress."),
) -> int:
    """Compare label maps with the truth: Dice, IoU, surface distances, volumes, statistics.

    Example: trinat evaluate --truth manual/ --pred out/ --out report/
    """
    import shlex
    import sys

    from pipelines.cli.progress import batch_progress
    from pipelines.evaluate.run import Settings, evaluate, named_models

    settings = Settings(
        truth=truth,
        models=named_models(pred, model_name),
        out=out,
        labels=labels,
        mapping=mapping,
        images=images,
        resample=resample,
        trust_affine=trust_affine,
        not_predicted=tuple(not_predicted),
        jobs=jobs,
        show_heads=show_heads,
        tables_only=tables_only,
        pdf=pdf,
        command=shlex.join(["trinat", *sys.argv[1:]]),
    )
    with batch_progress(quiet) as progress:
        status = evaluate(settings, progress=progress, say=partial(typer.echo, err=True))
    if not quiet:
        typer.echo(out / ("metrics.csv" if tables_only else "report.html"))
    return status
