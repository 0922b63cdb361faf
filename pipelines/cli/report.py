"""trinat report: label maps without a truth, as tables and as a page."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import typer


def command(
    predictions: Path = typer.Argument(..., help="Label maps: a folder, or a BIDS derivative."),
    out: Path = typer.Option(
        None, "--out", help="Where to write; PREDICTIONS/report if not given."
    ),
    labels: str = typer.Option(
        "quicknat33", "--labels", help="Label scheme: a name or a TSV file."
    ),
    participants: Path | None = typer.Option(
        None, "--participants", help="participants.tsv with sex, age and site."
    ),
    reference: Path | None = typer.Option(
        None,
        "--reference",
        help="TSV with columns structure, low_mm3, high_mm3 and maybe sex, age_from, age_to.",
    ),
    images: Path | None = typer.Option(None, "--images", help="The T1 scans, for pictures."),
    trust_affine: Literal["sform", "qform", "header"] | None = typer.Option(
        None, "--trust-affine", help="What to believe where a header's two forms disagree."
    ),
    jobs: int | None = typer.Option(None, "--jobs", help="Processes; all processors if not given."),
    pdf: bool = typer.Option(False, "--pdf", help="Also print the report to PDF, with Chromium."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress."),
) -> int:
    """Volumes, asymmetry and outliers of a group of segmentations, without a truth.

    Example: trinat report out/ --participants participants.tsv
    """
    import shlex
    import sys

    from pipelines.cli.progress import batch_progress
    from pipelines.evaluate.cohort import Settings, report

    settings = Settings(
        predictions=predictions,
        out=out or predictions / "report",
        labels=labels,
        participants=participants,
        reference=reference,
        images=images,
        trust_affine=trust_affine,
        jobs=jobs,
        pdf=pdf,
        command=shlex.join(["trinat", *sys.argv[1:]]),
    )
    with batch_progress(quiet) as progress:
        status = report(settings, progress=progress, say=partial(typer.echo, err=True))
    if not quiet:
        typer.echo(settings.out / "report.html")
    return status
