"""trinat evaluate, report and participants: label maps and participants, as tables and a page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import Only, with_fields
from trinat.pipelines.common.option import Strict
from trinat.pipelines.evaluate.settings import CohortSettings, EvaluationSettings
from trinat.pipelines.jobs.progress import batch_progress, log_lines
from trinat.segmentation.errors import ConfigError


@with_fields
def evaluate(
    pred: Annotated[
        list[Path],
        typer.Option(
            "--pred", "-i", help="Predicted label maps; repeat it to compare models."
        ),
    ],
    asked: Annotated[Callable[..., EvaluationSettings], Only(EvaluationSettings)],
    scans: options.OfStore,
    truth: Annotated[
        Path | None,
        typer.Option("--truth", help="True label maps: a folder or a file."),
    ] = None,
    model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--model-name", help="Display name of a model, one for each --pred."
        ),
    ] = None,
    quiet: options.Quiet = False,
) -> int:
    """Compare label maps with the truth: Dice, IoU, surface distances, volumes, statistics.

    Example: trinat evaluate --truth manual/ --pred out/ --out report/
    """
    from trinat.pipelines.evaluate.evaluation import evaluate_predictions, named_models

    place = truth if scans.store is None else scans.store
    if truth is not None and scans.store is not None:
        raise ConfigError("--truth or --store is required", remedy="give either")
    if scans.folds and scans.store is None:
        raise ConfigError(
            "--folds requires --store",
            remedy="add --store with the store that was split",
        )
    has_part = scans.store is not None and not scans.folds
    settings = asked(
        truth=place,
        part=scans.part if has_part else None,
        folds=scans.folds,
        models=named_models(pred, model_name or ()),
        command=_command(),
    )
    if settings.numbering is not None and scans.store is not None:
        raise ConfigError(
            "--numbering cannot be combined with --store",
            remedy="leave --numbering out: the store has its own numbering",
        )
    with log_lines(quiet), batch_progress(quiet) as progress:
        status = evaluate_predictions(settings, progress=progress)
    if not quiet:
        result = "metrics.csv" if settings.tables_only else "report.html"
        typer.echo(settings.out / result)
    return status


@with_fields
def report(
    settings: CohortSettings,
    left_out: options.LeftOut,
    quiet: options.Quiet = False,
) -> int:
    """Volumes, asymmetry and outliers of a group of segmentations, without a truth.

    Example: trinat report out/ --participants participants.tsv
    """
    from trinat.pipelines.evaluate.cohort import report_cohort

    settings = replace(
        settings,
        out=settings.out or settings.predictions / "report",
        excluded=left_out.grades(),
        command=_command(),
    )
    with log_lines(quiet), batch_progress(quiet) as progress:
        status = report_cohort(settings, progress=progress)
    if not quiet:
        typer.echo(settings.out / "report.html")
    return status


@with_fields
def norms(
    asked: Annotated[
        Callable[..., CohortSettings],
        Only(
            CohortSettings,
            *("predictions", "labels", "participants", "strict"),
            *("trust_affine", "ratings", "jobs"),
        ),
    ],
    left_out: options.LeftOut,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Table to write.", dir_okay=False),
    ] = Path("norms.tsv"),
    group: Annotated[
        str | None,
        typer.Option(help="Name of the group of healthy participants in the table."),
    ] = None,
    quiet: options.Quiet = False,
) -> int:
    """Make norms of your own healthy participants: volumes by age, sex and intracranial volume.

    `trinat predict --page` and `trinat report` compare with them: --reference norms.tsv.

    Example: trinat norms controls/ --participants participants.tsv --out norms.tsv
    """
    from trinat.pipelines.evaluate.norms import make_norms

    settings = asked(out=out, excluded=left_out.grades(), command=_command())
    with log_lines(quiet), batch_progress(quiet) as progress:
        status = make_norms(settings, out, group, progress)
    if not quiet:
        typer.echo(out)
    return status


def participants(
    table: Annotated[
        Path,
        typer.Argument(
            help="Participants table: participants.tsv, or IXI's or OASIS's own."
        ),
    ],
    results: Annotated[
        Path | None,
        typer.Argument(help="Label maps, as for trinat report; show the row of each."),
    ] = None,
    strict: Strict = False,
) -> None:
    """Show what is understood of a participants table, and which scan has which row.

    Example: trinat participants participants.tsv out/
    """
    from trinat.pipelines.study.participants_check import describe_table

    for line in describe_table(table, results, strict=strict):
        typer.echo(line)


def _command() -> str:
    """Return the command line that was typed, for the pages that the command makes."""
    return shlex.join(["trinat", *sys.argv[1:]])
