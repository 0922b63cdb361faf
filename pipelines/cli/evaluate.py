"""trinat evaluate, report and people: label maps and persons, as tables and as a page."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from trinat.pipelines.cli import options
from trinat.pipelines.cli.fields import with_fields
from trinat.segmentation.labels import DEFAULT_SCHEME

RatingsFile = Annotated[
    Path | None,
    typer.Option(
        "--ratings",
        help="ratings.tsv of trinat view: leave out rejected scans and structures, and write "
        "raters.csv (agreement, Cohen's kappa).",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(help="Number of processes. Default: one per processor.")
]


@with_fields
def evaluate(
    pred: Annotated[
        list[Path],
        typer.Option(
            "--pred", "-i", help="Predicted label maps; repeat it to compare models."
        ),
    ],
    out: options.Out,
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
    labels: Annotated[
        str,
        typer.Option(
            "--labels", help="Label scheme to compare in: a name or a TSV file."
        ),
    ] = DEFAULT_SCHEME,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            help="TSV that translates label numbers which are not FreeSurfer's. Columns: number, "
            "freesurfer, and optionally of (truth, prediction or both).",
        ),
    ] = None,
    numbering: Annotated[
        str | None,
        typer.Option(
            "--numbering",
            "--fold",  # its name in the first versions
            help="Numbering of the true label maps, if not FreeSurfer's: neuromorphometrics, or a "
            "TSV file with columns first, last, name, target. A store has its own numbering.",
        ),
    ] = None,
    numbering_pred: Annotated[
        list[str] | None,
        typer.Option(
            "--numbering-pred",
            "--fold-pred",
            help="The same for predictions, which have FreeSurfer's numbers by default: one for "
            "all, or one for each --pred (freesurfer, neuromorphometrics or a TSV file).",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="T1 scans, to show the worst cases on."),
    ] = None,
    resample: Annotated[
        bool,
        typer.Option(
            "--resample",
            help="Resample predictions on another grid to the truth's grid.",
        ),
    ] = False,
    trust_affine: options.TrustAffine = None,
    not_predicted: Annotated[
        list[str] | None,
        typer.Option(
            "--not-predicted",
            help="Structure that the models cannot predict, such as CSF; repeatable. "
            "For predictions made by trinat it is read from their folder.",
        ),
    ] = None,
    csf: Annotated[
        Literal["region", "intracranial"] | None,
        typer.Option(
            "--csf",
            help="What the truth calls CSF: a small region, as in aseg (default), or all fluid in "
            "the skull. CSF that is something else is not compared.",
        ),
    ] = None,
    ratings: RatingsFile = None,
    jobs: Jobs = None,
    show_heads: Annotated[
        bool,
        typer.Option(
            "--show-heads", help="Show whole heads including faces, not only the brain."
        ),
    ] = False,
    tables_only: Annotated[
        bool,
        typer.Option(
            "--tables-only", help="Write tables only, without figures and page."
        ),
    ] = False,
    latex: Annotated[
        bool,
        typer.Option(
            "--latex",
            help="Also write structures.tex: Dice, IoU and distances for a paper.",
        ),
    ] = False,
    csv: Annotated[
        bool,
        typer.Option(
            "--csv", help="Also write structures.csv: the numbers of structures.tex."
        ),
    ] = False,
    quiet: options.Quiet = False,
) -> int:
    """Compare label maps with the truth: Dice, IoU, surface distances, volumes, statistics.

    Example: trinat evaluate --truth manual/ --pred out/ --out report/
    """
    from trinat.pipelines.common.progress import batch_progress
    from trinat.pipelines.evaluate.evaluation import (
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
        numbering=numbering,
        numbering_pred=tuple(numbering_pred or ()),
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
    predictions: Annotated[
        Path, typer.Argument(help="Label maps: a folder, or a BIDS derivative.")
    ],
    left_out: options.LeftOut,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output folder. Default: PREDICTIONS/report."),
    ] = None,
    labels: Annotated[
        str, typer.Option(help="Label scheme: a name or a TSV file.")
    ] = DEFAULT_SCHEME,
    participants: Annotated[
        Path | None,
        typer.Option(
            "--participants",
            help="Table with sex, age, group and site: participants.tsv, or IXI's or OASIS's own.",
        ),
    ] = None,
    strict: options.Strict = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference",
            help="TSV of normal volumes. Columns: structure, low_mm3, high_mm3, and optionally "
            "sex, age_from, age_to.",
        ),
    ] = None,
    adjust: Annotated[
        Literal["residual", "proportion"] | None,
        typer.Option(
            "--adjust",
            help="Adjust volumes for the intracranial volume: residual (of a regression over the "
            "group) or proportion.",
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option("--images", help="T1 scans, for pictures.")
    ] = None,
    trust_affine: options.TrustAffine = None,
    ratings: RatingsFile = None,
    jobs: Jobs = None,
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
    table: Annotated[
        Path,
        typer.Argument(
            help="Table of persons: participants.tsv, or IXI's or OASIS's own."
        ),
    ],
    results: Annotated[
        Path | None,
        typer.Argument(
            help="Label maps, as for trinat report: which row each one has."
        ),
    ] = None,
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
