"""trinat evaluate, report and people: label maps and persons, as tables and as a page."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

import typer

from trinat.pipelines.cli import evaluate_options, options
from trinat.pipelines.cli.fields import with_fields


@with_fields
def evaluate(
    pred: evaluate_options.Pred,
    out: options.Out,
    scans: options.OfStore,
    truth: evaluate_options.Truth = None,
    model_name: evaluate_options.ModelName = None,
    labels: evaluate_options.EvaluateLabels = "quicknat33",
    mapping: evaluate_options.Mapping = None,
    numbering: evaluate_options.Numbering = None,
    numbering_pred: evaluate_options.NumberingPred = None,
    images: evaluate_options.EvaluateImages = None,
    resample: evaluate_options.Resample = False,
    trust_affine: options.TrustAffine = None,
    not_predicted: evaluate_options.NotPredicted = None,
    csf: evaluate_options.TruthCsf = None,
    ratings: evaluate_options.RatingsFile = None,
    jobs: evaluate_options.Jobs = None,
    show_heads: evaluate_options.ShowHeads = False,
    tables_only: evaluate_options.TablesOnly = False,
    latex: evaluate_options.Latex = False,
    csv: evaluate_options.Csv = False,
    quiet: options.Quiet = False,
) -> int:
    """Compare label maps with the truth: Dice, IoU, surface distances, volumes, statistics.

    Example: trinat evaluate --truth manual/ --pred out/ --out report/
    """
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.evaluate.run import (
        EvaluationSettings,
        evaluate_predictions,
        named_models,
    )

    place = _place_of_truth(truth, scans.store, numbering, folds=scans.folds)
    has_part = scans.store is not None and not scans.folds
    settings = EvaluationSettings(
        truth=place,
        part=scans.part if has_part else None,
        folds=scans.folds,
        models=named_models(pred, model_name or ()),
        out=out,
        labels=labels,
        mapping=mapping,
        fold=numbering,
        fold_pred=tuple(numbering_pred or ()),
        images=images,
        resample=resample,
        trust_affine=trust_affine,
        jobs=jobs,
        show_heads=show_heads,
        tables_only=tables_only,
        latex=latex,
        csv=csv,
        not_predicted=tuple(not_predicted or ()),
        csf=csf,
        ratings=ratings,
        command=_command(),
    )
    with batch_progress(quiet) as progress:
        status = evaluate_predictions(
            settings, progress=progress, say=partial(typer.echo, err=True)
        )
    if not quiet:
        result = "metrics.csv" if tables_only else "report.html"
        typer.echo(out / result)
    return status


def _place_of_truth(
    truth: Path | None,
    store: Path | None,
    numbering: str | None,
    *,
    folds: bool,
) -> Path:
    """The one truth that is given; ConfigError unless it is one, with options that fit it."""
    from trinat.segmentation.errors import ConfigError

    place = truth if store is None else store
    if place is None or (truth is not None and store is not None):
        raise ConfigError("one of --truth and --store is needed", remedy="give either")
    if folds and store is None:
        raise ConfigError(
            "--folds without --store", remedy="name the store that was split"
        )
    if numbering is not None and store is not None:
        raise ConfigError(
            "--numbering with --store", remedy="leave it out: a store has its own"
        )
    return place


@with_fields
def report(
    predictions: evaluate_options.Predictions,
    left_out: options.LeftOut,
    out: evaluate_options.Out = None,
    labels: evaluate_options.ReportLabels = "quicknat33",
    participants: evaluate_options.Participants = None,
    strict: options.Strict = False,
    reference: evaluate_options.Reference = None,
    adjust: evaluate_options.Adjust = None,
    images: evaluate_options.ReportImages = None,
    trust_affine: options.TrustAffine = None,
    ratings: evaluate_options.RatingsFile = None,
    jobs: evaluate_options.Jobs = None,
    quiet: options.Quiet = False,
) -> int:
    """Volumes, asymmetry and outliers of a group of segmentations, without a truth.

    Example: trinat report out/ --participants participants.tsv
    """
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.evaluate.cohort import CohortSettings, report_cohort

    settings = CohortSettings(
        predictions=predictions,
        out=predictions / "report" if out is None else out,
        labels=labels,
        participants=participants,
        strict=strict,
        reference=reference,
        adjust=adjust,
        images=images,
        trust_affine=trust_affine,
        jobs=jobs,
        ratings=ratings,
        excluded=left_out.grades(),
        command=_command(),
    )
    with batch_progress(quiet) as progress:
        status = report_cohort(
            settings, progress=progress, say=partial(typer.echo, err=True)
        )
    if not quiet:
        typer.echo(settings.out / "report.html")
    return status


def people(
    table: evaluate_options.Table,
    results: evaluate_options.Results = None,
    strict: options.Strict = False,
) -> None:
    """Show what is understood of a table of persons, and which scan has which row.

    Example: trinat people participants.tsv out/
    """
    from trinat.pipelines.evaluate.people import show_people

    show_people(table, results, typer.echo, strict=strict)


def _command() -> str:
    """The line that was typed, for the pages that it makes."""
    return shlex.join(["trinat", *sys.argv[1:]])
